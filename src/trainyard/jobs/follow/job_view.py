"""Follow a job: one watch of the job, one of its pods, however many there are.

    watch of the job ──┐
    watch of its pods ─┴─reports──> Observed, History ──judge──> JobState ──report──> people
                          ^ Workload, JobSet, events: read while the job does not run

A broken watch, an expired token and a restart of the API server are waited out; `trouble` says so meanwhile.
What the state is, `jobs/state` decides. The job does not need its follower: a follower may die, and another
may follow the job at any time.
"""

import logging
import math
import queue
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trainyard.cluster.server_side_apply import path_part
from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, WaitTimeoutError
from trainyard.jobs.job_kind import Observed
from trainyard.jobs.job_reader import FoundJob, JobReader
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.state.job_state import JobFailure, JobState, State, Waiting
from trainyard.jobs.state.pod_facts import History, PodFacts, pod_facts
from trainyard.jobs.state.reading import Json, uid_of
from trainyard.jobs.state.state_machine import judge_job
from trainyard.watch.failure_classes import FailureClass

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api
    from trainyard.gateways.kubernetes.list_watch import Report, Watch

_JOB, _PODS = "job", "pods"
_SETTLE_SECONDS = 0.5
"""Reports that arrive within this time are judged together."""
_OBSERVE_SECONDS, _CALM_SECONDS = 5.0, 60.0
"""Seconds between reads of Workload, JobSet and events while the job does not run, and while it runs."""
_LAST_SECONDS = 1.5
"""Seconds to wait for the last reports of pods after the status shows that the job has ended."""
_OTHERS_SECONDS = 60.0
"""The same if the ended pods only lost another pod, whose own report has not arrived yet."""
_logger = logging.getLogger(__name__)


def follow_job(
    api: "Api",
    *,
    namespace: str,
    name: str,
    kind: str,
    seconds: float,
    on_state: Callable[[JobState], None],
    lost_seconds: float = math.inf,
) -> JobState:
    """Return the state in which the job ended, or its state after `seconds`, whose `exit_code` is then 5.

    `on_state` receives the state whenever it, its reason, or the count of restarts has changed, and at the
    end. With `lost_seconds`, the job counts as failed once it has waited that long for a lost node. Raises
    WaitTimeoutError if the job could not be seen at all in this time, PermissionRefusedError if it may not
    be seen, ConfigError if it does not exist.
    """
    with JobView(api, Observed(find_kind(kind), namespace, name, None)) as view:
        return view.follow_to_end(seconds, on_state, lost_seconds)


class JobView:
    """Known facts of one job. Use it with `with`: the watches end with it."""

    def __init__(self, api: "Api", known: Observed, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`known` names the job."""
        self._api, self._reader, self._clock = api, JobReader(api), clock
        self._known = known
        self._reports: queue.Queue[Report] = queue.Queue()
        self._pods: dict[str, PodFacts] = {}
        self._uid, self._selector = "", ""
        self._job_seen = False
        """The first list of the job has arrived."""
        self._pods_seen = False
        self._watches: dict[str, Watch] = {}
        self._broken: dict[str, ServiceError] = {}
        self.history = History()
        self._state: JobState | None = None
        self._around_at = -_CALM_SECONDS

    def __enter__(self) -> "JobView":
        path = self._known.kind.path(path_part(self._known.namespace))
        self._watch(_JOB, path, dict, fieldSelector=f"metadata.name={self._known.name}")
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches.values():
            watch.end()

    @property
    def is_seen(self) -> bool:
        """Return whether the first lists of the job and of its pods have arrived."""
        return self._job_seen and (self._pods_seen or self._known.job is None)

    @property
    def pods(self) -> tuple[PodFacts, ...]:
        return tuple(self._pods.values())

    @property
    def trouble(self) -> ServiceError | None:
        """Return why the job or its pods cannot be seen now; None if everything is current."""
        return next(iter(self._broken.values()), None)

    def observation(self) -> Observed:
        """Return everything that is known now."""
        self._known = replace(self._known, pods=self.pods, now=self._api.cluster_time())
        return self._known

    def observe_around(self) -> None:
        """Read Workload, JobSet and events again."""
        self._around_at = self._clock()
        try:
            self._known = self._reader.observe_around(self.observation())
        except ServiceError as error:
            _logger.debug("Workload and events are not seen now: %s", error)

    @property
    def seconds_until_observation(self) -> float:
        """The seconds until Workload, JobSet and events are to be read again."""
        is_calm = self._state is not None and self._state.state is State.RUNNING
        return self._around_at + (_CALM_SECONDS if is_calm else _OBSERVE_SECONDS) - self._clock()

    def current_state(self) -> JobState:
        """Return the state; Workload, JobSet and events are read if they are due or if the state changed."""
        before = self._state
        if self.seconds_until_observation <= 0:
            self.observe_around()
        state = self.judge()
        if before is not None and before.state is not state.state and not state.ended:
            self.observe_around()
            state = self.judge()
        self._state = state
        return state

    def judge(self) -> JobState:
        """Return the state by everything that is known, and remember what was seen."""
        state = judge_job(self.observation(), self.history)
        self.history = self.history.with_pods(self.pods, ran=state.state is State.RUNNING)
        return state

    def follow_to_end(
        self, seconds: float, on_state: Callable[[JobState], None], lost_seconds: float
    ) -> JobState:
        """See `follow_job`."""
        deadline = self._clock() + seconds
        state: JobState | None = None
        reported, lost_since = None, None
        while (left := deadline - self._clock()) > 0:
            changed = self.take(min(left, max(0.2, self.seconds_until_observation)))
            if not self.is_seen:
                continue
            if changed or self.seconds_until_observation <= 0:
                if not self._uid:
                    raise ConfigError(f"There is no {self._known.kind.api_kind} {self._known.name} to follow")
                state = self.current_state()
                if state.ended:
                    state = self._final_state(state)
                    on_state(state)
                    return state
                if (state.state, state.reason, state.restarts) != reported:
                    reported = (state.state, state.reason, state.restarts)
                    on_state(state)
            if state is None or (lost := self._lost_node(state)) is None:
                lost_since = None
                continue
            lost_since = lost_since or self._clock()
            if self._clock() - lost_since >= lost_seconds:
                why = (lost.evidence,)
                failure = JobFailure(lost.failure_class, why, recovers=True, node=lost.node, fix=lost.fix)
                return replace(state, state=State.FAILED, failure=failure, reason=lost.evidence)
        if state is None:
            raise WaitTimeoutError(
                f"{self._api.access.server} showed nothing of {self._known.name} in {seconds:.0f} seconds"
            )
        return state

    def _lost_node(self, state: JobState) -> Waiting | None:
        """Return that the job waits for a lost node; None if it does not.

        A node that is only silent may answer again until Kubernetes removes its pods.
        """
        waiting = state.waiting
        if waiting is None or waiting.failure_class is not FailureClass.NODE_LOST:
            return None
        silent = {pod.node for pod in self.pods if pod.silent and not pod.disruption}
        return None if waiting.node in silent - {""} else waiting

    def _final_state(self, state: JobState) -> JobState:
        """Return the final state, including the pods' last reports and one last observation."""
        until = self._clock() + _LAST_SECONDS
        while (left := until - self._clock()) > 0 and state.state is not State.SUCCEEDED:
            self.take(left)
        until = self._clock() + _OTHERS_SECONDS
        while state.failure is not None and state.failure.lost_another:
            # The pod that the others lost has not reported yet.
            again = self.judge()
            state = again if again.ended else state
            left = until - self._clock()
            if left <= 0 or not again.ended or not any(pod.live for pod in self.pods):
                break
            self.take(min(left, _OBSERVE_SECONDS))
        if self._known.job is not None and not self._known.deleted:  # the watch of the pods may be broken
            job = FoundJob(self._known.kind, self._known.namespace, self._known.name, self._known.job)
            if listed := self._reader.pods(job):
                self._pods = {pod.uid: pod for pod in listed}
        self.observe_around()
        again = self.judge()
        return again if again.ended else state

    def take(self, wait: float) -> bool:
        """Wait for a report and process it with those right after it; return whether there was one.

        Raises PermissionRefusedError if the job may not be watched.
        """
        if not self._apply_next(wait):
            return False
        settled = self._clock() + _SETTLE_SECONDS
        while self._apply_next(settled - self._clock()):
            pass
        return True

    def catch_up(self, seconds: float) -> None:
        """Process all reports so far; wait up to `seconds` for the first lists, unless a watch is broken.

        Raises PermissionRefusedError if the job may not be watched.
        """
        deadline = self._clock() + seconds
        while self._apply_next(deadline - self._clock() if not self.is_seen and self.trouble is None else 0):
            pass

    def _apply_next(self, wait: float) -> bool:
        """Process the next report, which may come within `wait` seconds; return whether there was one."""
        try:
            report = self._reports.get(wait > 0, max(0.0, wait))
        except queue.Empty:
            return False
        self._apply_report(report)
        return True

    def _apply_report(self, report: "Report") -> None:
        if report.news == "broken":
            self._broken[report.source] = report.error or ServiceError("the API server does not answer")
            _logger.warning("%s; trying again, the job continues meanwhile", report.error)
            return
        if report.news == "refused":
            self._take_refusal(report)
            return
        self._broken.pop(report.source, None)
        if report.news == "back":
            _logger.info("the API server answers again")
        elif report.source == _JOB:
            self._take_job(report)
        else:
            self._take_pods(report)

    def _take_refusal(self, report: "Report") -> None:
        if report.source == _JOB:
            raise report.error or PermissionRefusedError("the job may not be watched")
        self._broken[_PODS] = report.error or PermissionRefusedError("the pods may not be watched")
        _logger.warning("the pods are not seen, the state is judged without them: %s", report.error)
        self._pods_seen = True

    def _take_job(self, report: "Report") -> None:
        self._job_seen = True
        found = report.objects[0] if report.objects else None
        if found is not None and self._uid and uid_of(found) != self._uid:
            found = None  # the job was deleted, and another one was created under its name
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
        if report.news == "listed":
            self._pods = {pod.uid: pod for pod in report.objects}
        elif report.news == "deleted":
            for pod in report.objects:
                self._pods.pop(pod.uid, None)
        else:
            self._pods.update((pod.uid, pod) for pod in report.objects)
        self.history = self.history.with_pods(report.objects)

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
