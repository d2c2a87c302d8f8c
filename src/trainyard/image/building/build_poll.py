"""Follow builds in CodeBuild: poll their states until all have ended; repeat one if CodeBuild itself failed.

    start all --> poll --> succeeded | failed | fault of CodeBuild itself: start again, three starts at most

The client of CodeBuild, the clock and the pause are passed in.
"""

from collections.abc import Callable, Mapping, Sequence
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

# The poll fails when CodeBuild has not answered this many times in a row.
_LOST_ANSWERS = 5
_BEFORE_OURS = ("SUBMITTED", "QUEUED", "PROVISIONING", "DOWNLOAD_SOURCE")


@dataclass
class _Run:
    start: Callable[[int], str]
    """Starts the build, given the number of the attempt; returns its id."""
    build_id: str = ""
    attempt: int = 0
    reported_phases: int = 0


@dataclass(frozen=True)
class BuildPoll:
    """Starts and follows builds."""

    builds: "CodeBuild"
    log: Callable[[str, str], None]
    """Prints a line about an image."""
    clock: Callable[[], float]
    pause: Callable[[float], None]
    seconds: float
    """The time limit of all builds together."""
    poll_seconds: float
    most_attempts: int = 3
    """The most starts of one build. Only faults of CodeBuild itself are retried."""

    def follow(self, starts: Mapping[str, Callable[[int], str]]) -> dict[str, "BuildState | TrainyardError"]:
        """Start the builds of images; return the last state of those that succeeded, else why they failed.

        Raises WaitTimeoutError, and ServiceError when CodeBuild cannot be polled. Builds that still run then
        are stopped, also on an interrupt.
        """
        end, lost = self.clock() + self.seconds, 0
        ended: dict[str, BuildState | TrainyardError] = {}
        running = {image: _Run(start) for image, start in starts.items()}
        try:
            for image, run in list(running.items()):
                self._start(image, run)
            while running:
                self.pause(self.poll_seconds)
                try:
                    states = self.builds.states([run.build_id for run in running.values()])
                    lost = 0
                except ServiceTroubleError:
                    lost += 1
                    if lost == _LOST_ANSWERS:
                        raise
                    continue
                for image, run in list(running.items()):
                    if (one := self._result(image, run, states[run.build_id])) is not None:
                        ended[image] = one
                        del running[image]
                if running and self.clock() > end:
                    raise WaitTimeoutError(
                        f"{', '.join(running)}: not done after {self.seconds / 60:.0f} minutes; "
                        "--time-limit allows more."
                    )
        finally:
            for image, run in running.items():
                if run.build_id:
                    self.log(image, self._stop(run.build_id))
        return ended

    def _start(self, image: str, run: _Run) -> None:
        run.attempt, run.reported_phases = run.attempt + 1, 0
        run.build_id = run.start(run.attempt)
        again = f", attempt {run.attempt}" if run.attempt > 1 else ""
        self.log(image, f"build {run.build_id} started{again}")

    def _result(self, image: str, run: _Run, state: "BuildState") -> "BuildState | TrainyardError | None":
        """Report the phases that have ended; return the result, once the build has one.

        A build that failed because of CodeBuild itself is started again.
        """
        phases = [phase for phase in state.phases if phase.status]
        for phase in phases[run.reported_phases :]:
            seconds = f" in {phase.seconds:.0f} s" if phase.seconds is not None else ""
            self.log(image, f"phase {phase.name} {phase.status.lower()}{seconds}")
        run.reported_phases = len(phases)
        if state.status == "IN_PROGRESS":
            return None
        if state.status == "SUCCEEDED":
            return state
        if run.attempt < self.most_attempts and can_retry(state):
            self.log(
                image, f"{describe_build_end(state)}; another attempt may succeed, so it is started again"
            )
            self.pause(self.poll_seconds * run.attempt)
            self._start(image, run)
            return None
        self.pause(self.poll_seconds)  # the last lines of a log arrive late
        try:
            tail = self.builds.log_tail(state)
        except ServiceError as error:
            tail = [f"the log cannot be read: {error}"]
        return failure(state, tail, image, run.attempt)

    def _stop(self, build_id: str) -> str:
        try:
            self.builds.stop(build_id)
        except ServiceError as error:
            return (
                f"The build {build_id} continues in AWS, because it could not be stopped: {error}\n"
                f"Stop it with: aws codebuild stop-build --region {self.builds.region} --id {build_id}"
            )
        return f"The build {build_id} was stopped."


def can_retry(state: "BuildState") -> bool:
    """Return whether another attempt may succeed.

    It may after a fault of CodeBuild, but not after a command that failed.
    """
    failed = _failed_phase(state)
    if state.status == "FAULT" or failed is None:
        return state.status == "FAULT"
    if state.status == "TIMED_OUT":
        return failed.name in ("QUEUED", "PROVISIONING")
    if state.status != "FAILED" or not (failed.status == "FAULT" or failed.name == "PROVISIONING"):
        return False
    return "AccessDenied" not in failed.message and "not authorized" not in failed.message


def _failed_phase(state: "BuildState") -> "CodeBuildPhase | None":
    return next((phase for phase in state.phases if phase.status not in ("", "SUCCEEDED")), None)


def describe_build_end(state: "BuildState") -> str:
    """Return how a build ended, in a few words."""
    failed = _failed_phase(state)
    where = f" in {failed.name}" if failed else ""
    reason = f": {failed.message[:300]}" if failed and failed.message else ""
    return f"{state.status.lower().replace('_', ' ')}{where}{reason}"


def failure(state: "BuildState", tail: Sequence[str], image: str, attempts: int) -> TrainyardError:
    """Return the error for a build whose last attempt failed."""
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    text = f"{image}: the build {state.build_id} {describe_build_end(state)}{tried}."
    if tail:
        text += " The end of its log:\n" + "\n".join(f"  {line}" for line in tail)
    text += f"\nThe complete log: {state.log_address}" if state.log_address else ""
    failed = _failed_phase(state)
    if state.status == "TIMED_OUT":
        return WaitTimeoutError(text)
    is_theirs = state.status == "FAULT" or (failed is not None and failed.name in _BEFORE_OURS)
    return ServiceTroubleError(text) if is_theirs and state.status != "STOPPED" else CheckFailedError(text)
