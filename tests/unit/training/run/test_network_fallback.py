"""TCP between machines that have a faster fabric: when NCCL writes its log, and the recorded event."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows
from trainyard.training.run.nccl_log import Fabric
from trainyard.training.run.network_fallback import fabric_of, keep_nccl_log, record_fallback
from trainyard.training.run.run_context import RunContext

TWO_MACHINES = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "RANK": "0"}
SOCKET = "h:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0\n"


def file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def p5(tmp_path: Path) -> Path:
    file(tmp_path / "sys/class/dmi/id/product_name", "p5.48xlarge")
    return tmp_path / "sys"


@pytest.fixture
def segment(tmp_path: Path) -> Any:
    """A segment on GPUs in the middle of its first step; `others` is what the other ranks found."""

    def build(*others: str, device: str = "cuda") -> Any:
        directory = RunDirectory(tmp_path / "run")
        directory.create()
        world = SimpleNamespace(is_main=True, gather=lambda own: [own, *others])
        parts: dict[str, Any] = dict.fromkeys(RunContext.__dataclass_fields__)
        parts |= {"directory": directory, "device": torch.device(device), "world": world}
        parts |= {"state": SimpleNamespace(step=1)}
        parts["listener"] = SimpleNamespace(on_event=lambda *_: None)
        return RunContext(**parts)

    return build


def recorded_events(segment: RunContext, environment: dict[str, str], system: Path) -> list[dict[str, Any]]:
    record_fallback(segment, environment, system)
    return read_rows(segment.directory.events_file)


def environment_with_log(segment: RunContext, *lines: str, **more: str) -> dict[str, str]:
    """The environment after NCCL was configured to log and wrote `lines`."""
    environment = TWO_MACHINES | more
    keep_nccl_log(segment.directory.logs, "cuda", environment)
    Path(environment["NCCL_DEBUG_FILE"].replace("%%", "%")).write_text("".join(lines))
    return environment


def test_a_fallback_is_on_record_once_with_the_ranks_that_saw_it(segment: Any, p5: Path) -> None:
    here = segment("", "though the machine has EFA")
    [event] = recorded_events(
        here, environment_with_log(here, "h:1:2 [0] NCCL INFO NET/Plugin: No plugin found (x)\n", SOCKET), p5
    )
    assert (event["event"], event["step"], event["ranks"]) == ("network_degraded", 1, [0, 2])
    assert event["reason"] == (
        "TCP between machines on ranks 0, 2, though the machine has EFA: its plugin was not found"
    )


def test_many_ranks_are_counted(segment: Any, p5: Path) -> None:
    here = segment(*["though the machine has EFA"] * 7)
    [event] = recorded_events(here, environment_with_log(here), p5)
    assert event["reason"] == "TCP between machines on 7 ranks, though the machine has EFA"


def test_a_healthy_or_missing_log_records_nothing(segment: Any, p5: Path) -> None:
    here = segment("")
    assert recorded_events(here, environment_with_log(here, SOCKET.replace("Socket", "Libfabric")), p5) == []
    environment = environment_with_log(here)
    (here.directory.logs / "nccl-rank-0.log").unlink()
    assert recorded_events(here, environment, p5) == []


def test_machines_that_have_nothing_faster_are_not_degraded(segment: Any, tmp_path: Path) -> None:
    here = segment("")
    assert recorded_events(here, environment_with_log(here, SOCKET), tmp_path / "sys") == []


def test_the_log_of_an_earlier_segment_counts_for_nothing(segment: Any, p5: Path) -> None:
    here = segment("")
    environment_with_log(here, SOCKET)
    assert recorded_events(here, TWO_MACHINES | {"NCCL_DEBUG": "WARN"}, p5) == []


@pytest.mark.parametrize(
    ("environment", "device"),
    [({}, "cuda"), ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, "cuda"), (TWO_MACHINES, "cpu")],
)
def test_one_machine_and_cpus_need_no_log(
    segment: Any, p5: Path, environment: dict[str, str], device: str
) -> None:
    before = dict(environment)
    here = segment(device=device)
    keep_nccl_log(here.directory.logs, device, environment)
    assert environment == before
    here.world.gather = lambda _: pytest.fail("no process waits for another")
    assert recorded_events(here, environment, p5) == []


@pytest.mark.parametrize("own", [{"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "/tmp/%h.%p"}])
def test_the_users_settings_of_nccl_stay(tmp_path: Path, own: dict[str, str]) -> None:
    environment = TWO_MACHINES | own
    keep_nccl_log(tmp_path / "logs", "cuda", environment)
    assert environment == TWO_MACHINES | own


def test_the_log_has_a_folder_and_its_path_no_placeholder(tmp_path: Path) -> None:
    environment = dict(TWO_MACHINES)
    keep_nccl_log(tmp_path / "100%p" / "logs", "cuda", environment)
    assert environment["NCCL_DEBUG_FILE"].endswith("/100%%p/logs/nccl-rank-0.log")
    assert (tmp_path / "100%p" / "logs").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="a file is where"):
        keep_nccl_log(tmp_path / "file", "cuda", dict(TWO_MACHINES))


@pytest.mark.parametrize(
    ("files", "fabric"),
    [
        ({}, None),
        ({"dmi/id/product_name": "p4d.24xlarge"}, Fabric.EFA),
        ({"dmi/id/product_name": "p6-b200.48xlarge"}, Fabric.EFA),
        ({"dmi/id/product_name": "g5.48xlarge"}, None),
        ({"dmi/id/product_name": "PowerEdge XE9680"}, None),
        ({"infiniband/rdmap79s0/device/vendor": "0x1d0f"}, Fabric.EFA),
        (
            {
                "infiniband/mlx5_0/device/vendor": "0x15b3",
                "infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
                "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            },
            Fabric.INFINIBAND,
        ),
        (
            {
                "infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
                "infiniband/mlx5_0/ports/1/state": "1: DOWN",
            },
            None,
        ),
        (
            {
                "infiniband/mlx5_0/ports/1/link_layer": "Ethernet",
                "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            },
            None,
        ),
    ],
)
def test_only_a_fabric_that_the_machine_certainly_has_counts(
    tmp_path: Path, files: dict[str, str], fabric: Fabric | None
) -> None:
    for name, text in files.items():
        file(tmp_path / "class" / name, text)
    assert fabric_of(tmp_path) is fabric


def test_the_loop_reads_the_log_once_after_the_first_step(
    tiny_config: Callable[..., Config], run_training: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(
        "trainyard.training.run.step_loop.record_fallback",
        lambda parts: steps.append(cast(RunContext, parts).state.step),
    )
    run_training(tiny_config())
    assert steps == [1]
