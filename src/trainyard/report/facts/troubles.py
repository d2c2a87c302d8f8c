"""Problems that did not end a run, from its events. It reads no file."""

from collections.abc import Mapping
from typing import Any

from trainyard.report.facts.history import finite_or_none
from trainyard.report.facts.quantities import format_duration
from trainyard.report.facts.run_facts import RunFacts

_TROUBLES = {
    "checkpoint_failed": "checkpoint not saved",
    "checkpoint_rejected": "checkpoint passed over",
    "grace_too_short": "grace period",
    "network_degraded": "network",
    "step_skipped": "update skipped",
}
"""The events that mean trouble in a run that continues, and their names in reports."""


def degradation(facts: RunFacts | None) -> str:
    """The troubles of this segment in one line; empty if there are none.

    The newest event of each kind, then the alerts that last.
    """
    if facts is None:
        return ""
    newest: dict[str, str] = {}
    for event in reversed(facts.events):
        kind = str(event.get("event"))
        if kind in ("started", "resumed"):
            break
        if kind in _TROUBLES and kind not in newest:
            newest[kind] = _trouble(kind, event)
    return "; ".join([*newest.values(), *(alert.text for alert in facts.alerts if alert.is_open)])


def alert_lines(facts: RunFacts) -> list[str]:
    """Every alert of the run, oldest first: what it was, and for how long."""
    lines = []
    for alert in facts.alerts:
        span = "" if alert.until is None else f", for {format_duration(alert.until - alert.since)}"
        lines.append(f"{alert.text}{span}")
    return lines


def _trouble(kind: str, event: Mapping[str, Any]) -> str:
    step, reason = finite_or_none(event.get("step")), event.get("reason")
    if kind == "grace_too_short":
        needed = finite_or_none(event.get("needed_seconds"))
        given = finite_or_none(event.get("grace_seconds"))
        if needed is not None and given is not None:
            reason = f"a stop takes up to {needed:,.0f} s, and the process is killed after {given:,.0f} s"
    at = "" if step is None or kind == "network_degraded" else f", step {step:,.0f}"
    return f"{_TROUBLES[kind]}{at}" + (f": {reason}" if isinstance(reason, str) else "")
