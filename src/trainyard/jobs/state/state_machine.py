"""The one state machine: it maps the observations of a job of any kind to one of eight states.

    Observed --reader of its kind--> Reading ─┐
    pods, Workload, events, History ──────────┴──judge──> JobState

The pods can overrule the status of a job: a PyTorchJob says Running while workers wait for a node, and a
RayCluster stays ready while its head is gone. But a job is Succeeded only if its status says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.jobs.job_labels import AUTO_RETRY, CANCELLED, FOLLOWED_BY, RETRIES, RETRY_CLAIM
from trainyard.jobs.state.causes import failure_of_claim, failure_of_job, find_fix, suspects_of
from trainyard.jobs.state.job_state import JobFailure, JobState, PodCounts, State, Waiting
from trainyard.jobs.state.observed import History
from trainyard.jobs.state.pod_troubles import find_troubles
from trainyard.jobs.state.reading import (
    Phase,
    Reading,
    annotations_of,
    count,
    time_of,
)
from trainyard.watch.failure_classes import FailureClass

if TYPE_CHECKING:
    from trainyard.jobs.job_kind import Observed
    from trainyard.jobs.state.pod_facts import PodFacts

_ENDED = (Phase.SUCCEEDED, Phase.FAILED, Phase.UNCLEAR)
GONE = "The job is gone, and how it ended was not seen"


def judge_job(observed: "Observed", history: History | None = None) -> JobState:
    """Return the state of the job. `history` adds facts about pods that no longer exist."""
    past = (history or History()).with_pods(observed.pods)
    if observed.job is None:
        return _base(observed, past, None, state=State.UNKNOWN, reason=GONE)
    reading = observed.kind.read_status(observed)
    ended = _finished_state(observed, past, reading) or _interrupted_state(observed, past, reading)
    return ended or _ongoing_state(observed, past, reading)


def after(observed: "Observed", history: History) -> History:
    """Return `history` with this observation added."""
    past = history.with_pods(observed.pods)
    if past.ran or observed.job is None:
        return past
    reading = observed.kind.read_status(observed)
    counts = _counts(observed, reading)
    return replace(past, ran=_all_run(observed, reading, counts) and reading.phase not in _ENDED)


def _finished_state(observed: "Observed", past: History, reading: Reading) -> JobState | None:
    """Return the final state, if the status says that the job has ended."""
    if reading.phase is Phase.SUCCEEDED:
        return _succeeded_state(observed, past, reading)
    if reading.phase is Phase.FAILED:
        if reading.failure_class is None and _was_cancelled(observed, reading):
            return _cancelled_state(observed, past, reading, "it was cancelled")
        return _failed_state(observed, past, reading, failure_of_job(observed, past, reading))
    if reading.phase is Phase.UNCLEAR:
        return _base(observed, past, reading, state=State.UNKNOWN, reason=_sentence(reading.reason))
    return None


def _was_cancelled(observed: "Observed", reading: Reading) -> bool:
    """Return whether somebody cancelled the job before it had failed by itself."""
    moment = annotations_of(observed.job or {}).get(CANCELLED)
    cancelled = time_of(moment)
    return moment is not None and (
        cancelled is None or reading.ended_at is None or cancelled <= reading.ended_at + 1
    )


def _succeeded_state(observed: "Observed", past: History, reading: Reading) -> JobState:
    """Return the state of a job whose status says Succeeded: failed if a worker died before the master."""
    end = _end_of_master(observed)
    if end is not None:
        for suspect in suspects_of(observed, past):
            weak = suspect.recovered or suspect.consequence or suspect.beside or suspect.pod.rank is None
            if not weak and suspect.finished is not None and suspect.finished < end:
                return _failed_state(observed, past, reading, failure_of_job(observed, past, reading))
    return _base(observed, past, reading, state=State.SUCCEEDED, reason=_sentence(reading.reason))


def _end_of_master(observed: "Observed") -> float | None:
    """Return the end of the pod that alone decides success; workers may crash after it.

    The time in the operator's status is later.
    """
    if not observed.kind.first_pod_decides:
        return None
    ends = (end for pod in observed.pods if pod.rank == 0 and pod.phase == "Succeeded" for end in pod.ends)
    return max((end.finished for end in ends if end.finished is not None), default=None)


def _interrupted_state(observed: "Observed", past: History, reading: Reading) -> JobState | None:
    """Return an end that the status does not show: deleted, cancelled, given up, or unable to run."""
    job = observed.job or {}
    if observed.deleted or (job.get("metadata") or {}).get("deletionTimestamp"):
        return _cancelled_state(observed, past, reading, "somebody deleted it before it had ended")
    stopped = reading.phase in (Phase.SUSPENDED, Phase.NEW)
    if CANCELLED in annotations_of(job) and stopped:
        return _cancelled_state(observed, past, reading, "it was cancelled")
    if RETRY_CLAIM in annotations_of(job) and stopped:
        return _failed_state(observed, past, reading, failure_of_claim(str(annotations_of(job)[RETRY_CLAIM])))
    hopeless = next((found for found in find_troubles(observed, past, reading) if found.hopeless), None)
    if hopeless is None:
        return None
    waiting, pod = hopeless.waiting, hopeless.pod
    why = (_sentence(waiting.evidence), "The job would not end by itself.")
    failure = JobFailure(waiting.failure_class, why, fix=waiting.fix)
    if pod is not None and pod.kept_by and pod.phase == "Failed":
        failure = failure_of_job(observed, past, replace(reading, reason=" ".join(why)))
    elif pod is not None:
        failure = replace(failure, rank=pod.rank, pod=pod.name, node=pod.node)
    return _failed_state(observed, past, reading, failure)


def _ongoing_state(observed: "Observed", past: History, reading: Reading) -> JobState:
    """Return the state of a job that has not ended."""
    counts = _counts(observed, reading)
    found = find_troubles(observed, past, reading)
    waiting = found[0].waiting if found else None
    if reading.phase is Phase.SUSPENDED:
        reason = waiting.evidence if waiting else reading.reason
        return _base(observed, past, reading, state=State.QUEUED, reason=_sentence(reason), waiting=waiting)
    if _all_run(observed, reading, counts):
        is_complete = counts.running + counts.succeeded >= (counts.wanted or 1)
        reason = reading.reason if reading.phase is Phase.RUNNING else "all of its pods run"
        reason = reason if is_complete else _progress(reading, counts)
        reason = reason if waiting is None else f"{reason.rstrip('.')}; {waiting.evidence}"
        waiting = None if is_complete else waiting
        return _base(observed, past, reading, state=State.RUNNING, reason=_sentence(reason), waiting=waiting)
    if not observed.kind.on_ray and _all_end(observed):
        reason = waiting.evidence if waiting else "Its pods are ending"
        return _base(observed, past, reading, state=State.RUNNING, reason=reason)
    state = _not_running(observed, past, reading)
    reason = waiting.evidence if waiting else _progress(reading, counts)
    return _base(observed, past, reading, state=state, reason=_sentence(reason), waiting=waiting)


def _not_running(observed: "Observed", past: History, reading: Reading) -> State:
    live = [pod for pod in observed.pods if pod.live and not pod.deleting]
    broken = any(
        pod.phase == "Failed" or pod.restarts or pod.deleting or pod.silent for pod in _trainers(observed)
    )
    if past.ran or broken or past.restarts(reading.wanted) or reading.phase is Phase.RESTARTING:
        return State.RESTARTING
    if any(pod.unschedulable for pod in live) or not any(pod.node for pod in observed.pods):
        return State.PENDING
    return State.STARTING


def _all_run(observed: "Observed", reading: Reading, counts: PodCounts) -> bool:
    if observed.kind.on_ray and reading.phase is not Phase.RUNNING:
        return False
    if reading.phase is Phase.SUSPENDED or not counts.present:
        return False
    busy = counts.running + counts.succeeded
    if reading.enough is not None and counts.running >= reading.enough:
        return True
    return busy == counts.present and counts.running > 0 and busy >= (counts.wanted or 1)


def _all_end(observed: "Observed") -> bool:
    """One pod has succeeded, and the others run or are being removed: the status will show the end soon."""
    pods = _trainers(observed)
    over = [pod.phase == "Succeeded" for pod in pods]
    lost = any(pod.disruption for pod in pods)
    return (
        any(over) and not lost and all(o or p.running or p.deleting for o, p in zip(over, pods, strict=True))
    )


def _trainers(observed: "Observed") -> tuple["PodFacts", ...]:
    return tuple(pod for pod in observed.pods if not pod.helps)


def _counts(observed: "Observed", reading: Reading) -> PodCounts:
    pods = _trainers(observed)
    return PodCounts(
        wanted=reading.wanted,
        present=len(pods),
        running=sum(pod.running for pod in pods),
        succeeded=sum(pod.phase == "Succeeded" for pod in pods),
        failed=sum(pod.phase == "Failed" for pod in pods),
    )


def _progress(reading: Reading, counts: PodCounts) -> str:
    busy = counts.running + counts.succeeded
    if busy >= (counts.wanted or counts.present):
        return reading.reason
    missing = (counts.wanted or 0) - counts.present
    text = f"{busy} of {counts.wanted or counts.present} pods run"
    return f"{text}, and {missing} {'does' if missing == 1 else 'do'} not exist" if missing > 0 else text


def _cancelled_state(observed: "Observed", past: History, reading: Reading, why: str) -> JobState:
    failure = JobFailure(FailureClass.CANCELLED, (_sentence(why),))
    return _failed_state(observed, past, reading, failure)


def _failed_state(observed: "Observed", past: History, reading: Reading, failure: JobFailure) -> JobState:
    fix = failure.fix or find_fix(failure.failure_class, failure.evidence)
    state = _base(observed, past, reading, state=State.FAILED, reason=failure.evidence[0])
    return replace(state, failure=replace(failure, fix=fix))


def _base(
    observed: "Observed",
    past: History,
    reading: Reading | None,
    *,
    state: State,
    reason: str,
    waiting: Waiting | None = None,
) -> JobState:
    wanted = reading.wanted if reading is not None else None
    counts = _counts(observed, reading) if reading is not None else PodCounts(None, len(observed.pods))
    if waiting is not None:
        found = waiting.fix or find_fix(waiting.failure_class, [waiting.evidence])
        waiting = replace(waiting, fix=found)
    notes = annotations_of(observed.job or {})
    ended = state in (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
    counted = reading.restarts if reading is not None else 0
    return JobState(
        job=observed.name,
        namespace=observed.namespace,
        kind=observed.kind.name,
        state=state,
        reason=reason,
        waiting=waiting,
        retries=_number(notes.get(RETRIES)),
        auto_retry=_number(notes.get(AUTO_RETRY)),
        followed_by=str(notes.get(FOLLOWED_BY) or ""),
        restarts=max(past.restarts(wanted), counted, _count_replacements(observed.events, wanted)),
        pods=counts,
        alerts=() if ended else tuple(_find_zones(observed)),
        holds=ended and any(pod.live and not pod.deleting for pod in observed.pods),
    )


def _find_zones(observed: "Observed") -> Iterator[str]:
    """Yield the alert about pods in several zones that EFA should join."""
    places: dict[str, list[str]] = {}
    for pod in observed.pods:
        if pod.efa and pod.live and not pod.helps and (zone := observed.zones.get(pod.node)):
            places.setdefault(zone, []).append(pod.name)
    if len(places) > 1:
        parts = ", ".join(f"{len(places[zone])} in {zone} ({places[zone][0]})" for zone in sorted(places))
        yield f"its pods are in {len(places)} zones, which EFA does not cross: {parts}"


def _number(text: object) -> int:
    found = str(text or "0")
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 10 else 0


def _count_replacements(events: Sequence[Mapping[str, object]], wanted: int | None) -> int:
    """Return the pods created in addition to the first ones, by the events of the training operator."""
    made = sum(count(e.get("count"), 1) for e in events if e.get("reason") == "SuccessfulCreatePod")
    return max(0, made - wanted) if wanted is not None else 0


def _sentence(text: str) -> str:
    """Return the text with a capital letter, unless it begins with a name, such as that of a pod."""
    is_name = text.startswith(("jobset", "pod")) or "-" in text.partition(" ")[0]
    return text if is_name else text[:1].upper() + text[1:]
