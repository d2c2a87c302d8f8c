"""Every error that people can see, and the exit code of each.

The library raises these; `command.handler.exit_code_of` turns them into a message and a process status.
This module does not log, print or know any other module.

A message says what happened, to which name or file, and what to do next.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes that all scripts share."""

    DONE = 0
    NO = 1
    """The script ran and its answer is no: the job, a check or a verification failed."""
    USAGE = 2
    """The configuration, the data or the command line is wrong; nothing was started."""
    BUG = 3
    """An unexpected error; the traceback is shown."""
    REFUSED = 4
    """An outside service refused after bounded retries."""
    TIMED_OUT = 5
    NOT_PROVEN = 6
    """A pod trained and stored, and a part of the proof does not hold; or a run ended because it could not be
    proven, as over TCP on machines with EFA. It is not restarted."""
    STOPPED = 75
    """Stopped early with a good checkpoint; the same command continues the run (EX_TEMPFAIL)."""
    INTERRUPTED = 130


class TrainyardError(Exception):
    """Base class of the errors that are shown as a message instead of a traceback."""

    exit_code = ExitCode.NO
    failure: object = None
    """The `run.failure.Failure` of a training run, where the raising code knows more than the class says."""


class ConfigError(TrainyardError):
    """The configuration or the command line cannot be used."""

    exit_code = ExitCode.USAGE


class DataError(TrainyardError):
    """The training data is missing, unreadable or too small."""

    exit_code = ExitCode.USAGE


class IncompatibleCheckpointError(TrainyardError):
    """A checkpoint does not fit the configuration or the data."""

    exit_code = ExitCode.USAGE


class CheckFailedError(TrainyardError):
    """A check of the environment failed."""


class TrainingFailedError(TrainyardError):
    """Training cannot continue, for example because the loss is not finite."""


class NetworkFallbackError(TrainingFailedError):
    """The machines of a run are joined by TCP where a faster network was expected: it could not be proven."""

    exit_code = ExitCode.NOT_PROVEN


class RecordError(TrainyardError):
    """A record of the run could not be written, for example because the disk is full."""


class DamagedFileError(TrainyardError):
    """A file that was written elsewhere is truncated, has another format, or is not a regular file."""


class CheckpointError(TrainyardError):
    """A checkpoint could not be written or does not verify."""


class VerificationError(TrainyardError):
    """The store does not hold what the trainer wrote."""


class ObjectChangedError(VerificationError):
    """An object changed while it was read: somebody else writes to the store."""


class RunConflictError(TrainyardError):
    """Another run already uses the run number, or another object the name."""


class NumberTakenError(RunConflictError):
    """The run number or the run id in a store belongs to another run."""

    exit_code = ExitCode.USAGE


class AttemptEndedError(RunConflictError):
    """A later attempt of the same run has started elsewhere, so this one stores nothing more."""


class ServiceError(TrainyardError):
    """An outside service refused, and bounded retries did not help."""

    exit_code = ExitCode.REFUSED


class ServiceTroubleError(ServiceError):
    """An outside service failed or could not be reached; it may or may not have carried out the request."""


class PermissionRefusedError(ServiceError):
    """An outside service answered that the request is not permitted."""


class UnsupportedOperationError(ServiceError):
    """An outside service cannot do what was requested; a retry does not help."""


class CredentialsRefusedError(ServiceError):
    """An outside service does not accept the credentials: they are wrong or have expired."""


class WaitTimeoutError(TrainyardError):
    """Something did not happen in time."""

    exit_code = ExitCode.TIMED_OUT


class StoppedError(TrainyardError):
    """The run ended early, on request, with a good checkpoint."""

    exit_code = ExitCode.STOPPED


class InterruptedRunError(StoppedError):
    """The run ended early, with a good checkpoint, by Ctrl-C. Nothing continues it by itself."""

    exit_code = ExitCode.INTERRUPTED


class CostLimitError(StoppedError):
    """The run ended early, with a good checkpoint, at `limits.cost_usd`. Nothing continues it by itself."""

    exit_code = ExitCode.NO
