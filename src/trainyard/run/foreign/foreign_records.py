"""Write the records of another program's run: identity first, outcome last, events between.

The outcome says `succeeded` only when the program ended with 0 on every node and its own log shows the last
step.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ExitCode
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.foreign.own_checkpoint import TakenCheckpoint
from trainyard.run.identity import read_run, write_identity, write_outcome
from trainyard.run.records import Row, append_event, keep_rows_up_to, read_rows


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    exit_code: int
    told: bool
    """Whether it was asked to stop."""
    others: str | None = None
    """Why not all other nodes ended with 0; None when they did."""
    checkpoint: TakenCheckpoint | None = None


def begin(
    directory: RunDirectory, run_id: str, facts: Mapping[str, Any], config: str, *, resumed_at: int | None
) -> None:
    """Write the records of a run that starts, or of one that goes on from its checkpoint of `resumed_at`."""
    directory.create()
    # Later steps are done again, or were lost: only what this attempt prints shows that they were done.
    keep_rows_up_to(directory.metrics_file, resumed_at or 0)
    if not directory.run_file.exists():
        write_bytes_atomically(directory.config_file, config.encode())
        write_identity(directory.run_file, run_id, facts)
    else:
        write_outcome(directory.run_file, None)
    if resumed_at is None:
        append_event(directory.events_file, "started")
    else:
        append_event(directory.events_file, "resumed", step=resumed_at)


def finish(directory: RunDirectory, end: ProgramEnd, *, seconds: float) -> int:
    """Write the outcome and the last events; return the exit code of the run."""
    rows = read_rows(directory.metrics_file)
    planned = int(read_run(directory.run_file)["plan"]["steps"])
    status, code, reason = _verdict(end, rows, planned)
    done = int(rows[-1]["step"]) if rows else 0
    outcome: dict[str, Any] = {
        "status": status,
        "exit_code": code,
        "reason": reason,
        "steps": done,
        "seconds": round(seconds, 3),
        "finished": time.time(),
        **_losses(rows),
    }
    if end.checkpoint is not None:
        named = {"step": end.checkpoint.step, "manifest_sha256": end.checkpoint.manifest_sha256}
        append_event(directory.events_file, "checkpoint_saved", **named)
        outcome["checkpoint"] = named
    write_outcome(directory.run_file, {key: value for key, value in outcome.items() if value is not None})
    ending = "preempted" if status == "stopped" else "finished"
    append_event(directory.events_file, ending, status=status, step=done)
    return code


def _verdict(end: ProgramEnd, rows: list[Row], planned: int) -> tuple[str, int, str | None]:
    """Status, exit code and reason."""
    done = int(rows[-1]["step"]) if rows else 0
    shown = f"step {done:,} of {planned:,} in its log" if rows else "no step in its log"
    if end.exit_code == 0 and done == planned:
        if end.others is not None:
            return "failed", ExitCode.NO, end.others
        return "succeeded", ExitCode.DONE, None
    if end.told and end.checkpoint is not None:
        reason = f"asked to stop; its newest checkpoint is of step {end.checkpoint.step:,}"
        return "stopped", ExitCode.STOPPED, reason
    if end.exit_code == 0:
        return "failed", ExitCode.NO, f"the program ended with exit code 0 after {shown}"
    return "failed", end.exit_code, f"the program ended with exit code {end.exit_code} after {shown}"


def _losses(rows: list[Row]) -> dict[str, Any]:
    losses = [row["loss"] for row in rows if "loss" in row]
    if not losses or not all(isinstance(loss, int | float) for loss in losses):
        return {}
    return {"first_loss": losses[0], "final_loss": losses[-1]}
