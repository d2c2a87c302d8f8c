"""Follow a job, and send it again after failures that a retry can recover from, until it succeeds or may not
be retried.

    follow ──failed──> decide ──> claim (an annotation, with the resource version that was read)
      ^                                       │ back-off, by the clock of the cluster
      └──── the next job <── create once <────┘ the old job's pods are gone

No state is kept here: the budget, the attempts and the claim are in the objects. Two watchers cannot spend
a retry twice, because only one of their claims is accepted and its job is created once. Any other watcher
can replace one that dies; it carries out the claim that it finds.
"""

import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.cluster.fitness import leaving_reason
from trainyard.errors import ConfigError, DamagedFileError, ServiceError, WaitTimeoutError
from trainyard.jobs.follow.job_changes import JobEditor
from trainyard.jobs.follow.job_view import follow_job
from trainyard.jobs.job_object import AUTO_RETRY, CANCELLED, FOLLOWED_BY, RETRY_CLAIM, RETRY_RECORD
from trainyard.jobs.job_reader import FoundJob, JobReader, read_nodes
from trainyard.jobs.state.job_state import JobState, State
from trainyard.jobs.state.pod_facts import PodFacts, pod_facts, whole_number
from trainyard.jobs.state.reading import Json, annotations_of, uid_of
from trainyard.jobs.state.state_machine import judge_job
from trainyard.jobs.volumes.checkpoint_search import newest_step_on_claim
from trainyard.run.suggested_commands import DEFAULT_CLUSTER, ClusterTarget
from trainyard.watch.retry_decision import (
    Retry,
    RetryClaim,
    RetryRecord,
    Stop,
    claim_from,
    decide_retry,
    may_be_a_lost_node,
    record_from,
    with_lost_nodes,
)

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_PAUSE = 2.0
_CONFLICTS = 20
# A job waits this long, until it is sent again, for a lost node after Kubernetes gave up its pod.
_LOST_SECONDS = 60.0
# A failed job's last pods are watched this long, because a lost node shows only after 50 seconds.
_NODE_SECONDS = 90.0
# The pods of the old job must be gone within this time.
_GONE_SECONDS = 900.0
_logger = logging.getLogger(__name__)


class RetryLoop:
    """Retries one job, and the jobs that replace it."""

    def __init__(
        self,
        api: "Api",
        announce: Callable[..., None],
        *,
        target: ClusterTarget = DEFAULT_CLUSTER,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`announce` receives states of jobs and actions; messages name commands for the cluster `target`."""
        self._api, self._reader, self._announce, self._target = api, JobReader(api), announce, target
        self._clock, self._wait = clock, wait

    def follow_to_end(
        self, namespace: str, name: str, kind: str | None, seconds: float, *, retries: bool = True
    ) -> JobState:
        """Follow the job for at most `seconds`; with `retries` the last one that replaced it, and retry it.

        Return the state of the last job; why it was not sent again is announced. Pods that an operator
        creates after the end are stopped. Raises the errors of `follow_job`; WaitTimeoutError if the old
        job's pods stay; RunConflictError.
        """
        deadline = self._clock() + seconds
        job, why = self._reader.find_job(namespace, name, kind), ""
        if retries:
            job = self._last_of_chain(job)
        while True:
            state = follow_job(
                self._api,
                **job.place,
                seconds=max(1.0, deadline - self._clock()),
                on_state=self._announce_state,
                lost_seconds=_LOST_SECONDS if retries and job.kind.suspend else math.inf,
            )
            if not (retries and state.ended) or state.state is State.SUCCEEDED:
                break
            now = self._read(job)
            claimed = Stop("it was deleted") if now is None else self._claim(now, state)
            if now is None or isinstance(claimed, Stop):
                why = claimed.why
                break
            if why := self._wait_for_backoff(now, claimed, deadline):
                break
            self._stop_pods(now)
            job = self._send(now, claimed)
        if why:
            self._announce("retry", f"{state.job}: {why}", "degraded")
        if state.revived:
            self._stop_revived(state)
        return state

    def _stop_revived(self, state: JobState) -> None:
        """Stop the pods that an operator created after the end of their job: they train it again."""
        job = self._reader.find_job(state.namespace, state.job, state.kind)
        done = "; ".join(JobEditor(self._reader, job).stop())
        self._announce("job", f"{state.alerts[0].partition(':')[0]}; stopped: {done}", "degraded")

    def preview(self, job: FoundJob) -> str:
        """Return in a sentence what would be done about the job now; nothing is changed."""
        job = self._last_of_chain(job)
        state = judge_job(self._reader.observe(job))
        if not state.ended:
            return f"{job.name} is {state.state}: there is nothing to send again"
        if text := annotations_of(job.raw).get(RETRY_CLAIM):
            return f"{job.name}: the retry as {claim_from(str(text)).next_name} is decided, and would be sent"
        decided = self._decide(job, state)
        verb = "would be sent again" if isinstance(decided, Retry) else "would not be sent again"
        return f"{job.name} {verb}: {decided.why}"

    def _last_of_chain(self, job: FoundJob) -> FoundJob:
        while name := str(annotations_of(job.raw).get(FOLLOWED_BY) or ""):
            raw = self._api.get(job.path_of(name))
            if raw is None:
                words = ("job", "resubmit", job.name)
                raise ConfigError(
                    f"{job.name} was sent again as {name}, which is gone; send it again yourself: "
                    + self._target.command(*words, namespace=job.namespace)
                )
            job = replace(job, name=name, raw=raw)
        return job

    def _announce_state(self, state: JobState) -> None:
        verdict = ("failed" if state.exit_code else "ok") if state.ended else ""
        self._announce("job", f"{state.job}: {state.state}: {state.reason}", verdict)

    def _read(self, job: FoundJob) -> FoundJob | None:
        """Return the present job; None if it is gone, or another one has its name."""
        raw = self._api.get(job.path)
        return None if raw is None or uid_of(raw) != uid_of(job.raw) else replace(job, raw=raw)

    def _claim(self, job: FoundJob, state: JobState) -> RetryClaim | Stop:
        """Return the retry recorded in the object, either another watcher's or ours."""
        decided: Retry | Stop | None = None
        for _ in range(_CONFLICTS):
            notes = annotations_of(job.raw)
            if CANCELLED in notes:
                return Stop("it was cancelled")
            try:
                if RETRY_CLAIM in notes:
                    return claim_from(str(notes[RETRY_CLAIM]))
                decided = decided or self._decide(job, state)
            except DamagedFileError as error:
                return Stop(str(error))
            if isinstance(decided, Stop):
                return decided
            last = decided.record.attempts[-1]
            claim = RetryClaim(
                next_name=JobEditor(self._reader, job).next_name(),
                not_before=self._api.cluster_time() + decided.seconds,
                record=decided.record,
                avoided=decided.avoided,
                failure_class=last.failure_class,
                why=last.signature,
            )
            version = (job.raw.get("metadata") or {})["resourceVersion"]
            claimed = {RETRY_CLAIM: claim.to_json()}
            body = {"metadata": {"resourceVersion": version, "annotations": claimed}}
            status, answer = self._api.merge(job.path, body)
            if status == 200:
                text = f"{job.name} is sent again as {claim.next_name}: {decided.why}"
                self._announce("retry", text, "degraded")
                return claim
            if status not in (404, 409):  # the job has gone, or has changed since it was read
                raise self._api.refusal(f"the retry of {job.name} cannot be recorded", status, answer)
            again = self._read(job)
            if again is None:
                return Stop("it was deleted")
            job = again
        raise ServiceError(f"{job.name} changes faster than a retry can be claimed ({_CONFLICTS} conflicts)")

    def _decide(self, job: FoundJob, state: JobState) -> Retry | Stop:
        record = record_of(job.raw)
        state = with_lost_nodes(state, self._lost_nodes(job, state))
        failure = state.failure
        may_be_sent = failure is not None and (failure.retryable or failure.is_unknown)
        known = newest_step_on_claim(self._api, job) if may_be_sent else None
        return decide_retry(state, record, step=known, jitter=random.random())  # noqa: S311 - no secret

    def _lost_nodes(self, job: FoundJob, state: JobState) -> dict[str, str]:
        """Return the faults of nodes whose pods have not reported their end, by the name of the node.

        While pods of the failed job neither end nor disappear, one of their nodes may be about to be lost. A
        node that disappeared after a pod ended there, as when a cluster shrinks, means nothing.
        """
        if not may_be_a_lost_node(state):
            return {}
        until = self._clock() + _NODE_SECONDS
        while True:
            left = self._live_pods(job)
            nodes = {pod.node for pod in left} - {""}
            lost = {node: why for node in sorted(nodes) if (why := self._trouble_of(node))}
            if lost or not left or self._clock() > until:
                return lost
            self._wait(_PAUSE)

    def _trouble_of(self, node: str) -> str:
        try:
            found = read_nodes(self._api, (node,))[node]
        except ServiceError as error:
            _logger.debug("the node %s cannot be read: %s", node, error)
            return ""
        if found is None:
            return "is gone"
        if not found.ready:
            return "does not answer"
        # A notice of an interruption or of maintenance is a taint or a condition of the node.
        reason = leaving_reason(found)
        return f"is about to be replaced: {reason}" if reason not in ("", "it is cordoned") else ""

    def _wait_for_backoff(self, job: FoundJob, claim: RetryClaim, deadline: float) -> str:
        """Wait for the back-off; return why the job is not sent then, empty if it is."""
        while not (why := self._objection(job)) and (left := claim.not_before - self._api.cluster_time()) > 0:
            if self._clock() >= deadline:
                return f"the retry as {claim.next_name} waits; watch again to continue"
            self._wait(min(left, _PAUSE))
        return why

    def _objection(self, job: FoundJob) -> str:
        """Return why somebody no longer wants the retry; empty otherwise."""
        now = self._read(job)
        if now is None:
            return "it was deleted before it was sent again"
        return "it was cancelled before it was sent again" if CANCELLED in annotations_of(now.raw) else ""

    def _stop_pods(self, job: FoundJob) -> None:
        """Stop the rest of the old job, and wait until its pods are gone or their node is lost."""
        until, requested = self._clock() + _GONE_SECONDS, False
        while self._is_writing(job):
            if not requested and not all(pod.deleting for pod in self._live_pods(job)):
                requested = True
                JobEditor(self._reader, job).stop()
            if self._clock() > until:
                raise WaitTimeoutError(
                    f"pods of {job.name} are still there after {_GONE_SECONDS:.0f} seconds, so it is not "
                    "sent again: two jobs would write the same checkpoints. Delete it and resubmit"
                )
            self._wait(_PAUSE)

    def _is_writing(self, job: FoundJob) -> bool:
        """Return whether a pod of the job may still write: it has not ended, and its node answers."""
        return not all(
            pod.node and pod.deleting and self._trouble_of(pod.node) for pod in self._live_pods(job)
        )

    def _live_pods(self, job: FoundJob) -> list[PodFacts]:
        """Return the pods of a job that have not ended. Raises ServiceError if they may not be listed."""
        found = (pod_facts(raw, job.kind) for raw in self._reader.raw_pods(job))
        return [pod for pod in found if pod.live]

    def _send(self, job: FoundJob, claim: RetryClaim) -> FoundJob:
        """Create the next job unless somebody has, and record it in the old one."""
        now = self._read(job)
        if now is not None and not annotations_of(now.raw).get(FOLLOWED_BY):
            editor = JobEditor(self._reader, now)
            editor.create(editor.retry(claim))
            self._api.merge(job.path, {"metadata": {"annotations": {FOLLOWED_BY: claim.next_name}}})
        raw = self._api.get(job.path_of(claim.next_name))
        if raw is None:
            raise ConfigError(f"{job.name} was sent again as {claim.next_name}, which somebody has deleted")
        return replace(job, name=claim.next_name, raw=raw)


def record_of(job: Json) -> RetryRecord:
    """Return the record in the annotations of a job. Raises DamagedFileError for one that cannot be read."""
    notes = annotations_of(job)
    text = str(notes.get(AUTO_RETRY) or "0")
    if (allowed := whole_number(text)) is None:
        raise DamagedFileError(f"the annotation {AUTO_RETRY} is not a number: {text[:60]!r}")
    return record_from(notes.get(RETRY_RECORD, "{}"), allowed=allowed, annotation=RETRY_RECORD)
