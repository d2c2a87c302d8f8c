"""Decide whether a run did every planned step with finite losses, from its outcome, plan, events and rows.

The outcome alone is only a claim; it counts when configuration, events and rows confirm it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.config.registries import COMMAND, is_program_run
from trainyard.proof.recorded_events import Course
from trainyard.proof.recorded_facts import (
    RecordedFacts,
    integer_or_none,
    is_finite_number,
    section_or_empty,
)
from trainyard.proof.recorded_rows import Cadence, cadence_of, judge_rows
from trainyard.run.failure import short_reason, where_it_ended
from trainyard.run.run_settings import setting
from trainyard.run.source_words import describe_steps

_FIGURES = ("first_loss", "final_loss", "validation_loss", "bits_per_byte")


def completion_problem(
    run: RecordedFacts, rows: Iterable[RecordedFacts | None], course: Course, *, settings: Mapping[str, Any]
) -> str | None:
    """Return why the run does not count as trained; `settings` come from its `config.yaml`."""
    outcome, plan = section_or_empty(run, "outcome"), section_or_empty(run, "plan")
    if not outcome:
        return f"no outcome on record, so the run was cut off; {_last_row(rows)}"
    if is_program_run(run):
        return (
            _short_of(outcome, integer_or_none(plan.get("steps")))
            or _other_length(plan, settings)
            or course.problem
            or _program_records_problem(outcome, rows, course)
        )
    return (
        _unfinished(outcome, integer_or_none(plan.get("steps")))
        or _plan_problem(run, settings)
        or course.problem
        or _skipped_problem(plan, course)
        or _records_problem(run, rows, course, settings=settings)
    )


def is_unfinished(run: RecordedFacts) -> bool:
    """Return whether the run's own record says that it can be resumed: it failed, or has steps left."""
    outcome, plan = section_or_empty(run, "outcome"), section_or_empty(run, "plan")
    if is_program_run(run):
        return _short_of(outcome, integer_or_none(plan.get("steps"))) is not None
    too_few = integer_or_none(outcome.get("steps")) != integer_or_none(plan.get("steps"))
    return outcome.get("status") != "succeeded" or too_few


def _last_row(rows: Iterable[RecordedFacts | None]) -> str:
    last = None
    for row in rows:
        last = last if row is None else integer_or_none(row.get("step"))
    return "no row was written" if last is None else f"the last row is step {last:,}"


def _short_of(outcome: RecordedFacts, planned: int | None) -> str | None:
    """Return why the outcome of a program does not show that it ended well, with all requested steps."""
    done = integer_or_none(outcome.get("steps"))
    if (problem := _bad_end(outcome, planned)) is not None:
        return problem
    if error := section_or_empty(outcome, "exception"):
        return f"the outcome says succeeded, but {error.get('type')} ended the program"
    if done is None or done < 1:
        return "; ".join(filter(None, ("no step is on record", unknown_step(outcome))))
    stated = planned if planned is not None else integer_or_none(outcome.get("announced_steps"))
    if stated is not None and (counted := steps_of_program(outcome)) < stated:
        return f"{counted:,} of {describe_steps(outcome, stated)}"
    return None


def unknown_step(outcome: RecordedFacts) -> str | None:
    """Return why the last checkpoint of a program proves no step; None if its step is known."""
    if section_or_empty(outcome, "checkpoint").get("source") != "guessed":
        return None
    return (
        "the step of its last checkpoint is not known: report it with trainyard.checkpoint(path, step=N), or "
        "save {'step': N} in it"
    )


def steps_of_program(outcome: RecordedFacts) -> int:
    """Return how many steps a program did: one more than the last one's number if it counts from 0."""
    return (integer_or_none(outcome.get("steps")) or 0) + (outcome.get("counts_from_zero") is True)


def _other_length(plan: RecordedFacts, settings: Mapping[str, Any]) -> str | None:
    """Return how the steps requested differ from those of the configuration."""
    planned = integer_or_none(plan.get("steps"))
    requested = integer_or_none(setting(settings, "program.steps"))
    if requested is None and setting(settings, "recipe") != COMMAND:  # a preset uses training.max_steps
        requested = integer_or_none(setting(settings, "training.max_steps"))
    if planned == requested:
        return None
    words = ["an open number of" if steps is None else f"{steps:,}" for steps in (planned, requested)]
    return f"run.json plans {words[0]} steps, config.yaml requests {words[1]}"


def _program_records_problem(
    outcome: RecordedFacts, rows: Iterable[RecordedFacts | None], course: Course
) -> str | None:
    """Return how a program's rows are wrong or contradict its outcome.

    The program decides which steps it logs, and whether it logs the last one.
    """
    done = integer_or_none(outcome.get("steps")) or 0
    read = judge_rows(rows, Cadence(done, course.begins_after, logs_last=False))
    from_zero = read.counts_from_zero and read.last_step == done
    if read.problem is None and outcome.get("counts_from_zero") is True and not from_zero:
        return f"the outcome says that the steps are 0 to {done:,}, the rows differ"
    tensors = course.tensors.get(str(section_or_empty(outcome, "checkpoint").get("manifest_sha256")), {})
    if read.problem is None and tensors.get("nan"):
        return "the last checkpoint has NaN in its tensors"
    return read.problem or _other_figures(outcome, read.figures, _FIGURES[:3])


def _unfinished(outcome: RecordedFacts, planned: int | None) -> str | None:
    """Return why the outcome does not show that the run did all of its steps; None when it does."""
    done = integer_or_none(outcome.get("steps"))
    if planned is None or planned < 1:
        return "run.json does not have the number of requested steps"
    if (problem := _bad_end(outcome, planned)) is not None:
        return problem
    if done != planned:
        return f"{'an unknown number' if done is None else f'{done:,}'} of {planned:,} steps"
    return None


def _bad_end(outcome: RecordedFacts, planned: int | None) -> str | None:
    """Return why the outcome does not say that the run ended well; None when it does."""
    status = outcome.get("status")
    if status in ("stopped", "failed"):
        total = f" of {planned:,}" if planned else ""
        where = where_it_ended(outcome, planned) or f"at an unknown step{total}"
        reason = short_reason(outcome)
        return f"{status} {where}" + (f": {reason}" if reason else "")
    if status != "succeeded":
        return f"the outcome's status is {status!r}"
    exit_code = outcome.get("exit_code", "not on record")
    if integer_or_none(exit_code) != 0:
        return f"the outcome says succeeded, but its exit code is {exit_code!r}"
    return None


def _plan_problem(run: RecordedFacts, settings: Mapping[str, Any]) -> str | None:
    """Return how the plan differs from the configuration.

    A run with a smaller plan would count as complete after fewer steps.
    """
    plan = section_or_empty(run, "plan")
    most = integer_or_none(setting(settings, "training.max_steps"))
    epochs = integer_or_none(setting(settings, "training.epochs"))
    per_epoch = integer_or_none(plan.get("steps_per_epoch"))
    limits = [most] if most is not None else []
    if epochs is not None and per_epoch is None:
        return "run.json does not have the plan's number of steps per epoch"
    if epochs is not None and per_epoch is not None:
        limits.append(epochs * per_epoch)
    if limits and plan["steps"] != min(limits):
        return f"run.json plans {plan['steps']:,} steps, config.yaml requests {min(limits):,}"
    return None


def _skipped_problem(plan: RecordedFacts, course: Course) -> str | None:
    is_each = len(course.skipped) >= plan["steps"] - course.begins_after
    return "the update of every step was skipped" if is_each else None


def _records_problem(
    run: RecordedFacts, rows: Iterable[RecordedFacts | None], course: Course, *, settings: Mapping[str, Any]
) -> str | None:
    outcome = section_or_empty(run, "outcome")
    for name in _FIGURES:
        if name in outcome and not is_finite_number(outcome[name]):
            return f"the outcome's {_words(name)} is {outcome[name]}"
    read = judge_rows(rows, cadence_of(run, settings, course))
    if read.problem is not None:
        return read.problem
    return _other_figures(outcome, read.figures, _FIGURES)


def _other_figures(outcome: RecordedFacts, figures: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the first figure of the outcome that differs from the rows."""
    for name in names:
        claimed, recorded = outcome.get(name), figures.get(name)
        if claimed != recorded:
            return f"the outcome's {_words(name)} is {_shown(claimed)}, that of the rows {_shown(recorded)}"
    return None


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: object) -> str:
    return "not on record" if value is None else str(value)
