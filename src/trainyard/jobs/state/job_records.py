"""Jobs in a list, and their events, as plain data."""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.jobs.state.job_state import JobState
from trainyard.jobs.state.observed import Observed
from trainyard.jobs.state.reading import count, time_of

Json = Mapping[str, Any]


def listed_record(state: JobState, observed: Observed) -> dict[str, Any]:
    """The record of a job in a list: its state and its age."""
    created = time_of(((observed.job or {}).get("metadata") or {}).get("creationTimestamp"))
    age = None if created is None else max(0.0, observed.now - created)
    return {**state.record(), "age_seconds": age}


def event_records(events: Iterable[Json], *, now: float) -> list[dict[str, Any]]:
    """Events as plain data, the newest last."""
    records = [_event_record(event, now) for event in events]
    return sorted(records, key=lambda record: -(record["age_seconds"] or 0.0))


def _event_record(event: Json, now: float) -> dict[str, Any]:
    involved = event.get("involvedObject") or {}
    series = event.get("series") or {}
    moment = (
        time_of(series.get("lastObservedTime"))
        or time_of(event.get("lastTimestamp"))
        or time_of(event.get("eventTime"))
        or time_of((event.get("metadata") or {}).get("creationTimestamp"))
    )
    return {
        "age_seconds": None if moment is None else max(0.0, now - moment),
        "type": str(event.get("type") or ""),
        "reason": str(event.get("reason") or ""),
        "object": f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        "message": " ".join(str(event.get("message") or "").split()),
        "count": count(series.get("count"), count(event.get("count"), 1)),
    }
