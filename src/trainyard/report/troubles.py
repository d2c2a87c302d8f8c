"""What did not end a run and yet is not as it should be, by its events. It reads no file."""

from collections.abc import Mapping
from typing import Any

from trainyard.report.facts import RunFacts
from trainyard.report.history import number

_TROUBLES = {
    "checkpoint_failed": "checkpoint not saved",
    "checkpoint_rejected": "checkpoint passed over",
    "hang_suspected": "nothing moves",
    "network_degraded": "network",
}
"""Events of a run that goes on, and what they are called."""


def degradation(facts: RunFacts | None) -> str:
    """The troubles on record of this segment in one line, the newest of each kind; empty without any."""
    newest: dict[str, str] = {}
    for event in reversed(facts.events if facts is not None else []):
        kind = str(event.get("event"))
        if kind in ("started", "resumed"):
            break
        if kind in _TROUBLES and kind not in newest:
            newest[kind] = _trouble(kind, event)
    return "; ".join(newest.values())


def _trouble(kind: str, event: Mapping[str, Any]) -> str:
    step, reason = number(event.get("step")), event.get("reason")
    at = "" if step is None or kind == "network_degraded" else f", step {step:,.0f}"
    return f"{_TROUBLES[kind]}{at}" + (f": {reason}" if isinstance(reason, str) else "")
