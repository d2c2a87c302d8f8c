"""Schedule the saves of a segment: at most one at a time; old checkpoints are removed after each.

After a signal it only saves: it removes nothing, and starts no save for which the grace period is too short.

`checkpoint` writes one; `loop` decides at which steps one is due.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType

from trainyard.errors import (
    CheckpointError,
    CostLimitError,
    InterruptedRunError,
    RecordError,
    StoppedError,
    TrainingFailedError,
)
from trainyard.run.checkpoint_retention import complete_steps, remove_old_checkpoints
from trainyard.run.suggested_commands import from_here, made_by, resume_command
from trainyard.training.checkpoint.checkpoint import PendingSave, SavedCheckpoint
from trainyard.training.checkpoint.shards import Shares, share_out
from trainyard.training.checkpoint.writer_process import Engine, PendingResult, open_engine
from trainyard.training.run.run_context import RunContext
from trainyard.training.runtime.stop_signals import COST_LIMIT, INTERRUPT

_GUESS_SECONDS = 5.0  # assumed duration of a save before the first one was measured
# From the last checkpoint to the exit code: the outcome is written and the processes exit.
_ENDING_SECONDS = 2.0
_logger = logging.getLogger(__name__)


class Saver:
    """The checkpoints of one segment. A context: leaving it waits for the save under way, if it still can."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._state = context.state
        self._last_saved_step = last = context.state.step or None
        self._complete_step = last if last in complete_steps(context.directory) else None
        """The step of the newest complete checkpoint; None if there is none yet."""
        self._engine = Engine()
        self._shares: Shares | None = None
        self._pending: PendingSave | None = None
        self._removing: PendingResult[list[int]] | None = None
        self._waited = 0.0
        """Seconds that training waited for the save under way."""
        self._held_up = 0.0
        self._seconds = _GUESS_SECONDS
        self._is_measured, self._has_warned = False, False

    @property
    def seconds(self) -> float:
        """Seconds to finish the save under way and save once more, estimated from the last save."""
        return self._seconds * (2 if self._pending else 1)

    def save(self, *, wait: bool = False) -> None:
        """Save the state of this step, unless that was started already; with `wait` until it is complete.

        A save under way is finished first. With `wait` nothing is copied. Raises CheckpointError, or
        TrainingFailedError when a weight is not finite; the run must then end.
        """
        with self._context.show_current_work(f"saving step {self._state.step}"):
            if self._last_saved_step != self._state.step:
                self.finish()
                with self._count_wait():
                    # The optimizer's moments exist from the start, so all saves have the same tensors.
                    self._shares = self._shares or share_out(self._state.tensors(), self._context.world)
                    engine = Engine() if wait else self._engine
                    self._pending = PendingSave(self._context, self._shares, engine)
                    self._last_saved_step = self._state.step
            if wait or not self._engine.is_background:
                self.finish()

    def stop(self) -> StoppedError:
        """Save this step, or only finish the save under way if the grace period has no time for both.

        If it has no time for any save, the run ends at the newest complete checkpoint. Returns the error to
        raise, which names the step at which the run ends.
        """
        # The earliest signal of any process counts for the grace period of all.
        since = [
            seconds for seconds in self._context.world.gather(self._context.stop.since_signal()) if seconds
        ]
        if since:
            self._context.stop.adopt_signal(max(since))
        state, pending, reached, left = self._state, self._pending, self._state.step, ""
        if pending is not None and pending.step != reached and not self._has_time(2, pending.seconds):
            self.finish()
            state.step, state.is_of_step = pending.step, False
            left = f" The grace period had no time left to save step {reached} too."
        elif pending is None and self._complete_step not in (None, reached) and not self._has_time(1):
            assert self._complete_step is not None
            state.step, state.is_of_step = self._complete_step, False
            left = f" The grace period had no time left to save step {reached}."
        else:
            self.save(wait=True)
        directory, stop = self._context.directory, self._context.stop
        command = resume_command(directory.path, command_line=made_by())
        kinds = {COST_LIMIT: CostLimitError, INTERRUPT: InterruptedRunError}
        kind = kinds.get(stop.reason or "", StoppedError)
        first = "raise the limit, then: " if kind is CostLimitError else ""
        return kind(
            f"Stopped at step {state.step} of {self._context.length.steps}: {stop.reason}. "
            f"{from_here(directory.checkpoint(state.step))} is complete.{left}\nTo resume: {first}{command}"
        )

    def wait_until_staged(self) -> None:
        """Wait until the state may change; called right before the optimizer changes it."""
        if self._pending is not None:
            with self._count_wait(), self._record_failure():
                self._pending.wait_until_staged()

    def poll(self) -> None:
        """Advance the save under way, without waiting; called between two steps."""
        if self._pending is not None:
            self._advance(self._pending, wait=False)
        elif self._removing is not None and self._removing.done():
            self._report_removed()

    def finish(self) -> None:
        """Wait for the save under way, and for the removal of old checkpoints."""
        if self._pending is not None:
            self._advance(self._pending, wait=True)
        self._report_removed()

    def take_held_up_seconds(self) -> float:
        """Return the seconds that saves have held up training since the last call."""
        seconds, self._held_up = self._held_up, 0.0
        return seconds

    def __enter__(self) -> "Saver":
        # A kill after a save may have left checkpoints that are no longer kept.
        self._remove_up_to(self._state.step, Engine())
        self._report_removed()
        self._engine = open_engine(self._context.config.checkpointing.mode)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        done = error is None or isinstance(error, StoppedError)
        try:
            if not done and isinstance(error, Exception) and self._pending is not None:
                with suppress(CheckpointError, TrainingFailedError, RecordError), self._record_failure():
                    self._conclude(self._pending.finish_alone(), Engine())
        finally:
            self._engine.close(at_once=not done)

    def report_grace(self, slowest_step: float) -> None:
        """After a measured save, agree on how long a stop takes; warn if the grace period is shorter."""
        if not self._is_measured:
            return
        self._is_measured = False
        stop = self._context.stop
        saves = self._seconds * (2 if self._engine.is_background else 1)
        needed = max(self._context.world.gather(slowest_step + saves + _ENDING_SECONDS))
        stop.needed = max(needed, stop.needed or 0.0)
        if stop.needed > stop.grace and not self._has_warned:
            self._has_warned = True
            self._context.record_event(
                "grace_too_short", grace_seconds=stop.grace, needed_seconds=round(stop.needed, 1)
            )
            if self._context.world.is_main:
                _logger.warning(
                    "A stop takes up to %.0f s here (a step of %.1f s and saves of %.1f s), and the process "
                    "is killed %.0f s after a signal. Set --grace, and terminationGracePeriodSeconds of the "
                    "pod, to %.0fs or more",
                    *(stop.needed, slowest_step, saves, stop.grace, math.ceil(1.5 * stop.needed)),
                )

    def _has_time(self, saves: int, underway_seconds: float = 0.0) -> bool:
        """Return whether all processes can save this many times before they are killed.

        The save under way, if it is one of them, has taken `underway_seconds` so far.
        """
        needed = saves * max(self._seconds, underway_seconds)
        return self._context.world.all(needed <= self._context.stop.seconds_left())

    def _advance(self, pending: PendingSave, *, wait: bool) -> None:
        with self._count_wait(), self._record_failure():
            saved = pending.advance(wait=wait)
        self._conclude(saved, Engine() if wait else self._engine)

    def _conclude(self, saved: SavedCheckpoint | None, remover: Engine) -> None:
        if saved is None or self._pending is None:
            return
        step, self._pending = self._pending.step, None
        self._seconds, self._complete_step, self._is_measured = max(saved.awaited_seconds, 0.1), step, True
        self._context.record_event(
            "checkpoint_saved",
            step=step,
            bytes=saved.size,
            seconds=round(self._waited, 4),
            complete_after_seconds=round(saved.seconds, 4),
            manifest_sha256=saved.manifest_sha256,
        )
        self._waited = 0.0
        self._remove_up_to(step, remover)

    def _remove_up_to(self, newest: int, remover: Engine) -> None:
        if not self._context.world.owns_folder or self._context.stop.reason is not None:
            return
        kept = self._context.config.checkpointing
        remove = partial(
            remove_old_checkpoints,
            self._context.directory,
            kept.keep_last,
            newest=newest,
            keep_every=kept.keep_every,
        )
        self._removing = remover.start(lambda: remover.do(remove))

    def _report_removed(self) -> None:
        if self._removing is None:
            return
        removing, self._removing = self._removing, None
        for old in removing.result():
            keep = self._context.config.checkpointing.keep_last
            self._context.record_event("checkpoint_removed", step=old, keep_last=keep)

    @contextmanager
    def _count_wait(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with self._context.watchdog.slow_work():
                yield
        finally:
            seconds = time.perf_counter() - start
            self._waited += seconds
            self._held_up += seconds

    @contextmanager
    def _record_failure(self) -> Iterator[None]:
        """Record a failure to save, and forget the save under way."""
        step = self._pending.step if self._pending else None
        try:
            yield
        except (CheckpointError, TrainingFailedError) as error:
            self._pending = None
            if isinstance(error, CheckpointError):
                with suppress(RecordError):
                    self._context.record_event("checkpoint_failed", step=step, reason=str(error))
            raise
