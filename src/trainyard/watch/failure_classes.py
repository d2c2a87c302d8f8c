"""The ways in which a training can end, and which of them a retry from a checkpoint recovers."""

from enum import StrEnum


class FailureClass(StrEnum):
    """Class of the end of a training. Every report and `trainyard explain` show these values."""

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
    """The account or the cluster allows fewer machines. A disk quota counts as DISK_FULL."""
    UNSCHEDULABLE = "unschedulable"
    CONFIGURATION = "configuration"
    USER_CODE = "user-code"
    NOT_FINITE = "nan"
    DATA_LOADER = "data-loader"
    CUDA_MISMATCH = "cuda-mismatch"
    AUTH = "auth"
    HANG = "hang"
    RENDEZVOUS_TIMEOUT = "rendezvous-timeout"
    """The processes did not find each other in time."""
    PORT_IN_USE = "port-in-use"
    TCP_FALLBACK = "tcp-fallback"
    """TCP joined the machines where EFA or InfiniBand was expected, so the run was ended."""
    SLOW_NETWORK = "slow-network"
    """An all-reduce before training was slower than the floor of the machines, so nothing was started."""
    TIME_LIMIT = "time-limit"
    """Its time limit was reached; not a failure of the job."""
    CANCELLED = "cancelled"
    """A person stopped it; not a failure of the job."""
    STOPPED = "stopped"
    """It stopped early with a good checkpoint (exit code 75); not a failure of the job."""
    NOT_PROVEN = "not-proven"
    """It trained and stored, and a part of the proof does not hold (exit code 6 of a pod)."""
    FINISHED = "finished"
    """It ended in order (exit code 0)."""
    INSTALLER = "installer"
    """A package could not be installed: its hash, version, wheel or lock does not fit."""
    IMAGE = "image"
    """The container image lacks a program or a library. CUDA and driver versions count as CUDA_MISMATCH."""
    CHECKPOINT = "checkpoint"
    """A file of weights or a checkpoint is damaged."""
    NETWORK = "network"
    """A name, a proxy, a certificate or an address outside the job did not work; not NCCL between ranks."""
    SERVICE = "service"
    """An outside service (store, hub, file system, registry) was busy or failed."""
    CLOCK = "clock"
    """The clock of the machine is wrong."""
    RUNNER = "runner"
    """GitHub's runner could not take or run the job. A runner that was lost counts as NODE_LOST."""
    UNKNOWN = "unknown"
    """The logs do not show the cause for certain."""


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
