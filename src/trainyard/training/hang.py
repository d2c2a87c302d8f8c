"""What is done when a run stands still: every process leaves its stacks in `logs/`, then the run ends.

    first to notice --> logs/hang-suspected --> all: logs/hang-rank-R.txt --> main: event, outcome --> exit 1

The main thread may be stuck anywhere, in a collective too, and never come back: everything here happens in
the watchdog's thread, and the process ends without asking the others. The main process removes
`logs/hang-suspected` when all is on record, which tells the others to go. What the main thread is stuck in
may be what the end needs too, such as a terminal that takes nothing: each part has seconds, no more.
"""

import faulthandler
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainyard.errors import ExitCode, StoppedError, TrainingFailedError, TrainyardError
from trainyard.run.failure import Failure, Kind
from trainyard.run.files import write_bytes_atomically, write_json_atomically
from trainyard.training.outcome import OutcomeRecorder
from trainyard.training.parts import Segment
from trainyard.training.peers import peers_watched
from trainyard.training.remedies import way_on
from trainyard.training.watchdog import Standstill, compiling_is_slow
from trainyard.training.world import collectives_wait_for_ever

_logger = logging.getLogger(__name__)
_GATHER_SECONDS = 5.0
"""How long the main process waits for the stacks of the others."""
_RECORD_SECONDS = 10.0
"""How long the others wait for the main process."""
_PART_SECONDS = 3.0
"""How long any part of the end may take before it goes on without it."""
_END_SECONDS = 25.0
"""After this the process leaves, whatever keeps it from the rest; torchrun kills it a little later."""
_POLL_SECONDS = 0.05


@contextmanager
def ended_when_hung(
    parts: Segment, recorder: OutcomeRecorder, *, leave: Callable[[int], None]
) -> Iterator[None]:
    """End all processes of the run, each by `leave`, when what is done inside stands still.

    No collective gives up first: it would say that another process is gone, and leave no stacks.
    """
    alarm = Alarm(parts, recorder, leave=leave)
    parts.world.on_main(alarm.forget)
    with ExitStack() as held:
        held.enter_context(collectives_wait_for_ever())
        if parts.config.compute.compile:
            held.enter_context(compiling_is_slow(parts.watchdog))
        lost = held.enter_context(peers_watched(parts.world))
        held.enter_context(parts.watchdog.watching(alarm.ring, called=alarm.called, lost=lost))
        try:
            yield
        except StoppedError:
            _leave_together(parts)
            raise
        _leave_together(parts)


def _leave_together(parts: Segment) -> None:
    """Nobody ends before the others are done with what is watched: they would seem to be left alone."""
    with parts.watchdog.slow_work():
        parts.world.wait()


class Alarm:
    """The end of a run that hangs."""

    def __init__(self, parts: Segment, recorder: OutcomeRecorder, *, leave: Callable[[int], None]) -> None:
        """`leave` is given the exit code, ends the process and does not return."""
        self._parts, self._recorder, self._leave = parts, recorder, leave
        self._logs = parts.directory.logs
        self._sign = self._logs / "hang-suspected"

    def forget(self) -> None:
        """Remove the sign of a run that was killed while it said why it ended."""
        self._sign.unlink(missing_ok=True)

    def called(self) -> bool:
        """Whether a process of the run has noticed a hang."""
        return self._sign.exists()

    def ring(self, still: Standstill) -> None:
        """Leave the stacks, put the hang on record, end the process with exit code 1."""
        last_resort = threading.Timer(_END_SECONDS, self._leave, (int(ExitCode.NO),))
        last_resort.daemon = True
        last_resort.start()
        noticed: dict[str, Any] = {
            "rank": self._parts.world.rank,
            "seconds": round(still.seconds, 1),
            "limit_seconds": round(still.limit, 1),
            **({"lost": list(still.lost)} if still.lost else {}),
        }
        _in_time(lambda: self._call_the_others(noticed))
        _in_time(lambda: self._leave_stacks(noticed))
        _in_time(lambda: _leave_collectives(self._logs, self._parts.world.rank, self._parts.device))
        if self._parts.world.is_main:
            self._record(noticed)
        else:
            _wait(_RECORD_SECONDS, lambda: not self.called())
        self._leave(int(ExitCode.NO))

    def _call_the_others(self, noticed: dict[str, Any]) -> None:
        """Set the sign; where it is set, `noticed` becomes what it says: who noticed, after how long."""
        try:
            if self.called():
                noticed.update(json.loads(self._sign.read_bytes()))
            else:
                write_json_atomically(self._sign, noticed)
        except (OSError, ValueError) as error:
            _logger.warning("%s: %s", self._sign, error)

    def _leave_stacks(self, noticed: dict[str, Any]) -> None:
        """The stacks of all threads; on a full disk, to stderr."""
        rank = self._parts.world.rank
        try:
            with self._stacks(rank).open("a", encoding="utf-8") as file:
                file.write(
                    f"\n{time.strftime('%Y-%m-%dT%H:%M:%S%z')} rank {rank}, pid {os.getpid()}, after step "
                    f"{self._parts.state.step}: a hang was suspected: {json.dumps(noticed)}\n"
                )
                file.flush()
                faulthandler.dump_traceback(file)
        except OSError:
            faulthandler.dump_traceback(sys.stderr)

    def _record(self, noticed: dict[str, Any]) -> None:
        world, step = self._parts.world, self._parts.state.step
        lost = noticed.get("lost", [])
        _wait(_GATHER_SECONDS, lambda: len(self._stacks_left()) == world.size - len(lost))
        files = [f"logs/{path.name}" for path in self._stacks_left()]
        cause = f"after the end of rank {', '.join(map(str, lost))} " if lost else ""
        mend = "docs/runbooks/recovery.md#hung says how to read them; once the cause is mended"
        failure = Failure(Kind.HANG, step + 1, mend)
        message = (
            f"Step {step + 1}: {cause}nothing moved for {noticed['seconds']} s (rank {noticed['rank']} "
            f"noticed), so the run was ended. The stacks of all threads: {', '.join(files)}.\n"
            f"{way_on(failure, self._parts.directory)}"
        )
        error = TrainingFailedError(message)
        error.failure = failure
        _in_time(lambda: self._parts.event("hang_suspected", step=step, **noticed, files=files))
        _in_time(lambda: self._recorder.record(error))
        _in_time(self.forget)
        _in_time(lambda: _logger.error("%s", message))

    def _stacks(self, rank: int) -> Path:
        return self._logs / f"hang-rank-{rank}.txt"

    def _stacks_left(self) -> list[Path]:
        """The files that were written since the hang was noticed; those of earlier hangs are older."""
        if not self._sign.exists():
            return []
        noticed = self._sign.stat().st_mtime_ns
        paths = [self._stacks(rank) for rank in range(self._parts.world.size)]
        return [path for path in paths if path.exists() and path.stat().st_mtime_ns >= noticed]


def _leave_collectives(folder: Path, rank: int, device: torch.device) -> None:
    """What torch's flight recorder kept of the last collectives: NCCL's as its `fr_trace` reads it."""
    if not dist.is_initialized():
        return
    from torch._C import _distributed_c10d as c10d

    recorders = {f"hang-gloo-rank-{rank}.json": "_dump_fr_trace_json"}
    if device.type == "cuda":
        recorders[f"hang-nccl-rank-{rank}"] = "_dump_nccl_trace"
    for name, dump in recorders.items():
        if hasattr(c10d, dump):
            write_bytes_atomically(folder / name, getattr(c10d, dump)())


def _in_time(part: Callable[[], None]) -> None:
    """Do a part of the end in a thread of its own; go on when it is done, has failed or takes too long."""

    def work() -> None:
        try:
            part()
        except (TrainyardError, OSError) as error:
            _logger.warning("%s", error)

    thread = threading.Thread(target=work, name="end", daemon=True)
    thread.start()
    thread.join(_PART_SECONDS)


def _wait(seconds: float, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
