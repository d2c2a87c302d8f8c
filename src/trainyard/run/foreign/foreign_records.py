"""Write the records of another program's run: identity first, outcome last, events between.

The outcome says `succeeded` only when the program ended with 0 on every node and its own log shows the last
step.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError, ExitCode
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import history_of, read_run, write_identity, write_outcome
from trainyard.run.records import Row, append_event, keep_rows_up_to, read_rows

_NOT_RESUMED = "not_resumed"
"""The event of an attempt that prints other rows of steps up to the checkpoint that it was to resume from."""


@dataclass(frozen=True)
class TakenCheckpoint:
    """A checkpoint of the run directory."""

    step: int
    manifest_sha256: str


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    exit_code: int
    told: bool
    """Whether it was asked to stop."""
    others: str | None = None
    """Why not all other nodes ended with 0; None when they did."""
    checkpoint: TakenCheckpoint | None = None
    skipped: tuple[str, ...] = ()
    """Why newer checkpoints of the program do not count."""


def begin(
    directory: RunDirectory,
    run_id: str,
    facts: Mapping[str, Any],
    config: str,
    *,
    resumed_at: int | None,
    state: str | None = None,
) -> None:
    """Write the records of a run that starts, or of one that resumes from its checkpoint of `resumed_at`.

    A resumed run keeps its id and its time of creation; its record says what this attempt was asked, and
    `history` has the origin of the attempts before. `state` is that of the checkpoint, by `state_of`. Raises
    ConfigError if no step is left to do, but the run was asked something else.
    """
    before = read_run(directory.run_file) if directory.run_file.exists() else {}
    _require_resumable(directory, before, facts, resumed_at)
    directory.create()
    # Later steps are done again, or were lost: only what this attempt prints shows that they were done.
    shown = 0 if resumed_at is None or has_other_rows(directory, state) else resumed_at
    keep_rows_up_to(directory.metrics_file, shown)
    kept: dict[str, Any] = {}
    if before:
        names = ("created", "parent", "model") if resumed_at else ("created",)
        kept = {key: before[key] for key in names if key in before}
        kept["history"] = history_of(before, until=resumed_at or 0)
        if resumed_at and "log_steps" not in before.get("plan", {}):  # of a version that did not record it
            kept["plan"] = {key: value for key, value in facts.get("plan", {}).items() if key != "log_steps"}
    write_identity(directory.run_file, str(before.get("run_id", run_id)), {**facts, **kept})
    write_bytes_atomically(directory.config_file, config.encode())
    if resumed_at is None:
        append_event(directory.events_file, "started")
    else:
        append_event(directory.events_file, "resumed", step=resumed_at, state=state)


def _require_resumable(
    directory: RunDirectory, before: Mapping[str, Any], facts: Mapping[str, Any], resumed_at: int | None
) -> None:
    """Refuse a checkpoint with no step left to do, unless it is of a run that was asked the same.

    Rows of another cadence are refused too: nobody could tell which of them are missing.
    """
    plan = facts.get("plan", {})
    steps, every = plan.get("steps", 0), plan.get("log_steps")
    if not steps or resumed_at is None:
        return
    if (logged := before.get("plan", {}).get("log_steps", every)) != every:
        raise ConfigError(
            f"monitoring.log_steps: {every}, but the rows in {directory.path} were logged with {logged}. Set "
            f"it to {logged}, or choose another run directory. Nothing was started."
        )
    if resumed_at < steps:
        return
    if resumed_at > steps:
        raise ConfigError(
            f"{directory.path} has a checkpoint of step {resumed_at:,}, beyond the {steps:,} steps that were "
            "asked for. Raise training.max_steps, or choose another run directory. Nothing was started."
        )
    finished = before.get("outcome", {}).get("status") == "succeeded"
    asked = ("config_sha256", "program_sha256")  # older runs have no digest of the program
    if finished and any(before.get(name, facts.get(name)) != facts.get(name) for name in asked):
        raise ConfigError(
            f"{directory.path} holds a finished run of another configuration ({directory.config_file}) or "
            "command. Choose another run directory, or raise training.max_steps to resume it. Nothing was "
            "started."
        )


def note_other_rows(directory: RunDirectory, step: int) -> None:
    """Record that this attempt printed another row of `step` than before, so it did not resume after it."""
    append_event(directory.events_file, _NOT_RESUMED, step=step)


def has_other_rows(directory: RunDirectory, state: str | None) -> bool:
    """Return whether steps were trained again since a checkpoint had this state: its rows were replaced."""
    at_start = None
    for event in read_rows(directory.events_file):
        if event.get("event") in ("started", "resumed"):
            at_start = event.get("state")
        elif event.get("event") == _NOT_RESUMED and state is not None and at_start == state:
            return True
    return False


def finish(directory: RunDirectory, end: ProgramEnd, *, seconds: float) -> int:
    """Write the outcome and the last events; return the exit code of the run."""
    rows = read_rows(directory.metrics_file)
    planned = int(read_run(directory.run_file)["plan"]["steps"])
    outcome = program_outcome(end, rows, planned)
    for note in end.skipped:
        append_event(directory.events_file, "checkpoint_rejected", reason=note)
    if "checkpoint" in outcome:
        append_event(directory.events_file, "checkpoint_saved", **outcome["checkpoint"])
    times = {"seconds": round(seconds, 3), "finished": time.time()}
    write_outcome(directory.run_file, {**outcome, **times})
    ending = "preempted" if outcome["status"] == "stopped" else "finished"
    append_event(directory.events_file, ending, status=outcome["status"], step=outcome["steps"])
    return int(outcome["exit_code"])


def program_facts(
    provenance: Mapping[str, Any],
    *,
    recipe: str,
    seed: int,
    config_sha256: str,
    plan: Mapping[str, int],
    hardware: Mapping[str, int],
) -> dict[str, Any]:
    """Return the facts that `run.json` of another program has before it ends; nothing else is known of it.

    `plan` has the steps and how often they are logged, `hardware` the processes.
    """
    return {
        **provenance,
        "recipe": recipe,
        "seed": seed,
        "config_sha256": config_sha256,
        "plan": dict(plan),
        "hardware": dict(hardware),
    }


def program_outcome(end: ProgramEnd, rows: list[Row], planned: int) -> dict[str, Any]:
    """Return the outcome of a program's run, without its times; unknown facts are absent."""
    status, code, reason = _verdict(end, rows, planned)
    outcome: dict[str, Any] = {
        "status": status,
        "exit_code": code,
        "reason": reason,
        "steps": int(rows[-1]["step"]) if rows else 0,
        **_losses(rows),
    }
    if end.checkpoint is not None:
        named = {"step": end.checkpoint.step, "manifest_sha256": end.checkpoint.manifest_sha256}
        outcome["checkpoint"] = named
    return {key: value for key, value in outcome.items() if value is not None}


def _verdict(end: ProgramEnd, rows: list[Row], planned: int) -> tuple[str, int, str | None]:
    """Status, exit code and reason."""
    done = int(rows[-1]["step"]) if rows else 0
    shown = f"step {done:,} of {planned:,} in its log" if rows else "no step in its log"
    if end.exit_code == 0 and done == planned:
        if end.others is not None:
            return "failed", ExitCode.NO, end.others
        return "succeeded", ExitCode.DONE, None
    if end.told and end.checkpoint is not None:
        newest = f"asked to stop; its newest complete checkpoint is of step {end.checkpoint.step:,}"
        return "stopped", ExitCode.STOPPED, "; ".join((newest, *end.skipped))
    reason = "; ".join((f"the program ended with exit code {end.exit_code} after {shown}", *end.skipped))
    return "failed", end.exit_code or ExitCode.NO, reason


def _losses(rows: list[Row]) -> dict[str, Any]:
    losses = [row["loss"] for row in rows if "loss" in row]
    if not losses or not all(isinstance(loss, int | float) for loss in losses):
        return {}
    return {"first_loss": losses[0], "final_loss": losses[-1]}
