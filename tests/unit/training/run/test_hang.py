"""Runs that are ended from outside their steps: a hang, and a network that is not the requested one."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from tests.unit.proof.test_joining_network import P5_TYPE, facts_of
from tests.unit.training.lab import Lab

from trainyard.config.schema import Config
from trainyard.errors import ConfigError, ExitCode, NetworkFallbackError
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows
from trainyard.training.data.batches import TokenBatches
from trainyard.training.run import hang
from trainyard.training.run.network_fallback import keep_nccl_log, record_network
from trainyard.training.run.run_context import RunContext
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import ALONE, World
from trainyard.watch.network_record import NetworkWatch, judge_event
from trainyard.watch.network_verdict import Network, NetworkFacts


class ProcessExit(Exception):  # noqa: N818 - replaces the end of the process
    """The process has ended."""


class StoppedTimer:
    """A timer that never goes off."""

    def __init__(self, *_: Any) -> None:
        self.daemon = False

    def start(self) -> None: ...


def test_a_hang_is_recorded_and_a_stuck_part_of_the_end_costs_that_part_only(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, ends, over = list[dict[str, Any]](), list[tuple[int, str]](), threading.Event()
    monkeypatch.setattr("trainyard.training.run.hang.threading.Timer", StoppedTimer)
    monkeypatch.setattr(hang, "_PART_SECONDS", 0.2)

    def stuck(*_: Any) -> None:
        over.wait(120)

    def leave(code: int) -> None:
        assert not over.is_set(), "the end has waited for a part that is stuck"
        ends.append((code, (lab.folder / "run" / "run.json").read_text()))

    class StuckDisplay:
        """A display on a terminal that blocks once a hang is suspected."""

        def on_row(self, _row: Any) -> None: ...

        def on_event(self, event: str, _fields: Any) -> None:
            if event == "hang_suspected":
                stuck()

    def never_the_sixth(batches: TokenBatches, step: int) -> Any:
        if step < 5:
            return original(batches, step)
        monkeypatch.setattr(Watchdog, "limit", lambda _: 0.1)
        hang._wait(60, lambda: bool(ends))
        # The process of a trainer ends here; the parts that are not stuck may still be finishing.
        hang._wait(60, lambda: not sign.exists() and "hang_suspected" in events.read_text())
        over.set()
        raise ProcessExit

    sign, events = lab.folder / "run" / "logs" / "hang-suspected", lab.folder / "run" / "events.jsonl"
    original = TokenBatches.batch
    monkeypatch.setattr(TokenBatches, "batch", never_the_sixth)
    monkeypatch.setattr(hang, "_write_collectives", stuck)
    with pytest.raises(ProcessExit):
        lab.run(lab.config(), listener=StuckDisplay(), on_outcome=outcomes.append, leave=leave)
    ((code, record),) = ends
    assert (code, outcomes[0]["status"], json.loads(record)["outcome"]) == (1, "failed", outcomes[0])
    assert outcomes[0]["reason"].startswith("Step 6: nothing moved for ")
    assert [json.loads(line)["event"] for line in events.read_text().splitlines()][:4] == [
        *("started", "checkpoint_saved", "hang_suspected", "finished")
    ]
    assert "never_the_sixth" in (lab.folder / "run" / "logs" / "hang-rank-0.txt").read_text()
    assert not sign.exists()


def test_no_collective_gives_up_while_the_steps_are_watched() -> None:
    def limits() -> list[float]:
        groups = dist.distributed_c10d._world.pg_map
        options = [group._get_backend(group._device_types[0]).options for group in groups]
        return [option._timeout.total_seconds() for option in options]

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=300))
    try:
        dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
        assert limits() == [300.0, 60.0]
        with hang.remove_collective_limit():
            assert min(limits()) > 30 * 86400
        assert limits() == [1800.0, 1800.0]
    finally:
        dist.destroy_process_group()


class WorldAt(World):
    """A world in which `places` has the machine (empty: this one) and the id of each other process."""

    places: tuple[tuple[str, int], ...] = ()

    def gather(self, value: Any) -> list[Any]:
        return [value, *((place or value[0], pid) for place, pid in self.places)]


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def beside(pid: int, *, machine: str = "") -> World:
    world = WorldAt(**vars(replace(ALONE, size=2)))
    object.__setattr__(world, "places", ((machine, pid),))
    return world


def test_a_process_that_ends_is_known_by_its_rank(other: "subprocess.Popen[bytes]") -> None:
    with hang.watch_peers(beside(other.pid)) as ended:
        assert ended() == ()
        other.kill()
        deadline = time.monotonic() + 60
        while not ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ended() == (1,), "it is known before anybody has waited for it"
        assert ended() == (1,)
    other.wait()
    with hang.watch_peers(beside(other.pid)) as ended:
        assert ended() == (1,), "it had ended before"
    with hang.watch_peers(beside(other.pid, machine="elsewhere")) as ended:
        assert ended() == (), "nothing is known of another machine"


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
