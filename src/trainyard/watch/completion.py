"""Whether a run did every step it was asked for, with finite losses, by its outcome and its rows together.

The outcome alone is a claim; it counts only when the rows end at the same step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.watch.facts import Facts, integer, is_finite, section

_NAMED_RETRIES = 3


@dataclass(frozen=True)
class _Losses:
    """What the rows say of the losses."""

    last_step: int | None
    """Step of the last row."""
    last_trained: int | None
    """Step of the last row that has a training loss."""
    bad: str | None
    """The first value that is no finite number."""


def completion_problem(run: Facts, rows: Iterable[Facts]) -> str | None:
    """Why the run does not count as trained; None when it does."""
    outcome, planned = section(run, "outcome"), integer(section(run, "plan").get("steps"))
    losses = _losses(rows)
    if not outcome:
        last = (
            "no row was written" if losses.last_step is None else f"the last row is step {losses.last_step:,}"
        )
        return f"no outcome on record, so the run was cut off; {last}"
    return _unfinished(outcome, planned) or _row_problem(losses, planned) or _figure_problem(outcome)


def retries(events: Iterable[Facts]) -> str:
    """How often the run was taken up again, and after which steps."""
    steps = [integer(event.get("step")) for event in events if event.get("event") == "resumed"]
    if not steps:
        return "no retries"
    named = ", ".join(f"{step:,}" for step in steps[:_NAMED_RETRIES] if step is not None)
    more = ", …" if len(steps) > _NAMED_RETRIES else ""
    after = f" (resumed after step {named}{more})" if named else ""
    return f"{len(steps)} {'retry' if len(steps) == 1 else 'retries'}{after}"


def _unfinished(outcome: Facts, planned: int | None) -> str | None:
    """Why the outcome is not that of a run that did all of its steps; None when it is."""
    status, done = outcome.get("status"), integer(outcome.get("steps"))
    if planned is None or planned < 1:
        return "the plan does not say how many steps were asked for"
    if status in ("stopped", "failed"):
        at = "an unknown step" if done is None else f"step {done:,}"
        reason = " ".join(str(outcome.get("reason", "")).split())
        reason = reason.removeprefix(f"Stopped at step {done} of {planned}: ")
        return f"{status} at {at} of {planned:,}" + (f": {reason}" if reason else "")
    if status != "succeeded":
        return f"the outcome's status is {status!r}"
    exit_code = outcome.get("exit_code", "not on record")
    if integer(exit_code) != 0:
        return f"the outcome says succeeded, but its exit code is {exit_code!r}"
    if done != planned:
        return f"{'an unknown number' if done is None else f'{done:,}'} of {planned:,} steps"
    return None


def _row_problem(losses: _Losses, planned: int | None) -> str | None:
    if losses.bad is not None:
        return losses.bad
    if losses.last_trained is None:
        return "metrics.jsonl has no row with a step and a loss"
    if losses.last_trained != planned or losses.last_step != planned:
        return (
            f"the outcome says {planned:,} steps, the last loss on record is of step {losses.last_trained:,}"
        )
    return None


def _figure_problem(outcome: Facts) -> str | None:
    if not is_finite(outcome.get("final_loss")):
        return f"the outcome's final loss is {outcome.get('final_loss', 'not on record')}"
    if "validation_loss" in outcome and not is_finite(outcome["validation_loss"]):
        return f"the outcome's validation loss is {outcome['validation_loss']}"
    return None


def _losses(rows: Iterable[Facts]) -> _Losses:
    last: int | None = None
    trained: int | None = None
    bad: str | None = None
    for row in rows:
        last = integer(row.get("step"))
        for key in ("loss", "val_loss"):
            if key in row and not is_finite(row[key]) and bad is None:
                bad = f"{key} is {row[key]!r} at step {row.get('step', 'unknown')}"
        if "loss" in row:
            trained = last
    return _Losses(last, trained, bad)
