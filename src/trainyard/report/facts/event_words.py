"""The events of a run in words: as lines of a table, and as marks on the axis of the charts.

Rows of `events.jsonl` in, text out. A new kind of event needs no entry here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trainyard.report.facts.history import finite_or_none
from trainyard.report.facts.quantities import format_duration
from trainyard.report.facts.run_facts import RunFacts
from trainyard.run.sizes import format_size

_ROUTINE = ("started", "checkpoint_saved", "checkpoint_removed")
"""Events without a mark on the axis: there are too many of them, or their step is known."""
_MOST_LINES, _MOST_MARKS = 100, 30


@dataclass(frozen=True)
class EventLine:
    """One event, or several consecutive events of one kind."""

    time: float | None
    """Unix seconds, of the last one."""
    steps: str
    words: str
    details: str


def event_lines(run: RunFacts) -> list[EventLine]:
    """The last events, oldest first; consecutive equal ones share a line."""
    groups = [list(group) for _, group in groupby(run.events, key=lambda event: event.get("event"))]
    return [_line(group) for group in groups[-_MOST_LINES:]]


def axis_marks(run: RunFacts) -> list[tuple[float, str]]:
    """The last events that are worth a mark, as step and words, in the order of their steps."""
    notable = [event for event in run.events if event.get("event") not in _ROUTINE][-_MOST_MARKS:]
    found = ((_step(event, run), event) for event in notable)
    marks = [(step, _name(event)) for step, event in found if step is not None]
    return sorted(marks, key=lambda mark: mark[0])


def _line(group: Sequence[Mapping[str, Any]]) -> EventLine:
    last, count = group[-1], len(group)
    steps = dict.fromkeys(
        step for event in (group[0], last) if (step := finite_or_none(event.get("step"))) is not None
    )
    return EventLine(
        finite_or_none(last.get("time")),
        " to ".join(f"{step:,.0f}" for step in steps),
        _name(last) + (f", {count} times" if count > 1 else ""),
        ("last: " if count > 1 and _details(last) else "") + _details(last),
    )


def _name(event: Mapping[str, Any]) -> str:
    """The event in words; the end of a run by how it ended."""
    name = event.get("event", "")
    if name == "finished" and event.get("status") in ("failed", "stopped"):
        name = event["status"]
    return str(name).replace("_", " ")


def _details(event: Mapping[str, Any]) -> str:
    """The other values of an event, whose name says its status; digests and objects are for programs."""
    rest = ((key, value) for key, value in event.items() if key not in ("event", "time", "step", "status"))
    return ", ".join(words for key, value in rest for words in _detail(key, value))


def _detail(key: str, value: object) -> Iterable[str]:
    number, name = finite_or_none(value), key.replace("_", " ")
    if isinstance(value, list):
        yield f"{name} {', '.join(map(str, value))}"
    elif key.endswith("sha256") or isinstance(value, Mapping):
        return
    elif number is None:
        yield f"{'' if key == 'reason' else f'{name} '}{value}"
    elif key.endswith("seconds"):
        yield f"{name.removesuffix('seconds').strip()} {format_duration(number)}".strip()
    elif key.endswith("bytes"):
        yield f"{name.removesuffix('bytes').strip()} {format_size(number)}".strip()
    else:
        yield f"{name} {number:,.6g}"


def _step(event: Mapping[str, Any], run: RunFacts) -> float | None:
    """The step of an event, or of the last row before it if the event has none."""
    step, time = finite_or_none(event.get("step")), finite_or_none(event.get("time"))
    if step is not None or time is None:
        return step
    rows = run.curve("time")
    before = int((rows.values <= time).sum())
    return float(rows.steps[before - 1]) if before else None
