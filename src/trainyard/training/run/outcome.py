"""Write how a run ended into `run.json`, whatever happened: done, stopped, failed or a bug.

A process that is killed writes nothing; such a run is recognised by a `run.json` without an outcome.
"""

import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from trainyard.errors import ExitCode, RecordError, StoppedError, TrainingFailedError, TrainyardError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.failure import failure_of
from trainyard.run.identity import write_outcome
from trainyard.run.records import append_event, ending_event, read_rows
from trainyard.training.run.run_context import RunContext
from trainyard.training.runtime.world import explain_lost_peers

_logger = logging.getLogger(__name__)


class OutcomeRecorder:
    """A context around the training: removes an old outcome at the start, writes the new one at the end."""

    def __init__(self, context: RunContext, report: Callable[[Mapping[str, Any]], None]) -> None:
        """Only the main process writes and reports; all processes gather a sharded state for its digests."""
        self._context, self._report = context, report
        self._directory, self._state = context.directory, context.state
        self.sample: str | None = None
        self.outcome: dict[str, Any] = {}

    def __enter__(self) -> "OutcomeRecorder":
        if self._context.world.is_main:
            write_outcome(self._directory.run_file, None)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.record(error)

    def record(self, error: BaseException | None) -> None:
        """Write the outcome of a training that ended with `error`, or with success if that is None.

        The state of a stopped run is hashed only if that is quick, because hashing a large one would use up
        the grace period. The SHA-256 of the checkpoint's manifest is always recorded; the manifest lists the
        digests of all files.

        Raises TrainingFailedError, which is then the outcome, when another process is lost before the digests
        of a sharded state are computed.
        """
        status, exit_code, reason = _verdict(error)
        facts = {"status": status, "exit_code": int(exit_code), "reason": reason, **self._figures()}
        if status == "failed" and error is not None:
            facts["failure"] = failure_of(error).to_json()
        self.outcome = {key: value for key, value in facts.items() if value is not None}
        if status == "succeeded" or (status == "stopped" and self._state.is_quick_to_hash()):
            try:
                with explain_lost_peers():
                    self.outcome["state_sha256"] = self._state.digests(hashed=self._context.world.is_main)
            except TrainingFailedError as lost:
                self.record(lost)
                raise
        if status != "failed":
            step = self._state.step
            manifest = self._directory.checkpoint(step) / MANIFEST_NAME
            if manifest.is_file():
                self.outcome["checkpoint"] = {"step": step, "manifest_sha256": sha256_of_file(manifest)}
        if not self._context.world.is_main:
            return
        try:
            event = ending_event(status, int(exit_code))
            append_event(
                self._directory.events_file, event, step=self._state.step, status=status, reason=reason
            )
            write_outcome(self._directory.run_file, self.outcome)
        except (OSError, RecordError) as problem:
            message = f"{self._directory.run_file}: the outcome could not be written ({problem})"
            if error is None:
                raise RecordError(message) from problem
            _logger.warning("%s", message)
        self._report(self.outcome)

    def _figures(self) -> dict[str, Any]:
        rows = read_rows(self._directory.metrics_file)
        losses = [row["loss"] for row in rows if "loss" in row]
        validated = [row for row in rows if "val_loss" in row]
        last = validated[-1] if validated else {}
        return {
            "steps": self._state.step,
            "first_loss": losses[0] if losses else None,
            "final_loss": losses[-1] if losses else None,
            "validation_loss": last.get("val_loss"),
            "bits_per_byte": last.get("val_bits_per_byte"),
            "tokens": self._state.step * self._context.length.tokens_per_step,
            "seconds": round(self._state.seconds, 3),
            "sample": self.sample,
            "grace_seconds_needed": _tenths(self._context.stop.needed),
            "seconds_since_signal": _tenths(self._context.stop.since_signal()),
            "finished": time.time(),
        }


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _verdict(error: BaseException | None) -> tuple[str, int, str]:
    """Return the status, the exit code and the reason of a training that ended with `error`."""
    if error is None:
        return "succeeded", ExitCode.DONE, "all steps done"
    if isinstance(error, KeyboardInterrupt):
        return "failed", ExitCode.INTERRUPTED, "interrupted twice, before it could save"
    reason = (str(error) or type(error).__name__).splitlines()[0]
    status = "stopped" if isinstance(error, StoppedError) else "failed"
    return status, error.exit_code if isinstance(error, TrainyardError) else ExitCode.BUG, reason
