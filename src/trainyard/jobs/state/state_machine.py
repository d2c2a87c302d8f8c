"""The one state machine: it maps the observations of a job of any kind to one of eight states.

    Observed --reader of its kind--> Reading ─┐
    pods, Workload, events, History ──────────┴──judge──> JobState

The pods can overrule the status of a job: a PyTorchJob says Running while workers wait for a node, and a
RayCluster stays ready while its head is gone. But a job is Succeeded only if its status says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainyard.jobs.job_object import (
    AUTO_RETRY,
    CANCELLED,
    FOLLOWED_BY,
    NOT_REQUESTED,
    RETRIES,
    RETRY_CLAIM,
    is_unproven,
)
from trainyard.jobs.state.job_state import JobFailure, JobState, PodCounts, State, Waiting
from trainyard.jobs.state.pod_facts import History, describe_end, whole_number
from trainyard.jobs.state.pod_failures import failure_of_claim, failure_of_job, find_fix, suspects_of
from trainyard.jobs.state.pod_troubles import find_troubles
from trainyard.jobs.state.reading import Phase, Reading, annotations_of, time_of, uid_of
from trainyard.watch.failure_classes import FailureClass

if TYPE_CHECKING:
    from trainyard.jobs.job_kind import Observed
    from trainyard.jobs.state.pod_facts import PodFacts

GONE = "The job is gone, and how it ended was not seen"


def judge_job(observed: "Observed", history: History | None = None) -> JobState:
    """Return the state of the job. `history` adds facts about pods that no longer exist."""
    is_gone = observed.job is None
    reading = Reading(Phase.UNCLEAR, GONE) if is_gone else observed.kind.read_status(observed)
    judge = _Judge(observed, (history or History()).with_pods(observed.pods), reading)
    return judge.finished_state() or judge.interrupted_state() or judge.ongoing_state()


@dataclass(frozen=True)
class _Judge:
    """Everything that is known of a job at one moment, and the states that follow from it."""

    observed: "Observed"
    past: History
    reading: Reading

    @cached_property
    def troubles(self) -> list[Waiting]:
        return find_troubles(self.observed, self.past, self.reading)

    @cached_property
    def trainers(self) -> "tuple[PodFacts, ...]":
        return tuple(pod for pod in self.observed.pods if not pod.helps)

    @cached_property
    def counts(self) -> PodCounts:
        pods = self.trainers
        return PodCounts(
            wanted=self.reading.wanted,
            present=len(pods),
            running=sum(pod.running for pod in pods),
            succeeded=sum(pod.phase == "Succeeded" for pod in pods),
            failed=sum(pod.phase == "Failed" for pod in pods),
        )

    @property
    def notes(self) -> Mapping[str, Any]:
        return annotations_of(self.observed.job or {})

    def finished_state(self) -> JobState | None:
        """Return the final state, if the status says that the job has ended."""
        reading = self.reading
        if reading.phase is Phase.UNCLEAR:
            return self.state(State.UNKNOWN, reading.reason)
        if reading.phase is Phase.SUCCEEDED and not self.has_failed_before():
            return self.state(State.SUCCEEDED, reading.reason)
        if reading.phase is Phase.FAILED and reading.failure_class is None and self.was_cancelled():
            return self.cancelled_state("it was cancelled")
        if reading.phase in (Phase.FAILED, Phase.SUCCEEDED):
            return self.failed_state(failure_of_job(self.observed, self.past, reading))
        return None

    def was_cancelled(self) -> bool:
        """Return whether somebody cancelled the job before it had failed by itself."""
        moment, ended = self.notes.get(CANCELLED), self.reading.ended_at
        cancelled = time_of(moment)
        return moment is not None and (cancelled is None or ended is None or cancelled <= ended + 1)

    def has_failed_before(self) -> bool:
        """Return whether a worker died before the master of a job whose status says Succeeded.

        The pod of the master alone decides success; workers may crash after its end, which is before the
        time in the operator's status.
        """
        if not self.observed.kind.first_pod_decides:
            return False
        masters = [pod for pod in self.observed.pods if pod.rank == 0 and pod.phase == "Succeeded"]
        ends = [end.finished for pod in masters for end in pod.ends if end.finished is not None]
        return bool(ends) and any(
            suspect.finished is not None and suspect.finished < max(ends)
            for suspect in suspects_of(self.observed, self.past)
            if not (suspect.recovered or suspect.consequence or suspect.beside or suspect.pod.rank is None)
        )

    def interrupted_state(self) -> JobState | None:
        """Return an end that the status does not show: deleted, cancelled, given up, or unable to run."""
        job, notes = self.observed.job or {}, self.notes
        if self.observed.deleted or (job.get("metadata") or {}).get("deletionTimestamp"):
            return self.cancelled_state("somebody deleted it before it had ended")
        stopped = self.reading.phase in (Phase.SUSPENDED, Phase.NEW)
        if CANCELLED in notes and stopped:
            return self.cancelled_state("it was cancelled")
        if RETRY_CLAIM in notes and stopped:
            return self.failed_state(failure_of_claim(str(notes[RETRY_CLAIM])))
        waiting = next((found for found in self.troubles if found.hopeless), None)
        if waiting is None:
            return None
        pod = waiting.pod
        why = (_sentence(waiting.evidence), "The job would not end by itself.")
        failure = JobFailure(waiting.failure_class, why, fix=waiting.fix)
        if pod is not None and pod.kept_by and pod.phase == "Failed":
            reading = replace(self.reading, reason=" ".join(why))
            failure = failure_of_job(self.observed, self.past, reading)
        elif pod is not None:
            failure = replace(failure, rank=pod.rank, pod=pod.name, node=pod.node)
        return self.failed_state(failure)

    def ongoing_state(self) -> JobState:
        """Return the state of a job that has not ended."""
        reading, counts = self.reading, self.counts
        waiting = next(iter(self.troubles), None)
        if reading.phase is Phase.SUSPENDED:
            return self.state(State.QUEUED, waiting.evidence if waiting else reading.reason, waiting)
        if self.all_run():
            is_complete = counts.running + counts.succeeded >= (counts.wanted or 1)
            reason = reading.reason if reading.phase is Phase.RUNNING else "all of its pods run"
            reason = reason if is_complete else self.progress()
            reason = reason if waiting is None else f"{reason.rstrip('.')}; {waiting.evidence}"
            return self.state(State.RUNNING, reason, None if is_complete else waiting)
        if not self.observed.kind.on_ray and self.all_end():
            return self.state(State.RUNNING, waiting.evidence if waiting else "Its pods are ending")
        return self.state(self.not_running(), waiting.evidence if waiting else self.progress(), waiting)

    def not_running(self) -> State:
        pods = self.observed.pods
        broken = any(
            pod.phase == "Failed" or pod.restarts or pod.deleting or pod.silent for pod in self.trainers
        )
        restarted = self.past.restarts(self.reading.wanted) or self.reading.phase is Phase.RESTARTING
        if self.past.ran or broken or restarted:
            return State.RESTARTING
        unschedulable = any(pod.unschedulable for pod in pods if pod.live and not pod.deleting)
        return State.PENDING if unschedulable or not any(pod.node for pod in pods) else State.STARTING

    def all_run(self) -> bool:
        reading, counts = self.reading, self.counts
        if self.observed.kind.on_ray and reading.phase is not Phase.RUNNING:
            return False
        if reading.phase is Phase.SUSPENDED or not counts.present:
            return False
        busy = counts.running + counts.succeeded
        if reading.enough is not None and counts.running >= reading.enough:
            return True
        return busy == counts.present and counts.running > 0 and busy >= (counts.wanted or 1)

    def all_end(self) -> bool:
        """One pod has succeeded, and the others run or are being removed: the status will show the end."""
        pods = self.trainers
        over = [pod.phase == "Succeeded" for pod in pods]
        ending = all(o or p.running or p.deleting for o, p in zip(over, pods, strict=True))
        return any(over) and ending and not any(pod.disruption for pod in pods)

    def progress(self) -> str:
        counts, busy = self.counts, self.counts.running + self.counts.succeeded
        if busy >= (counts.wanted or counts.present):
            return self.reading.reason
        missing = (counts.wanted or 0) - counts.present
        text = f"{busy} of {counts.wanted or counts.present} pods run"
        text += f", and {missing} {'does' if missing == 1 else 'do'} not exist" if missing > 0 else ""
        failed = (describe_end(pod) for pod in self.trainers if pod.phase == "Failed")
        starts = (f"{pod.name}: {pod.starting}" for pod in self.trainers if pod.starting)
        detail = next(filter(None, (*failed, *starts)), "")
        return f"{text}; {detail}" if detail else text

    def cancelled_state(self, why: str) -> JobState:
        return self.failed_state(JobFailure(FailureClass.CANCELLED, (_sentence(why),)))

    def failed_state(self, failure: JobFailure) -> JobState:
        read = f"not known. Read: trainyard explain --job {self.observed.name}"
        fix = failure.fix or find_fix(failure.failure_class, failure.evidence) or read
        reason = failure.evidence[0]
        return replace(self.state(State.FAILED, reason), reason=reason, failure=replace(failure, fix=fix))

    def state(self, state: State, reason: str, waiting: Waiting | None = None) -> JobState:
        observed, wanted, notes = self.observed, self.reading.wanted, self.notes
        if waiting is not None:
            found = waiting.fix or find_fix(waiting.failure_class, [waiting.evidence])
            waiting = replace(waiting, fix=found)
        ended = state in (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
        return JobState(
            job=observed.name,
            namespace=observed.namespace,
            kind=observed.kind.name,
            state=state,
            reason=_sentence(reason),
            uid=uid_of(observed.job or {}),
            waiting=waiting,
            retries=whole_number(notes.get(RETRIES)) or 0,
            auto_retry=whole_number(notes.get(AUTO_RETRY)) or 0,
            followed_by=str(notes.get(FOLLOWED_BY) or ""),
            restarts=max(self.past.restarts(wanted), self.reading.restarts),
            pods=self.counts,
            alerts=tuple(_find_revivals(observed, self.reading.ended_at) if ended else _find_zones(observed)),
            holds_resources=ended and any(pod.live and not pod.deleting for pod in observed.pods),
            proof=NOT_REQUESTED if is_unproven(notes) else "",
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


def _find_revivals(observed: "Observed", ended_at: float | None) -> Iterator[str]:
    """Yield the alert about pods that an operator created after the end of their job.

    Kubeflow Trainer does so when the JobSet of a finished TrainJob is deleted (kubeflow/trainer#3737).
    """
    again = [
        pod.name
        for pod in observed.pods
        if ended_at is not None and pod.created > ended_at and pod.live and not (pod.deleting or pod.helps)
    ]
    if again:
        pods = again[0] if len(again) == 1 else f"{again[0]} and {len(again) - 1} more pods"
        yield f"its operator created {pods} after the job had ended: they train again until it is cancelled"


def _sentence(text: str) -> str:
    """Return the text with a capital letter, unless it begins with a name, such as that of a pod."""
    is_name = text.startswith(("jobset", "pod")) or "-" in text.partition(" ")[0]
    return text if is_name else text[:1].upper() + text[1:]
