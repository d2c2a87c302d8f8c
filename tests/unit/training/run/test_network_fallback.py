"""The network that our trainer records: when NCCL's log is kept, the facts, and the end of a fallback."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.proof.test_joining_network import P5_TYPE, facts_of
from tests.unit.training.lab import Lab

from trainyard.config.schema import Config
from trainyard.errors import ConfigError, ExitCode, NetworkFallbackError
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows
from trainyard.training.run.network_fallback import keep_nccl_log, record_network
from trainyard.training.run.run_context import RunContext
from trainyard.watch.network_record import NetworkWatch, judge_event
from trainyard.watch.network_verdict import Network, NetworkFacts

TWO_MACHINES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}
CHANNEL = (
    "h{rank}:1:2 [0] NCCL INFO comm 0x5 rank {rank} nRanks 2 nNodes 2 localRanks 1\n"
    "h{rank}:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/{network}/0\n"
)
Segment = Callable[..., RunContext]


@pytest.fixture
def segment(tmp_path: Path, tiny_config: Callable[..., Config]) -> Segment:
    """A segment of four processes; `others` are the facts of the other ranks."""

    def build(*others: NetworkFacts, on_fallback: str = "stop", watches: bool = True) -> RunContext:
        directory = RunDirectory(tmp_path / "run")
        directory.create()
        world = SimpleNamespace(is_main=True, gather=lambda own: [own, *others], size=4)
        parts: dict[str, Any] = dict.fromkeys(RunContext.__dataclass_fields__)
        config = tiny_config(compute={"on_fallback": on_fallback})
        network = NetworkWatch(P5_TYPE) if watches else None
        parts["request"] = SimpleNamespace(config=config, directory=directory, network=network)
        parts |= {"world": world, "state": SimpleNamespace(step=1)}
        parts["listener"] = SimpleNamespace(on_event=lambda *_: None)
        return RunContext(**parts)

    return build


def events(segment: RunContext, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_rows(segment.directory.events_file) if event["event"] == kind]


def write_log(segment: RunContext, network: str, *, rank: int = 0) -> None:
    environment = {**TWO_MACHINES, "RANK": str(rank)}
    keep_nccl_log(segment.directory.logs, environment)
    text = CHANNEL.format(rank=rank, network=network)
    Path(environment["NCCL_DEBUG_FILE"].replace("%%", "%")).write_text(text)


@pytest.mark.parametrize("case", ["direct", "not direct", "sockets", "sockets requested"])
@pytest.mark.parametrize("on_fallback", ["stop", "warn"])
def test_the_network_is_on_record_and_a_fallback_ends_the_run(
    segment: Segment, case: str, on_fallback: str
) -> None:
    here = segment(facts_of(case), on_fallback=on_fallback)
    if case == "sockets" and on_fallback == "stop":
        with pytest.raises(NetworkFallbackError) as raised:
            record_network(here, environment=TWO_MACHINES)
        error = raised.value
        first, second = str(error).splitlines()
        opened = "NCCL opened sockets between machines that have EFA: NCCL did not find the plug"
        assert first.startswith(opened)
        assert second.startswith("Install aws-ofi-nccl in the image")
        assert "compute.network=tcp" in second
        assert (error.exit_code, error.failure.kind) == (ExitCode.NOT_PROVEN, "tcp-fallback")  # type: ignore[attr-defined]
    else:
        found = record_network(here, environment=TWO_MACHINES)
        record_network(here, found, TWO_MACHINES)  # at the end, nothing has changed
    [event] = events(here, "network")
    verdict, _ = judge_event(event)
    assert verdict is not None
    assert event["verdict"] == verdict.verdict == facts_of(case).judge(P5_TYPE).verdict
    assert len(events(here, "network_degraded")) == (case in ("sockets", "not direct"))


def test_channels_that_were_opened_later_are_recorded_too(segment: Segment) -> None:
    here = segment(facts_of("direct"), on_fallback="warn")
    found = record_network(here, environment=TWO_MACHINES)
    write_log(here, "Socket")
    record_network(here, found, TWO_MACHINES)
    assert [event["verdict"] for event in events(here, "network")] == ["efa-gpudirect", "tcp-fallback"]


def test_each_rank_reads_its_own_log_of_this_segment(segment: Segment) -> None:
    here = segment()
    write_log(here, "Libfabric")
    found = record_network(here, environment=TWO_MACHINES)
    assert found is not None
    assert found["verdict"] == Network.EFA_UNDETERMINED  # the other ranks show nothing
    keep_nccl_log(here.directory.logs, dict(TWO_MACHINES))
    assert record_network(here, environment=TWO_MACHINES) is None


@pytest.mark.parametrize(
    "environment", [{}, {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, {**TWO_MACHINES, "off": ""}]
)
def test_one_machine_and_a_run_that_nobody_watches_record_nothing(
    segment: Segment, environment: dict[str, str]
) -> None:
    before = dict(environment)
    here = segment(facts_of("sockets"), watches="off" not in environment)
    object.__setattr__(here.world, "gather", lambda _: pytest.fail("no process waits for another"))
    if "off" not in environment:
        keep_nccl_log(here.directory.logs, environment)
    assert environment == before
    assert record_network(here, environment=environment) is None


def test_the_users_settings_of_nccl_stay(tmp_path: Path) -> None:
    for own, kept in (
        ({"NCCL_DEBUG": "WARN"}, False),
        ({"NCCL_DEBUG_FILE": "/tmp/%h.%p"}, False),
        ({"NCCL_DEBUG": "INFO"}, True),
        ({"NCCL_DEBUG": "trace"}, True),
    ):
        environment = TWO_MACHINES | own
        keep_nccl_log(tmp_path / "logs", environment)
        log = {"NCCL_DEBUG_FILE": f"{tmp_path}/logs/nccl-rank-0.log"} if kept else {}
        assert environment == TWO_MACHINES | own | log


def test_the_log_has_a_folder_and_its_path_no_placeholder(tmp_path: Path) -> None:
    environment = dict(TWO_MACHINES)
    keep_nccl_log(tmp_path / "100%p" / "logs", environment)
    assert environment["NCCL_DEBUG_FILE"].endswith("/100%%p/logs/nccl-rank-0.log")
    assert (tmp_path / "100%p" / "logs").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file and must be"):
        keep_nccl_log(tmp_path / "file", dict(TWO_MACHINES))


def test_the_loop_reads_the_log_after_the_first_step_and_at_the_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(
        "trainyard.training.loop.record_network",
        lambda context, before=None: steps.append(context.state.step),
    )
    lab.run()
    assert steps == [1, 12]
