"""Read a run's events: whether it started and finished, how often it was resumed, and what it saved.

The events are evidence beside the outcome: a run without events, or whose events contradict its outcome, does
not count as trained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.proof.recorded_facts import RecordedFacts, integer_or_none, section_or_empty

_NAMED_RETRIES = 3
STARTS = ("started", "resumed")
_ENDS = ("finished", "preempted", "interrupted")
_SPOILS_THE_END = ("started", "resumed", "failed", "checkpoint_failed")


@dataclass(frozen=True)
class Course:
    """The course of a run according to its events."""

    problem: str | None
    """Why the events do not confirm that the run finished; None when they do."""
    retries: str
    """How often it was resumed, and after which steps."""
    resumed_after: tuple[int, ...]
    """The known steps from which it continued, of all starts that were given a checkpoint."""
    begins_after: int
    """The step it started from: 0, or the step of another run's checkpoint."""
    saved: Mapping[int, Any]
    """Step -> SHA-256 of the checkpoint's manifest, where the step's last save recorded it."""
    skipped: frozenset[int] = frozenset()
    """The steps whose update was skipped (`training.skip_bad_steps`)."""
    rejected: tuple[str, ...] = ()
    """Why the last attempt did not take other checkpoints of the program, a reason each."""
    tensors: Mapping[str, RecordedFacts] = field(default_factory=dict)
    """SHA-256 of a checkpoint's manifest -> what was read of its tensors."""
    unrelated: frozenset[object] = frozenset()
    """The manifests of checkpoints whose relation to the trained weights could not be shown."""
    remarks: tuple[str, ...] = ()
    """What was seen of the end of the last attempt that decides nothing."""


def course_of(run: RecordedFacts, events: Iterable[RecordedFacts | None]) -> Course:
    """Read the events; None stands for an unreadable line."""
    lines = list(events)
    known = [event for event in lines if event is not None]
    parent = section_or_empty(run, "parent").get("manifest_sha256")
    problem = _unreadable(lines) or _start_problem(known, parent) or _end_problem(run, known)
    saved, skipped = _saved_manifests(known, parent), _skipped_steps(known)
    retries, begins_after = _retries(known, parent), _begins_after(known)
    steps = tuple(_known_steps(known, [each for each in known if each.get("event") == "resumed"]))
    tensors = {
        str(event.get("manifest_sha256")): section_or_empty(event, "tensors")
        for event in known
        if event.get("event") == "checkpoint_saved" and "tensors" in event
    }
    unrelated = frozenset(each.get("manifest_sha256") for each in known if each.get("weights") == "unknown")
    return Course(
        problem,
        retries,
        steps,
        begins_after,
        saved,
        skipped,
        _reasons(known, "checkpoint_rejected"),
        tensors,
        unrelated,
        _reasons(known, "remark"),
    )


def _reasons(events: list[RecordedFacts], name: str) -> tuple[str, ...]:
    """Return the reasons that events of this name have in the last attempt."""
    last = max((at for at, event in enumerate(events) if event.get("event") in STARTS), default=0)
    reasons = (each.get("reason") for each in events[last:] if each.get("event") == name)
    return tuple(reason for reason in reasons if isinstance(reason, str))


def _unreadable(lines: Sequence[RecordedFacts | None]) -> str | None:
    if not lines:
        return "no record of events: events.jsonl is missing or empty"
    if None in lines:
        return f"line {lines.index(None) + 1:,} of events.jsonl cannot be read"
    return None


def _start_problem(events: list[RecordedFacts], parent: object) -> str | None:
    first = next((event for event in events if event.get("event") in STARTS), None)
    if first is None:
        return "events.jsonl does not say that the run started"
    if first.get("event") == "resumed" and (parent is None or first.get("manifest_sha256") != parent):
        return "events.jsonl begins with a resumption, but not of the checkpoint that run.json has as parent"
    return _hang_problem(events)


def _hang_problem(events: list[RecordedFacts]) -> str | None:
    """Report a hang unless the run was resumed after it: a hang must end its segment."""
    for index, event in enumerate(events):
        if event.get("event") != "hang_suspected":
            continue
        later = [after for after in events[index + 1 :] if after.get("status") != "failed"]
        if not later or later[0].get("event") not in STARTS:
            return f"a hang was suspected{_at(event)}"
    return None


def _end_problem(run: RecordedFacts, events: list[RecordedFacts]) -> str | None:
    ends = [index for index, event in enumerate(events) if event.get("event") in _ENDS]
    if not ends:
        return "events.jsonl does not say that the run finished"
    end, later = events[ends[-1]], events[ends[-1] + 1 :]
    if end.get("event") != "finished" or end.get("status") != "succeeded":
        last = end.get("status") or end.get("event")
        return f"the outcome says succeeded, the last event says {last}{_at(end)}"
    if integer_or_none(end.get("step")) != integer_or_none(section_or_empty(run, "outcome").get("steps")):
        return f"the outcome and the event of the end differ: it finished{_at(end) or ' at an unknown step'}"
    spoilt = next((event for event in later if event.get("event") in _SPOILS_THE_END), None)
    return f"after it finished, the run {_words(spoilt)}{_at(spoilt)}" if spoilt is not None else None


def _words(event: RecordedFacts) -> str:
    return {"started": "started again", "resumed": "was resumed", "checkpoint_failed": "failed to save"}.get(
        str(event["event"]), "failed"
    )


def _at(event: RecordedFacts) -> str:
    step = integer_or_none(event.get("step"))
    return "" if step is None else f" at step {step:,}"


def _begins_after(events: list[RecordedFacts]) -> int:
    """Return the step before the run's first one: 0, unless every start of the run was a resumption."""
    starts = [event for event in events if event.get("event") in STARTS]
    if not starts or any(event["event"] == "started" for event in starts) or _not_resumed(events):
        return 0
    return integer_or_none(starts[0].get("step")) or 0


def _retries(events: list[RecordedFacts], parent: object) -> str:
    starts = [event for event in events if event.get("event") in STARTS]
    again = [event for event in starts[1:] if event["event"] == "resumed"]
    if starts and starts[0]["event"] == "resumed" and starts[0].get("manifest_sha256") != parent:
        again.insert(0, starts[0])
    texts = [
        f"; it was given the checkpoint of step {integer_or_none(start.get('step')) or 0:,} "
        f"and did not resume from it: trained again from step {again_from:,}"
        for start, again_from in _not_resumed(events)[:_NAMED_RETRIES]
    ]
    given = "".join(texts)
    if not again:
        return f"no retries{given}"
    steps = _known_steps(events, again)
    named = ", ".join(f"{step:,}" for step in steps[:_NAMED_RETRIES])
    more = ", …" if len(steps) > _NAMED_RETRIES else ""
    after = f" (resumed after step {named}{more})" if named else ""
    return f"{len(again)} {'retry' if len(again) == 1 else 'retries'}{after}{given}"


def _known_steps(events: list[RecordedFacts], starts: list[RecordedFacts]) -> list[int]:
    """Return the steps after which the program continued; not those of guesses, nor where it did not."""
    anew = [start for start, _ in _not_resumed(events)]
    guesses = {each.get("manifest_sha256") for each in events if each.get("source") == "guessed"}
    known = [each for each in starts if each not in anew and each.get("manifest_sha256") not in guesses]
    return [step for each in known if (step := integer_or_none(each.get("step"))) is not None]


def _not_resumed(events: list[RecordedFacts]) -> list[tuple[RecordedFacts, int]]:
    """Return the starts that were given a checkpoint and began before its step, with the step of that."""
    found: list[tuple[RecordedFacts, int]] = []
    start = None
    for event in events:
        name, step = event.get("event"), integer_or_none(event.get("step"))
        if name in STARTS:
            start = event if name == "resumed" else None
        elif name == "not_resumed" and step is not None and start is not None:
            found.append((start, step))
            start = None
    return found


def _saved_manifests(events: list[RecordedFacts], parent: object) -> dict[int, Any]:
    """Return each step's last saved manifest; resuming from one of the run's own counts as a save of it."""
    saved: dict[int, Any] = {}
    for event in events:
        name, step = event.get("event"), integer_or_none(event.get("step"))
        own_resumption = name == "resumed" and event.get("manifest_sha256") != parent
        if step is None or not (name == "checkpoint_saved" or own_resumption):
            continue
        saved.pop(step, None)
        if "manifest_sha256" in event:
            saved[step] = event["manifest_sha256"]
    return saved


def _skipped_steps(events: list[RecordedFacts]) -> frozenset[int]:
    """The skipped steps, without those that a later segment trained again."""
    skipped: set[int] = set()
    for event in events:
        step = integer_or_none(event.get("step"))
        if event.get("event") in STARTS:
            skipped = {each for each in skipped if each <= (step or 0)}
        elif event.get("event") == "step_skipped" and step is not None:
            skipped.add(step)
    return frozenset(skipped)
