"""Judge which network joined the machines of each part of a run: its records in, evidence or a problem out.

    run.json (processes of each part) + events `network` (the channels that NCCL opened) ──> one finding

A part is a segment in `history`, or the last one. Every start of the run whose steps still count must show
its own channels, because processes that start again open new ones.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainyard.proof.recorded_events import STARTS
from trainyard.proof.recorded_facts import RecordedFacts, integer_or_none, section_or_empty
from trainyard.watch.network_record import EVENT, judge_event
from trainyard.watch.network_verdict import Network, NetworkVerdict

_NO_LOG = (
    "run it with this version of Trainyard, and leave NCCL_DEBUG and NCCL_DEBUG_FILE unset; "
    "compute.network=tcp trains over TCP, which is slower and needs no proof"
)
_KINDS = {
    Network.EFA_GPUDIRECT: "EFA with GPUDirect",
    Network.EFA_NO_GPUDIRECT: "EFA",
    Network.INFINIBAND: "InfiniBand",
}


@dataclass(frozen=True)
class NetworkFinding:
    """The verdict on the network of a part of the run."""

    evidence: str
    passed: bool = True
    fix: str = ""
    """The change to make before it is trained again; empty if the part holds or a record is missing."""


@dataclass(frozen=True)
class _Start:
    """A start of the run, and the steps of it that still count."""

    after: int
    until: float
    events: tuple[RecordedFacts, ...]


def joining_network(
    run: RecordedFacts, events: Sequence[RecordedFacts | None], requested: object
) -> NetworkFinding:
    """Return the finding on the last part of a run, or on the first part that does not hold."""
    starts = _starts(run, [event for event in events if event is not None])
    begin = 0
    for segment in _earlier_segments(run):
        until = integer_or_none(segment.get("until"))
        end = begin if until is None else until
        found = _finding(segment, _between(starts, begin, end), requested)
        if not found.passed:
            return NetworkFinding(
                f"until step {segment.get('until')}: {found.evidence}", passed=False, fix=found.fix
            )
        begin = end
    return _finding(section_or_empty(run, "hardware"), _between(starts, begin, math.inf), requested)


def _earlier_segments(run: RecordedFacts) -> list[RecordedFacts]:
    history = run.get("history", [])
    if not isinstance(history, list):
        return []
    return [segment if isinstance(segment, dict) else {} for segment in history]


def _starts(run: RecordedFacts, events: Sequence[RecordedFacts]) -> list[_Start]:
    """Return the starts whose steps count, oldest first: a later start from an earlier step replaces them.

    A run that was ended before its first step still shows the network of that start.
    """
    done = integer_or_none(section_or_empty(run, "outcome").get("steps"))
    places = [index for index, event in enumerate(events) if event.get("event") in STARTS]
    found: list[_Start] = []
    until: float = math.inf if done is None else max(done, 1)
    for index, end in zip(reversed(places), [len(events), *reversed(places)], strict=False):
        after = integer_or_none(events[index].get("step")) or 0
        if after < until:
            shown = tuple(each for each in events[index:end] if each.get("event") == EVENT)
            found.insert(0, _Start(after, until, shown))
        until = min(until, after)
    return found


def _between(starts: Sequence[_Start], begin: int, end: float) -> list[_Start]:
    return [start for start in starts if start.after < end and start.until > begin]


def _finding(segment: RecordedFacts, starts: Sequence[_Start], requested: object) -> NetworkFinding:
    size = integer_or_none(segment.get("world_size"))
    here = integer_or_none(segment.get("local_world_size"))
    if size is None or size < 1:
        return NetworkFinding("the world size is not on record", passed=False)
    if size == 1:
        return NetworkFinding("one process: no network was used")
    if here == size:
        return NetworkFinding(f"{size:,} processes on one machine: no network was used")
    if requested == "tcp":
        return NetworkFinding(f"{size:,} processes on several machines, over TCP as compute.network requests")
    if not starts or not all(start.events for start in starts):
        unknown = f"{size:,} processes, but nothing shows which network joined them"
        return NetworkFinding(unknown, passed=False, fix=_NO_LOG)
    known: dict[str, object] = {"requested": requested if requested == "efa" else "auto", "processes": size}
    if here:
        known["nodes"] = -(-size // here)
    evidence = ""
    for event in (event for start in starts for event in _decisive_events(start)):
        found, shortfall = judge_event(event, **known)
        if shortfall is not None:
            return NetworkFinding(shortfall[0], passed=False, fix=shortfall[1])
        evidence = _evidence(found, size)
    return NetworkFinding(evidence)


def _decisive_events(start: _Start) -> Iterator[RecordedFacts]:
    """Yield the newest event of a start, and every one before it that shows sockets."""
    *before, newest = start.events
    sockets = (Network.TCP, Network.TCP_FALLBACK)
    yield from (event for event in before if judge_event(event)[0].verdict in sockets)
    yield newest


def _evidence(found: NetworkVerdict, size: int) -> str:
    few = next((line for line in found.evidence if "interfaces were found" in line), "")
    kind = _KINDS.get(found.verdict, found.verdict.value)
    text = f"{size:,} processes on several machines, every channel over {kind}, according to NCCL's logs"
    return f"{text}; {few}" if few else text
