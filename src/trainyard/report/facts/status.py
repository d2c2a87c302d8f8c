"""The status of a run: its recorded outcome or, while it has none, the age of its newest record."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.report.facts.history import MetricsHistory
from trainyard.report.facts.quantities import format_age_ago
from trainyard.run.failure import short_reason
from trainyard.watch.health import silence_limit


class Status(StrEnum):
    """The first word of every report."""

    EMPTY = "EMPTY"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    INTERRUPTED = "INTERRUPTED"


@dataclass(frozen=True)
class RunState:
    """A status, with the reason where there is one."""

    status: Status
    detail: str = ""

    @property
    def going(self) -> bool:
        return self.status is Status.RUNNING

    def __str__(self) -> str:
        return f"{self.status} ({self.detail})" if self.detail else str(self.status)


_OUTCOMES = {"succeeded": Status.SUCCEEDED, "failed": Status.FAILED, "stopped": Status.STOPPED}


def state_of(
    run: Mapping[str, Any],
    history: MetricsHistory,
    newest: float | None,
    *,
    now: float,
    is_cut_off: bool = False,
) -> RunState:
    """The state of a run whose last sign of life was at `newest` (Unix seconds).

    `is_cut_off`: its trainer is known to have ended without an outcome.
    """
    outcome = run.get("outcome")
    if isinstance(outcome, Mapping) and (status := _OUTCOMES.get(str(outcome.get("status")))) is not None:
        return RunState(status, "" if status is Status.SUCCEEDED else short_reason(outcome))
    if newest is None:
        if history.last:
            return RunState(Status.INTERRUPTED, "no outcome, no time on record")
        return RunState(Status.EMPTY, "nothing on record yet")
    what = "last row" if "time" in history.last else "no row, last sign"
    if is_cut_off or now - newest > silence_limit(history.times.tolist()):
        return RunState(Status.INTERRUPTED, f"no outcome, {what} {format_age_ago(now - newest)}")
    return RunState(Status.RUNNING, "" if history.last else "no step on record yet")
