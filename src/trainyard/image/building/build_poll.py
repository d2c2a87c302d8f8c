"""Run a build in CodeBuild to its end, and start it again if CodeBuild itself failed.

    start --> follow --> succeeded | failed | fault of CodeBuild itself: start again, three starts at most

The client of CodeBuild and the clock are passed in.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import (
    CheckFailedError,
    ServiceError,
    ServiceTroubleError,
    TrainyardError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from trainyard.gateways.images.codebuild import BuildState, CodeBuild, CodeBuildPhase

_BEFORE_OURS = ("SUBMITTED", "QUEUED", "PROVISIONING", "DOWNLOAD_SOURCE")


@dataclass(frozen=True)
class BuildPoll:
    """Starts and follows builds."""

    builds: "CodeBuild"
    log: Callable[[str, str], None]
    """Prints a line about an image."""
    clock: Callable[[], float]
    seconds: float
    """The time limit of a build with all of its starts."""
    poll_seconds: float
    most_attempts: int = 3
    """The most starts of one build. Only faults of CodeBuild itself are retried."""

    def follow(self, image: str, start: Callable[[int], str]) -> "BuildState":
        """Return the last state of a build that succeeded.

        `start` starts it, given the number of the attempt, and returns its id. Raises the error of
        `_failure`, WaitTimeoutError, and ServiceError when CodeBuild cannot be polled. A build that still
        runs then is stopped, also on an interrupt.
        """
        end = self.clock() + self.seconds
        for attempt in range(1, self.most_attempts + 1):
            build_id = start(attempt)
            again = f", attempt {attempt}" if attempt > 1 else ""
            state = self._follow_once(image, build_id, end, f"build {build_id} started{again}")
            if state.status == "SUCCEEDED":
                return state
            if attempt == self.most_attempts or not can_retry(state):
                break
            how = describe_build_end(state)
            self.log(image, f"{how}; another attempt may succeed, so it is started again")
        raise self._failure(image, state, attempt)

    def _follow_once(self, image: str, build_id: str, end: float, started: str) -> "BuildState":
        def report(phase: "CodeBuildPhase") -> None:
            seconds = f" in {phase.seconds:.0f} s" if phase.seconds is not None else ""
            self.log(image, f"phase {phase.name} {phase.status.lower()}{seconds}")

        with contextlib.ExitStack() as undo:
            undo.callback(lambda: self.log(image, self._stop(build_id)))
            self.log(image, started)
            left = end - self.clock()
            state = self.builds.follow(build_id, report, poll_seconds=self.poll_seconds, seconds=left)
            if state.status == "IN_PROGRESS":
                minutes = f"{self.seconds / 60:.0f} minutes"
                raise WaitTimeoutError(f"{image}: not done after {minutes}; --time-limit allows more.")
            undo.pop_all()
        return state

    def _stop(self, build_id: str) -> str:
        try:
            self.builds.stop(build_id)
        except ServiceError as error:
            return (
                f"The build {build_id} continues in AWS, because it could not be stopped: {error}\n"
                f"Stop it with: aws codebuild stop-build --region {self.builds.region} --id {build_id}"
            )
        return f"The build {build_id} was stopped."

    def _failure(self, image: str, state: "BuildState", attempts: int) -> TrainyardError:
        """Return the error for a build whose last attempt failed."""
        try:
            tail = self.builds.log_tail(state)
        except ServiceError as error:
            tail = [f"the log cannot be read: {error}"]
        tried = f" after {attempts} attempts" if attempts > 1 else ""
        text = f"{image}: the build {state.build_id} {describe_build_end(state)}{tried}."
        if tail:
            text += " The end of its log:\n" + "\n".join(f"  {line}" for line in tail)
        text += f"\nThe complete log: {state.log_address}" if state.log_address else ""
        failed = _failed_phase(state)
        if state.status == "TIMED_OUT":
            return WaitTimeoutError(text)
        is_theirs = state.status == "FAULT" or (failed is not None and failed.name in _BEFORE_OURS)
        kind = ServiceTroubleError if is_theirs and state.status != "STOPPED" else CheckFailedError
        return kind(text)


def can_retry(state: "BuildState") -> bool:
    """Return whether another attempt may succeed.

    It may after a fault of CodeBuild, but not after a command that failed.
    """
    failed = _failed_phase(state)
    if state.status == "FAULT" or failed is None:
        return state.status == "FAULT"
    if state.status == "TIMED_OUT":
        return failed.name in ("QUEUED", "PROVISIONING")
    is_theirs = failed.status == "FAULT" or failed.name == "PROVISIONING"
    is_refused = "AccessDenied" in failed.message or "not authorized" in failed.message
    return state.status == "FAILED" and is_theirs and not is_refused


def _failed_phase(state: "BuildState") -> "CodeBuildPhase | None":
    return next((phase for phase in state.phases if phase.status not in ("", "SUCCEEDED")), None)


def describe_build_end(state: "BuildState") -> str:
    """Return how a build ended, in a few words."""
    failed = _failed_phase(state)
    where = f" in {failed.name}" if failed else ""
    reason = f": {failed.message[:300]}" if failed and failed.message else ""
    return f"{state.status.lower().replace('_', ' ')}{where}{reason}"
