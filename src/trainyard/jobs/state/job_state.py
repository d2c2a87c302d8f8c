"""The state of a job: one of eight words, with its evidence; `record` is the contract in JSON."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trainyard.errors import ExitCode
from trainyard.watch.failure_classes import RECOVERABLE, FailureClass

if TYPE_CHECKING:
    from trainyard.jobs.state.pod_facts import PodFacts


class State(StrEnum):
    """The state of a job."""

    PENDING = "Pending"
    """It exists, and has no pods yet, or pods that fit on no node."""
    QUEUED = "Queued"
    """It is suspended: Kueue has no quota for it yet, or somebody suspended it."""
    STARTING = "Starting"
    """Its pods have nodes, and not all of them run yet."""
    RUNNING = "Running"
    RESTARTING = "Restarting"
    """It ran, and a part of it is being created again."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    """The job is gone, and its end was not seen."""


@dataclass(frozen=True)
class JobFailure:
    """Reason why a job failed, and in which process."""

    failure_class: FailureClass
    evidence: tuple[str, ...]
    """Sentences, the most important first."""
    rank: int | None = None
    """The rank of the first process that failed if its log names it, else the rank of its pod."""
    exit_code: int | None = None
    pod: str = ""
    node: str = ""
    lines: tuple[str, ...] = ()
    """The last lines that the process printed."""
    recovers: bool | None = None
    """Whether a retry recovers from it, if that differs from its class."""
    other_node: bool = False
    """The fault of its node stays, so a retry recovers on another node only."""
    lost_another: bool = False
    """The pod only lost another one, which has the cause and has not reported it yet."""
    cause: str = ""
    """The cause, who must act, and the fix, if lines of its log show them."""
    responsible: str = ""
    fix: str = ""

    @property
    def retryable(self) -> bool:
        """Return whether a retry from the newest good checkpoint can succeed."""
        return self.failure_class in RECOVERABLE if self.recovers is None else self.recovers

    @property
    def is_unknown(self) -> bool:
        """Return whether nothing on record says if a retry recovers; it is worth one after progress."""
        return self.recovers is None and self.failure_class is FailureClass.UNKNOWN

    def record(self) -> dict[str, Any]:
        return {
            "class": self.failure_class.value,
            "cause": self.cause or None,
            "responsible": self.responsible or None,
            "fix": self.fix or None,
            "rank": self.rank,
            "exit_code": self.exit_code,
            "evidence": list(self.evidence),
            "retryable": self.retryable,
            "pod": self.pod or None,
            "node": self.node or None,
            "lines": list(self.lines),
        }


@dataclass(frozen=True)
class Waiting:
    """The reason why a pod waits or does not exist, and with it a job that has not ended."""

    failure_class: FailureClass
    evidence: str
    node: str = ""
    """The node of the waiting pod, if the node is the reason."""
    fix: str = ""
    hopeless: bool = False
    """Waiting longer does not help."""
    pod: "PodFacts | None" = None
    """The pod that waits; None if it does not exist, or if the job waits in a queue."""

    def record(self) -> dict[str, Any]:
        return {"class": self.failure_class.value, "evidence": self.evidence, "fix": self.fix or None}


@dataclass(frozen=True)
class PodCounts:
    """The number of pods of a job."""

    wanted: int | None
    """None if the job does not say."""
    present: int = 0
    running: int = 0
    """Ready pods, and running pods without a probe."""
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True)
class JobState:
    """The state of a job at one moment."""

    job: str
    namespace: str
    kind: str
    state: State
    reason: str
    """The reason in one sentence."""
    uid: str = ""
    """Kubernetes' id of the object, which a later job of the same name does not have."""
    failure: JobFailure | None = None
    waiting: Waiting | None = None
    retries: int = 0
    """How many times we submitted it again."""
    auto_retry: int = 0
    """How many times it may be submitted again after failures that a retry can recover from."""
    followed_by: str = ""
    """The job that replaced this one; empty if there is none."""
    restarts: int = 0
    """How many pods or containers were restarted by the operator and the nodes."""
    pods: PodCounts = field(default_factory=lambda: PodCounts(None))
    alerts: tuple[str, ...] = ()
    """Faults that do not end it, in sentences."""
    holds_resources: bool = False
    """The job has ended but some of its pods still exist and hold what they requested."""
    proof: str = ""
    """Why its run is not proven, if nobody asked for a proof; empty if its pods prove it, or if not known."""

    @property
    def ended(self) -> bool:
        """Return whether the state is final, so that waiting is useless."""
        return self.state in (State.SUCCEEDED, State.FAILED, State.UNKNOWN)

    @property
    def revived(self) -> bool:
        """Return whether pods of the job were created after it had ended."""
        return self.ended and bool(self.alerts)

    @property
    def has_failed(self) -> bool:
        return self.state is State.FAILED

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a script that waited for the job."""
        if self.state is State.SUCCEEDED:
            return ExitCode.DONE
        if not self.ended:
            return ExitCode.TIMED_OUT
        stopped = self.failure is not None and self.failure.exit_code == ExitCode.STOPPED
        return ExitCode.STOPPED if stopped else ExitCode.NO

    def record(self) -> dict[str, Any]:
        """Return the contract of `trainyard job status --json`."""
        return {
            "job": self.job,
            "namespace": self.namespace,
            "kind": self.kind,
            "uid": self.uid or None,
            "status": self.state.value,
            "reason": self.reason,
            "failure": self.failure.record() if self.failure else None,
            "waiting": self.waiting.record() if self.waiting else None,
            "retries": self.retries,
            "auto_retry": self.auto_retry,
            "followed_by": self.followed_by or None,
            "restarts": self.restarts,
            "pods": asdict(self.pods),
            "alerts": list(self.alerts),
            "holds_resources": self.holds_resources,
            "proof": self.proof or None,
        }
