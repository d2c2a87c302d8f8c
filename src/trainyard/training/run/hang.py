"""End a run that hangs: every process writes its stacks to `logs/`, then the run ends.

    first to notice --> logs/hang-suspected --> all: logs/hang-rank-R.txt --> main: event, outcome --> exit 1

The main thread may be stuck anywhere, even in a collective, and never return. So everything here runs in the
watchdog's thread, and the process ends without a collective. The main process removes `logs/hang-suspected`
when everything is recorded; then the others exit. Ending may need the same resource in which
the main thread is stuck, such as a terminal that accepts no output. So each part has a time limit of seconds.

A process that waits in NCCL or for a lock does not notice that another one has ended, so it polls the kernel.
"""

import faulthandler
import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainyard.errors import ExitCode, StoppedError, TrainingFailedError, TrainyardError
from trainyard.run.atomic_files import write_bytes_atomically, write_json_atomically
from trainyard.run.failure import Failure, FailureKind
from trainyard.run.run_lock import machine
from trainyard.training.checkpoint.failure_advice import build_error
from trainyard.training.run.outcome import OutcomeRecorder
from trainyard.training.run.run_context import RunContext
from trainyard.training.runtime.watchdog import Standstill, allow_slow_compilation
from trainyard.training.runtime.world import CONTROL_SECONDS, World

_logger = logging.getLogger(__name__)
_GATHER_SECONDS = 5.0  # the main process waits this long for the stacks of the others
# The others wait this long for the main process, and that for its outcome: without one it looks killed.
_RECORD_SECONDS = 10.0
_PART_SECONDS = 3.0  # each part of the end may take this long; then the next part starts
# The process exits after this time even if parts are not done; torchrun would kill it a little later.
_END_SECONDS = 25.0
_POLL_SECONDS = 0.05
_FOR_EVER_DAYS = 365


@contextmanager
def end_when_hung(
    context: RunContext, recorder: OutcomeRecorder, *, leave: Callable[[int], None]
) -> Iterator[None]:
    """End all processes of the run, each by `leave`, when the body hangs.

    Collectives have no time limit meanwhile. Otherwise a collective would fail first with a message that
    another process is gone, and there would be no stacks.
    """
    alarm = Alarm(context, recorder, leave=leave)
    context.world.run_on_main(alarm.forget)
    with ExitStack() as held:
        held.enter_context(remove_collective_limit())
        if context.config.compute.compile:
            held.enter_context(allow_slow_compilation(context.watchdog))
        lost = held.enter_context(watch_peers(context.world))
        held.enter_context(context.watchdog.watch(alarm.ring, is_raised=alarm.is_raised, lost=lost))
        try:
            yield
        except StoppedError:
            _wait_for_all(context)
            raise
        _wait_for_all(context)


def _wait_for_all(context: RunContext) -> None:
    """Wait for all processes. One that exited earlier would appear lost to the others, which still watch."""
    with context.watchdog.slow_work():
        context.world.gather(None)


@contextmanager
def remove_collective_limit() -> Iterator[None]:
    """Remove the time limit of collectives, because the watchdog watches; afterwards it is half an hour.

    The death of a process is still noticed: its connections close, and torchrun ends the other processes.
    """
    _limit_collectives(timedelta(days=_FOR_EVER_DAYS))
    try:
        yield
    finally:
        _limit_collectives(timedelta(seconds=CONTROL_SECONDS))


def _limit_collectives(limit: timedelta) -> None:
    """Set the time limit of every group, including those of device meshes.

    PyTorch has no public function for this; torchtitan uses this private one.
    """
    if dist.is_initialized():
        for group in list(dist.distributed_c10d._world.pg_map):
            dist.set_timeout(limit, group)


@contextmanager
def watch_peers(world: World) -> Iterator[Callable[[], tuple[int, ...]]]:
    """Yield a function that returns the ranks of this machine that have ended; any thread may call it.

    All processes must enter this together. The kernel knows only the processes of this machine.
    """
    places = world.gather((machine(), os.getpid()))
    ended: set[int] = set()
    waiting = select.poll()
    ranks: dict[int, int] = {}
    with ExitStack() as held:
        for rank, (place, pid) in enumerate(places):
            if rank == world.rank or place != machine() or not hasattr(os, "pidfd_open"):
                continue
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                ended.add(rank)
                continue
            held.callback(os.close, handle)
            waiting.register(handle, select.POLLIN)
            ranks[handle] = rank
        yield lambda: tuple(sorted(ended | {ranks[handle] for handle, _ in waiting.poll(0)}))


class Alarm:
    """Ends a run that hangs."""

    def __init__(
        self, context: RunContext, recorder: OutcomeRecorder, *, leave: Callable[[int], None]
    ) -> None:
        """`leave` takes the exit code, ends the process and does not return."""
        self._context, self._recorder, self._leave = context, recorder, leave
        self._logs = context.directory.logs
        self._sign = self._logs / "hang-suspected"

    def forget(self) -> None:
        """Remove `hang-suspected` of an earlier segment that was killed while it ended."""
        self._sign.unlink(missing_ok=True)

    def is_raised(self) -> bool:
        """Return whether a process of the run has noticed a hang."""
        return self._sign.exists()

    def ring(self, still: Standstill) -> None:
        """Write the stacks, record the hang, and end the process with exit code 1."""
        last_resort = threading.Timer(_END_SECONDS, self._leave, (int(ExitCode.NO),))
        last_resort.daemon = True
        last_resort.start()
        noticed: dict[str, Any] = {
            "rank": self._context.world.rank,
            "seconds": round(still.seconds, 1),
            "limit_seconds": round(still.limit, 1),
            **({"lost": list(still.lost)} if still.lost else {}),
        }
        _run_in_time(lambda: self._alert_others(noticed))
        _run_in_time(lambda: self._write_stacks(noticed))
        _run_in_time(lambda: _write_collectives(self._logs, self._context.world.rank, self._context.device))
        if self._context.world.is_main:
            self._record(noticed)
        else:
            _wait(_RECORD_SECONDS, lambda: not self.is_raised())
        self._leave(int(ExitCode.NO))

    def _alert_others(self, noticed: dict[str, Any]) -> None:
        """Write `hang-suspected`. If another process has written it, copy its facts into `noticed`."""
        try:
            if self.is_raised():
                noticed.update(json.loads(self._sign.read_bytes()))
            else:
                write_json_atomically(self._sign, noticed)
        except (OSError, ValueError) as error:
            _logger.warning("%s: %s", self._sign, error)

    def _write_stacks(self, noticed: dict[str, Any]) -> None:
        """Write the stacks of all threads to the log; to stderr if the disk is full."""
        rank = self._context.world.rank
        try:
            with self._stacks(rank).open("a", encoding="utf-8") as file:
                file.write(
                    f"\n{time.strftime('%Y-%m-%dT%H:%M:%S%z')} rank {rank}, pid {os.getpid()}, after step "
                    f"{self._context.state.step}: a hang was suspected: {json.dumps(noticed)}\n"
                )
                file.flush()
                faulthandler.dump_traceback(file)
        except OSError:
            faulthandler.dump_traceback(sys.stderr)

    def _record(self, noticed: dict[str, Any]) -> None:
        world, step = self._context.world, self._context.state.step
        lost = noticed.get("lost", [])
        _wait(_GATHER_SECONDS, lambda: len(self._written_stacks()) == world.size - len(lost))
        files = [f"logs/{path.name}" for path in self._written_stacks()]
        cause = f"after the end of rank {', '.join(map(str, lost))} " if lost else ""
        fix = "docs/runbooks/recovery.md#hung explains how to read them; once the cause is fixed"
        failure = Failure(FailureKind.HANG, step + 1, fix)
        message = (
            f"Step {step + 1}: {cause}nothing moved for {noticed['seconds']} s (rank {noticed['rank']} "
            f"noticed), so the run was ended. The stacks of all threads: {', '.join(files)}."
        )
        error = build_error(TrainingFailedError, message, failure, self._context.directory)
        _run_in_time(lambda: self._context.record_event("hang_suspected", step=step, **noticed, files=files))
        _run_in_time(lambda: self._recorder.record(error), _RECORD_SECONDS)
        _run_in_time(self.forget)
        _run_in_time(lambda: _logger.error("%s", error))

    def _stacks(self, rank: int) -> Path:
        return self._logs / f"hang-rank-{rank}.txt"

    def _written_stacks(self) -> list[Path]:
        """The stack files written since the hang was noticed, without those of earlier hangs."""
        if not self._sign.exists():
            return []
        noticed = self._sign.stat().st_mtime_ns
        paths = [self._stacks(rank) for rank in range(self._context.world.size)]
        return [path for path in paths if path.exists() and path.stat().st_mtime_ns >= noticed]


def _write_collectives(folder: Path, rank: int, device: torch.device) -> None:
    """Write the last collectives from PyTorch's flight recorder; `fr_trace` reads the file of NCCL."""
    if not dist.is_initialized():
        return
    from torch._C import _distributed_c10d as c10d

    recorders = {f"hang-gloo-rank-{rank}.json": "_dump_fr_trace_json"}
    if device.type == "cuda":
        recorders[f"hang-nccl-rank-{rank}"] = "_dump_nccl_trace"
    for name, dump in recorders.items():
        if hasattr(c10d, dump):
            write_bytes_atomically(folder / name, getattr(c10d, dump)())


def _run_in_time(part: Callable[[], None], seconds: float | None = None) -> None:
    """Run a part of the end in its own thread; return when it is done, has failed or takes too long."""

    def work() -> None:
        try:
            part()
        except (TrainyardError, OSError) as error:
            _logger.warning("%s", error)

    thread = threading.Thread(target=work, name="end", daemon=True)
    thread.start()
    thread.join(_PART_SECONDS if seconds is None else seconds)


def _wait(seconds: float, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
