"""Follow a job to its end: one watch for the job, one for its pods, however many there are.

    watch of the job ──┐
    watch of its pods ─┴─reports──> what is known ──judge──> JobState ──report──> people
                                        ^ Workload, JobSet, events: read while the job does not run

The job does not need its follower: a follower may die, and another may follow the job at any time. A broken
watch, an expired token and a restart of the API server are waited out.
"""

import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trainyard.cluster.object_path import path_part
from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, WaitTimeoutError
from trainyard.jobs.job_reader import FoundJob, JobReader
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.state.job_state import JobState, State
from trainyard.jobs.state.observed import History, Observed
from trainyard.jobs.state.pod_facts import PodFacts, pod_facts
from trainyard.jobs.state.reading import uid_of
from trainyard.jobs.state.state_machine import after, judge_job
from trainyard.watch.failure_classes import FailureClass

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api
    from trainyard.gateways.kubernetes.list_watch import Report, Watch

Json = Mapping[str, Any]
_JOB, _PODS = "job", "pods"
_SETTLE_SECONDS = 0.5
"""Reports that arrive within this time are judged together."""
_OBSERVE_SECONDS = 5.0
"""Seconds between reads of Workload, JobSet and events while the job does not run."""
_CALM_SECONDS = 60.0
"""The same while it runs."""
_LAST_SECONDS = 1.5
"""Seconds to wait for the last reports of pods after the status shows that the job has ended."""
_OTHERS_SECONDS = 60.0
"""The same where the pods that have ended only lost another one, which is still about to end."""
_logger = logging.getLogger(__name__)


def follow_job(
    api: "Api",
    *,
    namespace: str,
    name: str,
    kind: str,
    seconds: float,
    on_state: Callable[[JobState], None],
    lost_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> JobState:
    """Return the state in which the job ended, or its state after `seconds`, whose `exit_code` is then 5.

    `on_state` receives the state whenever it, its reason, or the count of restarts has changed, and at the
    end. With `lost_seconds`, the wait also ends once the job has waited that long for a lost node. Raises
    WaitTimeoutError if the job could not be seen at all in this time, PermissionRefusedError if it may not
    be seen, ConfigError if there is none.
    """
    known = Observed(find_kind(kind), namespace, name, None)
    return _JobFollower(api, known, on_state, lost_seconds=lost_seconds, clock=clock).follow_to_end(seconds)


class _JobFollower:
    """Follows one job."""

    def __init__(
        self,
        api: "Api",
        known: Observed,
        on_state: Callable[[JobState], None],
        *,
        lost_seconds: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._api, self._reader, self._clock = api, JobReader(api), clock
        self._known, self._on_state, self._lost_seconds = known, on_state, lost_seconds
        self._reports: queue.Queue[Report] = queue.Queue()
        self._pods: dict[str, PodFacts] = {}
        self._uid, self._selector = "", ""
        self._seen = False
        """The first list of the job has arrived."""
        self._pods_seen = False
        self._history = History()
        self._reported: tuple[State, str, int] | None = None
        self._observed_at = -_CALM_SECONDS
        self._watches: dict[str, Watch] = {}
        self._lost_since: float | None = None

    def follow_to_end(self, seconds: float) -> JobState:
        """See `follow_job`."""
        deadline = self._clock() + seconds
        path = self._known.kind.path(path_part(self._known.namespace))
        self._watch(_JOB, path, dict, fieldSelector=f"metadata.name={self._known.name}")
        try:
            return self._until(deadline, seconds)
        finally:
            for watch in self._watches.values():
                watch.end()

    def _until(self, deadline: float, seconds: float) -> JobState:
        state: JobState | None = None
        while (left := deadline - self._clock()) > 0:
            changed = self._take(min(left, max(0.2, self._seconds_until_observation(state))))
            if not self._seen or not (self._pods_seen or self._known.job is None):
                continue
            if changed or self._seconds_until_observation(state) <= 0:
                if not self._uid:
                    raise ConfigError(f"There is no {self._known.kind.api_kind} {self._known.name} to follow")
                state = self._state_now(state)
                if state.ended:
                    return self._final_state(state)
            if state is not None and self._is_given_up(state):
                return state
        if state is None:
            raise WaitTimeoutError(
                f"{self._api.access.server} showed nothing of {self._known.name} in {seconds:.0f} seconds"
            )
        return state

    def _is_given_up(self, state: JobState) -> bool:
        """Return whether the job has waited for a lost node as long as it may.

        A node that is only silent may answer again until Kubernetes removes its pods.
        """
        waiting = state.waiting
        silent = {pod.node for pod in self._pods.values() if pod.silent and not pod.disruption}
        if (
            waiting is None
            or waiting.failure_class is not FailureClass.NODE_LOST
            or (waiting.node and waiting.node in silent)
        ):
            self._lost_since = None
            return False
        self._lost_since = self._lost_since or self._clock()
        waited = self._clock() - self._lost_since
        return self._lost_seconds is not None and waited >= self._lost_seconds

    def _seconds_until_observation(self, state: JobState | None) -> float:
        """Return the seconds until Workload, JobSet and events are read again."""
        calm = state is not None and state.state is State.RUNNING
        return self._observed_at + (_CALM_SECONDS if calm else _OBSERVE_SECONDS) - self._clock()

    def _take(self, wait: float) -> bool:
        """Wait for a report and process it with those right after it; return whether there was one."""
        try:
            report = self._reports.get(timeout=wait)
        except queue.Empty:
            return False
        self._apply_report(report)
        settled = self._clock() + _SETTLE_SECONDS
        while True:
            try:
                left = settled - self._clock()
                self._apply_report(
                    self._reports.get(timeout=left) if left > 0 else self._reports.get_nowait()
                )
            except queue.Empty:
                return True

    def _apply_report(self, report: "Report") -> None:
        if report.news == "broken":
            _logger.warning("%s; trying again, the job does not need us", report.error)
        elif report.news == "back":
            _logger.info("the API server answers again")
        elif report.news == "refused":
            self._take_refusal(report)
        elif report.source == _JOB:
            self._take_job(report)
        else:
            self._take_pods(report)

    def _take_refusal(self, report: "Report") -> None:
        if report.source == _JOB:
            raise report.error or PermissionRefusedError("the job may not be watched")
        _logger.warning("the pods are not seen, the state is judged without them: %s", report.error)
        self._pods_seen = True

    def _take_job(self, report: "Report") -> None:
        self._seen = True
        found = report.objects[0] if report.objects else None
        if found is not None and self._uid and uid_of(found) != self._uid:
            found = None  # deleted, and another one of the same name was made
        if report.news == "deleted":
            if found is not None:
                self._known = replace(self._known, job=found, deleted=True)
            return
        if self._known.deleted:
            return
        self._known = replace(self._known, job=found)
        if found is not None:
            self._uid = self._uid or uid_of(found)
            self._watch_pods(found)

    def _take_pods(self, report: "Report") -> None:
        self._pods_seen = True
        gone: tuple[PodFacts, ...] = ()
        if report.news == "listed":
            self._pods = {pod.uid: pod for pod in report.objects}
        elif report.news == "deleted":
            gone = report.objects
            for pod in gone:
                self._pods.pop(pod.uid, None)
        else:
            self._pods.update((pod.uid, pod) for pod in report.objects)
        self._history = self._history.with_pods(report.objects)

    def _watch_pods(self, job: Json) -> None:
        """Watch the pods of the job, and again if their label has changed, as when a RayJob is retried."""
        selector = self._known.kind.pod_selector(job)
        if selector == self._selector or selector.endswith("="):
            self._pods_seen = self._pods_seen or selector.endswith("=")
            return
        self._selector = selector
        path = f"/api/v1/namespaces/{path_part(self._known.namespace)}/pods"
        self._watch(_PODS, path, partial(pod_facts, kind=self._known.kind), labelSelector=selector)

    def _watch(self, source: str, path: str, keep: Callable[[Json], Any], **query: str) -> None:
        if source in self._watches:
            self._watches[source].end()
        self._watches[source] = self._api.watch(path, self._reports.put, source=source, keep=keep, **query)
        self._watches[source].start()

    def _state_now(self, before: JobState | None) -> JobState:
        self._known = replace(self._known, pods=tuple(self._pods.values()), now=self._api.cluster_time())
        if self._seconds_until_observation(before) <= 0:
            self._observe_around()
        self._history = after(self._known, self._history)
        state = judge_job(self._known, self._history)
        if before is not None and before.state is not state.state and not state.ended:
            self._observe_around()
            state = judge_job(self._known, self._history)
        reported = (state.state, state.reason, state.restarts)
        if reported != self._reported and not state.ended:
            self._reported = reported
            self._on_state(state)
        return state

    def _observe_around(self) -> None:
        self._observed_at = self._clock()
        try:
            self._known = self._reader.observe_around(self._known)
        except ServiceError as error:
            _logger.debug("Workload and events are not seen now: %s", error)

    def _wait_for_cause(self, state: JobState) -> JobState:
        """Return the end, once the pod that was lost to the others has reported the cause, or is gone."""
        until = self._clock() + _OTHERS_SECONDS
        while state.failure is not None and state.failure.lost_another:
            self._known = replace(self._known, pods=tuple(self._pods.values()))
            again = judge_job(self._known, after(self._known, self._history))
            state = again if again.ended else state
            waits = any(pod.live for pod in self._pods.values())
            left = until - self._clock()
            if not waits or left <= 0 or not again.ended:
                break
            self._take(min(left, _OBSERVE_SECONDS))
        return state

    def _final_state(self, state: JobState) -> JobState:
        """Return the final state, including the pods' last reports and one last observation."""
        until = self._clock() + _LAST_SECONDS
        while (left := until - self._clock()) > 0 and state.state is not State.SUCCEEDED:
            self._take(left)
        state = self._wait_for_cause(state)
        if self._known.job is not None and not self._known.deleted:
            job = FoundJob(self._known.kind, self._known.namespace, self._known.name, self._known.job)
            if listed := self._reader.pods(job):  # the watch of the pods may have been broken
                self._pods = {pod.uid: pod for pod in listed}
        self._known = replace(self._known, pods=tuple(self._pods.values()), now=self._api.cluster_time())
        self._observe_around()
        again = judge_job(self._known, after(self._known, self._history))
        state = again if again.ended else state
        self._on_state(state)
        return state
