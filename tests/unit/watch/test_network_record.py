"""The network that the logs of a job should show, by the machine and the pod's environment."""

from pathlib import Path
from typing import Any

from tests.cases import each_case
from tests.unit.watch.test_network_verdict import P5, VERSIONS, logs_of

from trainyard.gateways.local_machine import network_devices
from trainyard.run.directory import RunDirectory
from trainyard.run.launch_environment import NodeLauncher
from trainyard.watch.network_record import NetworkWatch, NodeNetwork, expectation_here, nccl_warnings
from trainyard.watch.network_verdict import Expectation, NetworkFacts

IB = "infiniband/mlx5_0"
IB_UP = {f"{IB}/ports/1/link_layer": "InfiniBand", f"{IB}/ports/1/state": "4: ACTIVE"}
EFA = {f"infiniband/rdmap{n}s0/device/vendor": "0x1d0f" for n in range(2)}


@each_case(
    ("files", "environment", "expected"),
    [
        ({}, {}, (None, None, "", False)),
        ({"dmi/id/product_name": "p4d.24xlarge"}, {}, (4, True, "p4d.24xlarge", False)),
        ({"dmi/id/product_name": "p6-b200.48xlarge", **EFA}, {}, (2, True, "p6-b200.48xlarge", False)),
        ({"dmi/id/product_name": "g5.48xlarge"}, {}, (0, False, "g5.48xlarge", False)),
        ({"dmi/id/product_name": "g5.48xlarge", **EFA}, {}, (2, False, "g5.48xlarge", False)),
        ({"dmi/id/product_name": "p5.4xlarge"}, {}, (0, None, "p5.4xlarge", False)),
        ({"dmi/id/product_name": "PowerEdge XE9680"}, {}, (None, None, "", False)),
        (EFA, {}, (2, None, "", False)),
        (EFA, {"TRAINYARD_EFA_INTERFACES": "16"}, (16, None, "", False)),
        (EFA, {"TRAINYARD_EFA_INTERFACES": "0"}, (0, None, "", False)),
        ({}, {"TRAINYARD_INSTANCE_TYPE": "ml.p5.48xlarge"}, (32, True, "p5.48xlarge", False)),
        ({f"{IB}/device/vendor": "0x15b3", **IB_UP}, {}, (None, None, "", True)),
        ({**IB_UP, f"{IB}/ports/1/state": "1: DOWN"}, {}, (None, None, "", False)),
        ({**IB_UP, f"{IB}/ports/1/link_layer": "Ethernet"}, {}, (None, None, "", False)),
    ],
)
def test_only_a_network_that_the_machine_certainly_has_is_expected(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], expected: tuple[Any, ...]
) -> None:
    for name, text in files.items():
        path = tmp_path / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = expectation_here("auto", network_devices(tmp_path), environment, processes=4)
    assert (found.efa, found.rdma, found.instance_type, found.infiniband) == expected
    assert (found.requested, found.processes) == ("auto", 4)


def test_warnings_are_shown_once_each(tmp_path: Path) -> None:
    head = "\nhost:7:9 [0] nccl_net_ofi.c:{line} NCCL WARN "
    for name in ("0.log", "1.log"):
        text = head.format(line=name) + "NET/OFI RC: -12, Error: Cannot allocate memory"
        (tmp_path / name).write_text(f"host:7:9 [0] NCCL INFO Bootstrap{text}{head}another\n")
    found = nccl_warnings([tmp_path / "none.log", tmp_path / "0.log", tmp_path / "1.log"])
    assert [line.rpartition("NCCL WARN ")[2] for line in found] == [
        "NET/OFI RC: -12, Error: Cannot allocate memory",
        "another",
    ]


def test_a_log_that_cannot_be_read_shows_nothing(tmp_path: Path) -> None:
    watch = NetworkWatch(Expectation())
    assert watch.read([tmp_path, tmp_path / "none.log"]) == NetworkFacts()


@each_case("version", VERSIONS)
@each_case("case", ["direct", "sockets"])
def test_growing_logs_are_reported_once_they_stand_still_and_sockets_at_once(
    version: str, case: str, tmp_path: Path
) -> None:
    follower = NodeNetwork(RunDirectory(tmp_path), NodeLauncher(2, 0, 1), P5, on_fallback="warn")
    logs = RunDirectory(tmp_path).logs
    logs.mkdir()
    assert follower.poll() is None
    lines = logs_of(case, 2, version)
    verdicts: list[str | None] = []
    for count in range(1, len(lines[0]) + 1):
        for rank in range(2):
            (logs / f"nccl-node-{rank}-a.log").write_text("".join(lines[rank][:count]))
        event = follower.poll()
        verdicts.append(None if event is None else event["verdict"])
    first_channel = next(n for n, line in enumerate(lines[0]) if " via " in line)
    seen = [None] * first_channel + ["tcp-fallback" if case == "sockets" else None]
    assert verdicts[: first_channel + 1] == seen
    settled = follower.poll()
    assert (settled is not None) is (case == "direct")
    assert settled is None or settled["verdict"] == "efa-gpudirect"
    assert follower.poll() is None
    (logs / "nccl-node-2-a.log").write_text("a line of nobody\n")
    changed = follower.poll(is_over=True)
    assert changed is not None, "at the end, everything new is reported"
    assert len(changed["facts"]["processes"]) == 2
