"""The end of a run that hangs, in this process: its records, and that no other time limit ends it earlier."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from tests.unit.training.lab import Lab

from trainyard.training.data.batches import TokenBatches
from trainyard.training.run import hang
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import ALONE, World


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
