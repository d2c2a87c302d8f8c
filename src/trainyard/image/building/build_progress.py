"""Follow one build in CodeBuild from start to verdict; stop it if asked, start it again if that can help.

    start --> look, log --> ended --> succeeded | failed | can heal: start again, at most three times

The client of CodeBuild, the clock and the pause are passed in.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainyard.errors import (
    CheckFailedError,
    ExitCode,
    ServiceError,
    ServiceTroubleError,
    TrainyardError,
    WaitTimeoutError,
)

MOST_ATTEMPTS = 3
_TAIL_LINES = 40
_SHOWN_LINES = 12
_LOST_LOOKS = 5
"""CodeBuild may fail to answer this many times in a row while a build runs."""
_QUIET_LOOKS = 2
"""After the end of a build its log must have nothing new this many times, because its last lines come
late."""
_BEFORE_OURS = ("SUBMITTED", "QUEUED", "PROVISIONING", "DOWNLOAD_SOURCE")
_PASSING = re.compile(
    r"TLS handshake timeout|i/o timeout|connection reset by peer|toomanyrequests|Too Many Requests|"
    r"(?:502 Bad Gateway|503 Service Unavailable|504 Gateway Time-?out)|received unexpected HTTP status: "
    r"50\d|"
    r"Temporary failure in name resolution|net/http: request canceled while waiting for connection|"
    r"Could not resolve host|operation timed out|Connection broken|error sending request for url",
    re.IGNORECASE,
)
"""Messages of a network or registry in trouble; a second attempt may succeed."""
_LASTING = re.compile(
    r"no space left on device|manifest unknown|pull access denied|hash(?:es)? mismatch|hash-checking mode|"
    r"No matching distribution|unsatisfiable|exec format error",
    re.IGNORECASE,
)


class PhaseState(Protocol):
    """A phase of a build; see `gateways.images.codebuild`."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def message(self) -> str: ...


class ProgressState(Protocol):
    """A build; see `gateways.images.codebuild`."""

    @property
    def build_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def phases(self) -> Sequence[PhaseState]: ...
    @property
    def log_address(self) -> str: ...
    @property
    def exported(self) -> Mapping[str, str]: ...


class Builds(Protocol):
    """Starts, shows and stops builds."""

    def look(self, build_id: str, /) -> Any: ...
    def read_log(self, state: Any, position: str, /) -> tuple[list[str], str]: ...
    def stop(self, build_id: str, /) -> None: ...


@dataclass
class BuildProgress:
    """The progress of one image's build. The live line reads it while another thread writes it."""

    image: str
    phase: str = "starting"
    since: float = 0.0
    attempt: int = 1
    build_id: str = ""
    ended: str = ""
    """The verdict, once there is one."""


@dataclass(frozen=True)
class BuildEnded:
    """A build that succeeded."""

    build_id: str
    attempts: int
    phases: tuple[tuple[str, float], ...]
    """Name and seconds."""
    exported: Mapping[str, str]
    log_address: str


class StoppedBuildError(TrainyardError):
    """The build was stopped because this program was asked to end."""

    exit_code = ExitCode.INTERRUPTED


@dataclass
class Follower:
    """Follows the builds of one image."""

    builds: Builds
    progress: BuildProgress
    clock: Callable[[], float]
    pause: Callable[[float], bool]
    """Waits some seconds; returns True as soon as everything must end."""
    say: Callable[[str], None]
    seconds: float
    """The time limit of all attempts together."""
    poll_seconds: float = 5.0
    _tail: list[str] = field(default_factory=list)
    _log_refused: bool = False

    def run(self, start: Callable[[int], str]) -> BuildEnded:
        """Start a build, with the number of the attempt, and follow it until it has succeeded.

        Raises CheckFailedError when the build failed, ServiceTroubleError when CodeBuild failed,
        WaitTimeoutError, StoppedBuildError.
        """
        end = self.clock() + self.seconds
        for attempt in range(1, MOST_ATTEMPTS + 1):
            self.progress.attempt, self.progress.phase = attempt, "starting"
            self.progress.since = self.clock()
            self.progress.build_id = start(attempt)
            self._tail.clear()
            self.say(
                f"build {self.progress.build_id} started" + (f", attempt {attempt}" if attempt > 1 else "")
            )
            state = self._until_ended(end)
            if state.status == "SUCCEEDED":
                return _ended(state, attempt)
            if attempt == MOST_ATTEMPTS or not can_heal(state, self._tail):
                raise failure(state, self._tail, self.progress.image, attempt)
            self.say(f"{describe_build_end(state)}; a second attempt may succeed, so it is started again")
            self._wait(self.poll_seconds * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _until_ended(self, end: float) -> Any:
        position, told, lost, quiet = "", 0, 0, 0
        while True:
            try:
                state = self.builds.look(self.progress.build_id)
                lost = 0
            except ServiceError as error:
                lost += 1
                if lost == _LOST_LOOKS or not isinstance(error, ServiceTroubleError):
                    raise type(error)(f"{error}\n{self._stopped()}") from None
                self._wait(self.poll_seconds)
                continue
            lines, position = self._log_after(state, position)
            for line in lines:
                self._tail.append(line)
                self.say(line)
            del self._tail[:-_TAIL_LINES]
            told = self._tell_phases(state, told)
            quiet = 0 if lines or state.status == "IN_PROGRESS" else quiet + 1
            if quiet == _QUIET_LOOKS:
                return state
            if self.clock() > end:
                raise WaitTimeoutError(
                    f"{self.progress.image}: the build {self.progress.build_id} was not done after "
                    f"{self.seconds / 60:.0f} minutes; --time-limit allows more. {self._stopped()}"
                )
            self._wait(0 if lines else self.poll_seconds)

    def _tell_phases(self, state: ProgressState, told: int) -> int:
        """Report each phase once, after its end; return the number of reported phases."""
        ended = [phase for phase in state.phases if phase.status]
        for phase in ended[told:]:
            seconds = f" in {phase.seconds:.0f} s" if phase.seconds is not None else ""
            self.say(f"phase {phase.name} {phase.status.lower()}{seconds}")
        going = next((phase.name for phase in state.phases if not phase.status), "")
        if going and going != self.progress.phase:
            self.progress.phase, self.progress.since = going, self.clock()
        return max(told, len(ended))

    def _wait(self, seconds: float) -> None:
        """Pause. If everything must end, stop the build and raise StoppedBuildError."""
        if self.pause(seconds):
            said = self._stopped()
            self.say(said)
            self.progress.ended = "stopped"
            raise StoppedBuildError(f"{self.progress.image}: {said}")

    def _stopped(self) -> str:
        """Stop the build, which nobody follows any more; say whether that worked."""
        try:
            self.builds.stop(self.progress.build_id)
        except ServiceError as error:
            return (
                f"The build {self.progress.build_id} goes on in AWS, as it could not be stopped: {error}\n"
                f"Stop it with: aws codebuild stop-build --id {self.progress.build_id}"
            )
        return f"The build {self.progress.build_id} was stopped."

    def _log_after(self, state: Any, position: str) -> tuple[list[str], str]:
        """New lines of the log, and the new position. The build's verdict does not need its log."""
        if self._log_refused:
            return [], position
        try:
            return self.builds.read_log(state, position)
        except ServiceTroubleError:
            return [], position  # the next look may get them
        except ServiceError as error:
            self._log_refused = True
            self.say(f"the build is followed without its log: {error}")
            return [], position


def can_heal(state: ProgressState, tail: Sequence[str]) -> bool:
    """Whether another attempt may succeed: after CodeBuild's own faults, or trouble in the network."""
    if state.status == "FAULT":
        return True
    failed = failed_phase(state)
    if state.status == "TIMED_OUT":
        return failed is not None and failed.name in ("QUEUED", "PROVISIONING")
    if state.status != "FAILED" or failed is None:
        return False
    text = "\n".join((failed.message, *tail))
    if _LASTING.search(text):
        return False
    if failed.status == "FAULT" or failed.name == "PROVISIONING":
        return "AccessDenied" not in failed.message and "not authorized" not in failed.message
    return bool(_PASSING.search(text))


def failed_phase(state: ProgressState) -> PhaseState | None:
    """The first phase that did not end well."""
    return next((phase for phase in state.phases if phase.status not in ("", "SUCCEEDED")), None)


def describe_build_end(state: ProgressState) -> str:
    """The end of a build in a few words."""
    failed = failed_phase(state)
    where = f" in {failed.name}" if failed else ""
    said = f": {failed.message[:300]}" if failed and failed.message else ""
    return f"{state.status.lower().replace('_', ' ')}{where}{said}"


def failure(state: ProgressState, tail: Sequence[str], image: str, attempts: int) -> TrainyardError:
    """The error for a build whose last attempt failed."""
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    text = f"{image}: the build {state.build_id} {describe_build_end(state)}{tried}."
    if tail:
        text += " The end of its log:\n" + "\n".join(f"  {line}" for line in tail[-_SHOWN_LINES:])
    text += f"\nThe whole log: {state.log_address}" if state.log_address else ""
    failed = failed_phase(state)
    if state.status == "TIMED_OUT":
        return WaitTimeoutError(text)
    is_theirs = state.status == "FAULT" or (failed is not None and failed.name in _BEFORE_OURS)
    return ServiceTroubleError(text) if is_theirs and state.status != "STOPPED" else CheckFailedError(text)


def _ended(state: ProgressState, attempts: int) -> BuildEnded:
    phases = tuple((phase.name, phase.seconds or 0.0) for phase in state.phases if phase.status)
    return BuildEnded(state.build_id, attempts, phases, dict(state.exported), state.log_address)
