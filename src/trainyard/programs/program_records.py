"""Write the records of another program's run: identity first, outcome last, events between.

The outcome says `succeeded` only when the program ended with 0 on every node and its own log shows the last
step.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import ExitCode
from trainyard.programs.checkpoints.taken_checkpoint import TakenCheckpoint
from trainyard.programs.checkpoints.tensor_facts import Tensors
from trainyard.programs.observations import ProgramError
from trainyard.programs.sources import Source
from trainyard.run.atomic_files import write_bytes_atomically, write_json_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.failure import Failure, FailureKind
from trainyard.run.identity import history_of, read_run, write_identity, write_outcome
from trainyard.run.records import Row, append_event, ending_event, keep_rows_up_to, read_rows

_NOT_RESUMED = "not_resumed"
"""The event of an attempt that trains steps again which its checkpoint had done."""

PRINT_STEPS = (
    'print {"step": 10, "loss": 2.31} for each logged step, name a file with program.metrics, or call '
    "trainyard.log"
)
_NO_METRICS = f"no metrics were seen: {PRINT_STEPS}"
UNCHANGED_WEIGHTS = (
    "the training has changed no weight: check that the learning rate is not 0, that optimizer.step() is "
    "called after backward() and before zero_grad(), and that the optimizer has the model's parameters"
)
INTERRUPT = "SIGINT"
"""The cause of a stop by Ctrl-C, whose exit code is 130, with a checkpoint or without."""
COST_LIMIT = "limits.cost_usd"
"""The cause of a stop after which a run is not continued automatically."""


@dataclass(frozen=True)
class ProgramEnd:
    """The end of a program, and the known facts about its training."""

    exit_code: int
    stopped_by: str | None = None
    """The cause of its stop, such as `SIGTERM` or `the deadline`; None if it ended by itself."""
    others: str | None = None
    """Why the program failed on another node; None if it ended with 0 on all."""
    checkpoint: TakenCheckpoint | None = None
    skipped: tuple[str, ...] = ()
    """Why newer checkpoints of the program were not taken, a line each."""
    resumed_at: int = 0
    """The step that this attempt resumed after."""
    announced: int | None = None
    """The total of steps that the program itself reports."""
    fault: str | None = None
    """A fault that its rows show, such as a loss that is not finite."""
    vanished: str | None = None
    """The script of the process that trained, if the observer did not see it end."""
    weights: str | None = None
    """Why the tensors of its checkpoint cannot be those of a trained model."""
    problem: str | None = None
    """Why it could not be started."""
    fallback: tuple[str, str] | None = None
    """Why it was ended because it ran over TCP instead of a faster network, and the fix."""
    hang: str | None = None
    """The text about its hang, with the files of its stacks."""
    failure: Mapping[str, Any] = field(default_factory=dict)
    """Its class, its root error, and what the machine recorded, if it failed."""
    error: ProgramError | None = None
    """The exception that ended it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Members of its outcome that decide nothing here; an empty one is not known."""


def begin(
    directory: RunDirectory,
    run_id: str,
    facts: Mapping[str, Any],
    config: str,
    *,
    resumed_at: int | None,
    state: str | None = None,
    parent_sha256: str | None = None,
) -> None:
    """Write the records of a run that starts, or of one that resumes from its checkpoint of `resumed_at`.

    A resumed run keeps its id and its time of creation; its record has the request of this attempt, and
    `history` the origin of earlier attempts. `state` is the `state_of` the checkpoint.
    """
    before = read_run(directory.run_file) if directory.run_file.exists() else {}
    directory.create()
    # Only the rows that this attempt prints show that later steps were done.
    shown = -1 if resumed_at is None or has_other_rows(directory, state) else resumed_at
    keep_rows_up_to(directory.metrics_file, shown)
    kept: dict[str, Any] = {}
    if before:
        names = ("created", "parent", "model") if resumed_at else ("created",)
        kept = {key: before[key] for key in names if key in before}
        kept["history"] = history_of(before, until=resumed_at or 0)
        announced = before.get("plan", {}).get("announced_steps")
        if announced is not None:
            kept["plan"] = {**facts.get("plan", {}), "announced_steps": announced}
    write_identity(directory.run_file, str(before.get("run_id", run_id)), {**facts, **kept})
    write_bytes_atomically(directory.config_file, config.encode())
    if resumed_at is None:
        append_event(directory.events_file, "started")
    else:
        origin = {"state": state, "manifest_sha256": parent_sha256}
        append_event(directory.events_file, "resumed", step=resumed_at, **origin)


def note_trained_again(directory: RunDirectory, step: int) -> bool:
    """Record that this attempt trains `step` again, so that it did not resume; return whether that is so.

    It is not, if the attempt was given no checkpoint of `step` or a later one, or is known to train again. A
    program that counts from 0 prints the number of its checkpoint's step for the first step after it.
    """
    start, is_known = [({}, False), *_attempts(directory)][-1]
    given = start.get("step") or 0
    counts_from_zero = step == given and count_from_zero(read_rows(directory.metrics_file))
    if step > given or counts_from_zero or is_known:
        return False
    append_event(directory.events_file, _NOT_RESUMED, step=step)
    return True


def trains_again(directory: RunDirectory) -> bool:
    """Return whether the newest attempt trains steps again that the checkpoint which it got had done."""
    return any(is_again for _, is_again in _attempts(directory)[-1:])


def has_other_rows(directory: RunDirectory, state: str | None) -> bool:
    """Return whether an attempt that resumed from a checkpoint in this state trained earlier steps again."""
    attempts = _attempts(directory) if state is not None else []
    return any(is_again and start.get("state") == state for start, is_again in attempts)


def _attempts(directory: RunDirectory) -> list[tuple[Row, bool]]:
    """Return the event of each attempt's start, and whether it trained again."""
    found: list[tuple[Row, bool]] = []
    for event in read_rows(directory.events_file):
        if event.get("event") in ("started", "resumed"):
            found.append((event, False))
        elif event.get("event") == _NOT_RESUMED and found:
            found[-1] = (found[-1][0], True)
    return found


def finish(directory: RunDirectory, end: ProgramEnd, *, seconds: float) -> int:
    """Write the outcome and the last events; return the exit code of the run."""
    rows = read_rows(directory.metrics_file)
    plan = read_run(directory.run_file).get("plan", {})
    outcome = program_outcome(end, rows, plan.get("steps"))
    for note in end.skipped:
        append_event(directory.events_file, "checkpoint_rejected", reason=note)
    if end.checkpoint is not None:
        note_checkpoint(directory, end.checkpoint)
    times = {"seconds": round(seconds, 3), "finished": time.time()}
    write_outcome(directory.run_file, {**outcome, **times})
    ending = ending_event(outcome["status"], outcome["exit_code"])
    append_event(directory.events_file, ending, status=outcome["status"], step=outcome["steps"])
    return int(outcome["exit_code"])


def count_from_zero(rows: Sequence[Row]) -> bool:
    """Return whether the first step of a program is 0: the last of 60 steps is then 59.

    A row of step 0 without `loss` is that of a validation before the first step.
    """
    return bool(rows) and rows[0].get("step") == 0 and "loss" in rows[0]


def note_announced_steps(directory: RunDirectory, steps: int) -> None:
    """Record the total of steps that the program reports, so that a later attempt knows it."""
    run = read_run(directory.run_file)
    plan = run.get("plan", {})
    if plan.get("announced_steps") != steps:
        write_json_atomically(directory.run_file, {**run, "plan": {**plan, "announced_steps": steps}})


def steps_of_states(directory: RunDirectory) -> dict[str, tuple[int, Source]]:
    """Return the step of each checkpoint that was copied and its source, by the state of its files then."""
    return {
        event["state"]: (event["step"], Source(event.get("source", Source.GUESSED)))
        for event in read_rows(directory.events_file)
        if event.get("event") == "checkpoint_saved"
        and isinstance(event.get("state"), str)
        and isinstance(event.get("step"), int)
    }


def note_checkpoint(
    directory: RunDirectory, taken: TakenCheckpoint, state: str | None = None, on_record: int | None = None
) -> None:
    """Record that a checkpoint was taken into the run directory, unless the last record is of it.

    `state` is that of the program's files; `on_record` is the last step on record then, if its is guessed.
    """
    named = {"step": taken.step, "manifest_sha256": taken.manifest_sha256}
    saved = [each for each in read_rows(directory.events_file) if each.get("event") == "checkpoint_saved"]
    is_known = bool(saved) and {key: saved[-1].get(key) for key in named} == named
    if is_known and taken.weights in ("", saved[-1].get("weights")):
        return
    facts = {
        "source": taken.source.value,
        "state": state,
        "on_record": on_record if taken.source is Source.GUESSED else None,
        "tensors": taken.tensors and taken.tensors.to_json(),
        "weights": taken.weights or None,
    }
    known = {name: value for name, value in facts.items() if value is not None}
    append_event(directory.events_file, "checkpoint_saved", **named, **known)


def weights_fault(directory: RunDirectory, taken: TakenCheckpoint, *, is_complete: bool) -> str | None:
    """Return why the tensors of the last checkpoint cannot be a trained model; None if they can.

    Only a run that is complete (`is_complete`) must have changed them. An infinity counts only where an
    earlier save had none: masks may hold some.
    """
    where = f"the checkpoint of step {taken.step:,}"
    events = read_rows(directory.events_file)
    mine = [each for each in events if each.get("manifest_sha256") == taken.manifest_sha256]
    relation = taken.weights or next((each["weights"] for each in reversed(mine) if "weights" in each), "")
    faults = {
        "given": "has weights from before the training",
        "other": "is not of the model that was trained",
        "none": "has no tensor",
    }
    if what := faults.get(relation):
        return (
            f"{where} {what}: check that what is saved is the model that the optimizer has, and not another "
            "one or an old copy"
        )
    saved = [
        (int(event.get("on_record") or event["step"]), event.get("manifest_sha256"), tensors)
        for event in events
        if event.get("event") == "checkpoint_saved" and (tensors := Tensors.from_json(event.get("tensors")))
    ]
    own = [(each, at) for at, sha256, each in saved if sha256 == taken.manifest_sha256]
    if not own or not own[-1][0].count:
        return None
    (last, step), count = own[-1], own[-1][0].count
    earlier = [each for before, _, each in saved if before < step and each.count == count]
    new = [name for name in last.infinite if any(name not in each.infinite for each in earlier)]
    if bad := list(last.nan) or new:
        more = f" and {len(bad) - 1:,} more tensors" if len(bad) > 1 else ""
        what = "NaN" if last.nan else "infinite numbers"
        return f"{where} has {what} in {bad[0]}{more}" + ("" if last.nan else ", which was finite before")
    if is_complete and earlier and earlier[0].sha256 == last.sha256:
        return f"every tensor in {where} is equal to the first save: what is saved is not what is trained"
    return None


def program_outcome(end: ProgramEnd, rows: list[Row], planned: int | None) -> dict[str, Any]:
    """Return the outcome of a program's run, without its times; unknown facts are absent."""
    stepped = [row for row in rows if "step" in row]
    logged = int(stepped[-1]["step"]) if stepped else 0
    is_known = end.checkpoint is not None and end.checkpoint.source.proves
    saved = end.checkpoint.step if end.checkpoint is not None and is_known else 0
    done = max(logged, saved)
    is_short = done < (planned or end.announced or done + 1)
    from_zero = is_short and 0 < done == logged and count_from_zero(stepped)
    status, code, reason = _verdict(end, done, planned, from_zero=from_zero, has_rows=bool(rows))
    outcome: dict[str, Any] = {
        "status": status,
        "exit_code": code,
        "reason": reason,
        "steps": done,
        "counts_from_zero": from_zero or None,
        "program_exit_code": end.exit_code,
        "stopped_by": end.stopped_by,
        "announced_steps": end.announced,
        **{name: value or None for name, value in end.facts.items()},
        "exception": end.error and end.error.to_json(),
        **_losses(rows),
    }
    if status == "failed" and end.failure:
        outcome["failure"] = dict(end.failure)
    if end.checkpoint is not None:
        named = {"step": end.checkpoint.step, "manifest_sha256": end.checkpoint.manifest_sha256}
        outcome["checkpoint"] = {**named, "source": end.checkpoint.source.value}
    if end.fallback is not None:
        outcome["failure"] = Failure(FailureKind.TCP_FALLBACK, fix=end.fallback[1]).to_json()
    elif end.hang is not None:
        fix = "docs/runbooks/recovery.md#hung explains how to read them; once the cause is fixed"
        outcome["failure"] = Failure(FailureKind.HANG, done + 1, fix).to_json()
    return {key: value for key, value in outcome.items() if value is not None}


def _verdict(
    end: ProgramEnd, done: int, planned: int | None, *, from_zero: bool, has_rows: bool
) -> tuple[str, int, str | None]:
    total = planned or end.announced
    place = (f" of {total:,}" if total else "") + (" (counted from 0)" if from_zero else "")
    shown = f"step {done:,}{place}" if done else "no step"
    if end.problem is not None:
        return "failed", ExitCode.USAGE, end.problem
    if end.fallback is not None:
        return "failed", ExitCode.NOT_PROVEN, end.fallback[0]
    if end.hang is not None:
        return "failed", ExitCode.NO, end.hang
    if fault := end.fault or end.weights:
        return "failed", _code_of(end), fault
    has_saved = end.checkpoint is not None and end.checkpoint.step > end.resumed_at
    # The row of step 0 may also be a loss before the first step, and the stop have come before the last one.
    is_done = total is not None and done + (from_zero and end.stopped_by is None) >= total
    is_over = is_done or (end.stopped_by is None and total is None)
    if end.exit_code == 0 and is_over and not is_done and end.vanished is not None and end.error is None:
        what = f"{end.vanished} was killed, or still ran"
        return "failed", ExitCode.NO, f"{what}, when the program ended with exit code 0 after {shown}"
    if end.exit_code == 0 and is_over and end.error is None:
        if end.others is not None:
            return "failed", ExitCode.NO, end.others
        if not has_rows:
            return "failed", ExitCode.NO, f"the program ended with exit code 0, and {_NO_METRICS}"
        return "succeeded", ExitCode.DONE, None
    if has_saved and (end.stopped_by is not None or end.exit_code == ExitCode.STOPPED):
        assert end.checkpoint is not None
        verb = "interrupted" if end.stopped_by == INTERRUPT else "stopped"
        by = f"{verb} by {end.stopped_by}" if end.stopped_by else "the program stopped itself"
        newest = f"{by} after {shown}; its newest complete checkpoint is of step {end.checkpoint.step:,}"
        codes = {COST_LIMIT: ExitCode.NO, INTERRUPT: ExitCode.INTERRUPTED}
        code = codes.get(end.stopped_by or "", ExitCode.STOPPED)
        return "stopped", code, "; ".join((newest, *end.skipped))
    parts = [] if end.error is None or end.failure else [str(end.error)]  # `failure` has the root error
    parts.append(f"the program ended with exit code {end.exit_code} after {shown} in its records")
    if end.stopped_by is not None:
        since = f"since step {end.resumed_at:,}" if end.resumed_at else "at all"
        parts.append(f"it was stopped by {end.stopped_by} and has saved no complete checkpoint {since}")
    if not has_rows and not end.failure and end.error is None:
        parts.append(_NO_METRICS)
    return "failed", _code_of(end), "; ".join((*parts, *end.skipped))


def _code_of(end: ProgramEnd) -> int:
    """Return the exit code of a failed run: 1, or 128 + N if a signal ended the program, as in a shell."""
    if end.stopped_by == INTERRUPT:
        return ExitCode.INTERRUPTED
    return end.exit_code if end.exit_code > 128 else ExitCode.NO


def _losses(rows: list[Row]) -> dict[str, Any]:
    losses = [row["loss"] for row in rows if "loss" in row and "step" in row]
    validation = [row["val_loss"] for row in rows if "val_loss" in row]
    if not all(isinstance(loss, int | float) for loss in (*losses, *validation)):
        return {}
    found = {"first_loss": losses[0], "final_loss": losses[-1]} if losses else {}
    return found | ({"validation_loss": validation[-1]} if validation else {})
