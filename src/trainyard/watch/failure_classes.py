"""The ways in which a training can end, and which of them a retry from a checkpoint recovers."""

from enum import StrEnum


class FailureClass(StrEnum):
    """Class of the end of a training in every report; docs/runbooks/failures.md has the meanings.

    `FailureKind` of the room run is the smaller list that a run records about itself.
    """

    GPU_MEMORY = "oom-gpu"
    HOST_MEMORY = "oom-host"
    NCCL_TIMEOUT = "nccl-timeout"
    NCCL_ERROR = "nccl-error"
    HARDWARE = "hardware"
    IMAGE_PULL = "image-pull"
    PREEMPTED = "preempted"
    NODE_LOST = "node-lost"
    DISK_FULL = "disk-full"
    QUOTA = "quota"
    UNSCHEDULABLE = "unschedulable"
    CONFIGURATION = "configuration"
    USER_CODE = "user-code"
    NOT_FINITE = "nan"
    DATA_LOADER = "data-loader"
    CUDA_MISMATCH = "cuda-mismatch"
    AUTH = "auth"
    HANG = "hang"
    RENDEZVOUS_TIMEOUT = "rendezvous-timeout"
    PORT_IN_USE = "port-in-use"
    TCP_FALLBACK = "tcp-fallback"
    SLOW_NETWORK = "slow-network"
    TIME_LIMIT = "time-limit"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    NOT_PROVEN = "not-proven"
    FINISHED = "finished"
    NETWORK = "network"
    SERVICE = "service"
    CLOCK = "clock"
    RUNNER = "runner"
    UNKNOWN = "unknown"


RECOVERABLE = frozenset(
    {
        FailureClass.NCCL_TIMEOUT,
        FailureClass.NCCL_ERROR,
        FailureClass.HARDWARE,
        FailureClass.PREEMPTED,
        FailureClass.NODE_LOST,
        FailureClass.HANG,
        FailureClass.RENDEZVOUS_TIMEOUT,
        FailureClass.PORT_IN_USE,
        FailureClass.TIME_LIMIT,
        FailureClass.STOPPED,
        FailureClass.SERVICE,
    }
)
"""Classes from which a retry recovers where only the state of a pod is known, and no line of a log. Where a
line decides, its rule in failure_logs/causes.yaml says whether a retry recovers from this cause."""
