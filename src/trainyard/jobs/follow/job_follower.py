"""Follow a job to its end.

    JobView ──what is known──> judge ──> JobState ──report──> people
       ^ Workload, JobSet, events: read while the job does not run

The job does not need its follower: a follower may die, and another may follow the job at any time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError, WaitTimeoutError
from trainyard.jobs.follow.job_view import JobView
from trainyard.jobs.job_kind import Observed
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.state.job_state import JobFailure, JobState, State
from trainyard.watch.failure_classes import FailureClass

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

# The state depends on the time too, so it is judged this often without a report.
_POLL_SECONDS = 5.0
_LAST_SECONDS = 1.5
"""Seconds to wait for the last reports of pods after the status shows that the job has ended."""
_OTHERS_SECONDS = 60.0
"""The same if the ended pods only lost another pod, whose own report has not arrived yet."""


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
    end. With `lost_seconds`, the job counts as failed once it has waited that long for a lost node. Raises
    WaitTimeoutError if the job could not be seen at all in this time, PermissionRefusedError if it may not
    be seen, ConfigError if it does not exist.
    """
    with JobView(api, Observed(find_kind(kind), namespace, name, None), clock=clock) as view:
        follower = _JobFollower(api, view, clock, on_state, lost_seconds)
        return follower.follow_to_end(seconds)


@dataclass
class _JobFollower:
    """Follows one job."""

    _api: "Api"
    _view: JobView
    _clock: Callable[[], float]
    _on_state: Callable[[JobState], None]
    _lost_seconds: float | None
    _reported: tuple[State, str, int] | None = None
    _lost_since: float | None = None

    def follow_to_end(self, seconds: float) -> JobState:
        """See `follow_job`."""
        deadline = self._clock() + seconds
        state: JobState | None = None
        while (left := deadline - self._clock()) > 0:
            changed = self._view.take(min(left, max(0.2, self._view.seconds_until_observation)))
            if not self._view.is_seen:
                continue
            if changed or self._view.seconds_until_observation <= 0:
                if not self._view.exists:
                    kind = self._view.observation().kind.api_kind
                    raise ConfigError(f"There is no {kind} {self._view.name} to follow")
                state = self._state_now()
                if state.ended:
                    return self._final_state(state)
            if state is not None and (given_up := self._give_up(state)) is not None:
                return given_up
        if state is None:
            raise WaitTimeoutError(
                f"{self._api.access.server} showed nothing of {self._view.name} in {seconds:.0f} seconds"
            )
        return state

    def _give_up(self, state: JobState) -> JobState | None:
        """Return the state as failed if the job has waited for a lost node as long as it may; else None.

        A node that is only silent may answer again until Kubernetes removes its pods.
        """
        waiting = state.waiting
        silent = {pod.node for pod in self._view.pods if pod.silent and not pod.disruption}
        is_lost = waiting is not None and waiting.failure_class is FailureClass.NODE_LOST
        if waiting is None or not is_lost or waiting.node in silent - {""}:
            self._lost_since = None
            return None
        self._lost_since = self._lost_since or self._clock()
        if self._lost_seconds is None or self._clock() - self._lost_since < self._lost_seconds:
            return None
        failure = JobFailure(
            waiting.failure_class, (waiting.evidence,), recovers=True, node=waiting.node, fix=waiting.fix
        )
        return replace(state, state=State.FAILED, failure=failure, reason=waiting.evidence)

    def _state_now(self) -> JobState:
        state = self._view.current_state()
        reported = (state.state, state.reason, state.restarts)
        if reported != self._reported and not state.ended:
            self._reported = reported
            self._on_state(state)
        return state

    def _wait_for_cause(self, state: JobState) -> JobState:
        """Wait until the pod that the others lost has reported or is gone; return the final state."""
        until = self._clock() + _OTHERS_SECONDS
        while state.failure is not None and state.failure.lost_another:
            again = self._view.judge()
            state = again if again.ended else state
            waits = any(pod.live for pod in self._view.pods)
            left = until - self._clock()
            if not waits or left <= 0 or not again.ended:
                break
            self._view.take(min(left, _POLL_SECONDS))
        return state

    def _final_state(self, state: JobState) -> JobState:
        """Return the final state, including the pods' last reports and one last observation."""
        until = self._clock() + _LAST_SECONDS
        while (left := until - self._clock()) > 0 and state.state is not State.SUCCEEDED:
            self._view.take(left)
        state = self._wait_for_cause(state)
        self._view.list_pods()  # their watch may be broken
        self._view.observe_around()
        again = self._view.judge()
        state = again if again.ended else state
        self._on_state(state)
        return state
