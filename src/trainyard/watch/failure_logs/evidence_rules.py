"""The table of evidence: for each text in a log, the class of failure and its nearness to the cause.

Every pattern is a message of a program, found in its source or in logs that people posted. It may be anywhere
in a line, because a progress bar, a time stamp or another rank's output may come before it. `HARMLESS` and
the patterns after it match lines that only look like evidence; `RESOLVED_BY` matches lines that revoke
earlier ones.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from trainyard.watch.failure_classes import FailureClass


class Nearness(IntEnum):
    """How near to the cause a line is. The nearest line decides; of equally near ones, the first."""

    PLATFORM = 0
    """The machine, the kernel or the cluster reports its own action."""
    CAUSE = 1
    """The program reports the cause."""
    RAISED = 2
    """The last line of a traceback that names no cause; elsewhere the same words do not count."""
    COMMUNICATION = 3
    """A connection broke or could not be made: often the first sign that another process had failed."""
    WAITED = 4
    """A process waited too long for another one that failed, hangs or is slow."""
    PENDING = 5
    """The job waited before its start, which may have ended well."""
    AFTERMATH = 6
    """The processes are being ended: signals, cancelled steps, launchers that count their children."""


@dataclass(frozen=True)
class Rule:
    """One kind of evidence."""

    klass: FailureClass
    nearness: Nearness
    pattern: re.Pattern[str]
    heals: bool | None = None
    """Whether a retry can heal it, if that differs from its class."""


def _rules(
    nearness: Nearness, klass: FailureClass, *patterns: str, heals: bool | None = None
) -> Iterator[Rule]:
    return (Rule(klass, nearness, re.compile(pattern), heals) for pattern in patterns)


_platform, _cause, _raised, _communication, _waited, _pending, _aftermath = (
    partial(_rules, nearness) for nearness in Nearness
)
_XID = r"\b(?:Xid|XID)(?: \([^)\n]*\))?\s*(?:errors?|code)?\s*[:=]?\s*"
_NO_LIST = r"\b(?!, ?\d{1,3}\b)"
_HARDWARE_XIDS = f"(?:48|61|62|64|74|79|94|95|119|120|140|14[3-9]|150){_NO_LIST}"
_APPLICATION_XIDS = f"(?:13|31|43|68|69){_NO_LIST}"
"""From NVIDIA's list of Xid errors: faults of the hardware, and of the application. Others, such as 45, only
report that a process ended."""

RULES = (
    # The machine and the cluster.
    *_platform(
        FailureClass.HARDWARE,
        rf"{_XID}{_HARDWARE_XIDS}",
        r"(?i)uncorrectable (?:NVLink |ECC )error|double.bit ECC error|GPU has fallen off the bus",
        r"Unable to determine the device handle for GPU|\bGPU is lost\b",
        r"(?i)peer GPU memory over nvlink or a hardware error|row remapp\w+ fail",
        r"UnexpectedAdmissionError[^\n]*(?:unhealthy|no healthy devices)",
    ),
    *_platform(
        FailureClass.HOST_MEMORY,
        r"\bOOMKilled\b|(?:Memory cgroup )?[Oo]ut of memory: Kill(?:ed)? process",
        r"\boom-kill(?:er)?\b|oom_kill event|NODE_OUT_OF_MEMORY|OutOfMemoryError: Task was killed",
        r"node running low on memory|low on resource: memory|The node was low on.*memory",
    ),
    *_platform(
        FailureClass.DISK_FULL,
        r"low on resource: ephemeral-storage|ephemeral local storage usage exceeds|NodeHasDiskPressure",
    ),
    *_platform(
        FailureClass.PREEMPTED,
        r"(?i)\bPreempted by\b|preempted to accommodate|PreemptionByScheduler|DUE TO PREEMPTION",
        r"(?i)reason[\"']?[:=] ?[\"']?Preempted\b|Spot (?:Instance )?interruption (?:notice|warning)",
    ),
    *_platform(
        FailureClass.NODE_LOST,
        r"\bNodeLost\b|\bNODE_FAIL\b|DUE TO NODE FAILURE|TaintManagerEviction",
        r"node\.kubernetes\.io/unreachable:NoExecute|marked dead because the detector",
        r"NodeNotReady\b.*Node is not ready|runner lost communication with the server",
    ),
    *_pending(
        FailureClass.IMAGE_PULL,
        r"(?i)toomanyrequests|pull[^\n]*(?:i/o timeout|TLS handshake timeout|429)",
        heals=True,
    ),
    *_pending(
        FailureClass.IMAGE_PULL,
        r"ErrImagePull|ImagePullBackOff|Failed to pull image|InvalidImageName|manifest unknown",
    ),
    *_pending(
        FailureClass.QUOTA,
        r"VcpuLimitExceeded|more vCPU capacity than your current|MaxSpotInstanceCountExceeded",
        r"forbidden: exceeded quota|ServiceQuotaExceeded|ResourceLimitExceeded|insufficient (unused )?quota",
    ),
    *_pending(
        FailureClass.UNSCHEDULABLE,
        r"\d+/\d+ nodes are available: [^\n]*Insufficient|InsufficientInstanceCapacity",
        heals=True,
    ),
    *_pending(
        FailureClass.UNSCHEDULABLE,
        r"FailedScheduling|\d+/\d+ nodes are available|Insufficient capacity",
        heals=False,
    ),
    *_aftermath(
        FailureClass.TIME_LIMIT,
        r"DUE TO TIME LIMIT|active longer than specified deadline|(?<!code = )\bDeadlineExceeded\b",
        r"has exceeded the maximum execution time of|Build has timed out",
    ),
    # What the program says.
    *_cause(
        FailureClass.GPU_MEMORY,
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory",
        r"Cuda failure (2 )?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        r"No available memory for the cache blocks|is less than desired GPU memory utilization",
    ),
    *_cause(
        FailureClass.DATA_LOADER,
        r"(?:/dev/shm|</?torch_\d|shared memory)[^\n]*[Nn]o space left on device",
        r"[Nn]o space left on device[^\n]*(?:/dev/shm|/torch_\d)",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly",
        r"DataLoader worker \(pid [\d, ]+\) is killed by signal: (?!Terminated|Interrupt)",
        r"Unexpected bus error encountered in worker|in DataLoader worker process \d",
    ),
    *_cause(
        FailureClass.DISK_FULL,
        r"[Nn]o space left on|\bENOSPC\b|Errno 28\]|os error 28\b|[Dd]isk quota exceeded",
        r"Errno 122\]|os error 122\b|No space left: \d",
        r"\b(?:could not|cannot) be \w+ \((?:\[Errno (?:28|122)\]|No space left on)",
    ),
    *_cause(
        FailureClass.HOST_MEMORY,
        r"DefaultCPUAllocator: (?:can't|not enough)[^\n]*memory|std::bad_alloc",
        r"\bMemoryError\b|os error 12\b|Unable to allocate [\d.]+ [KMGT]iB for an array",
        r"^(?![^\n]*(?:ibv_|NCCL|memlock|fi_mr))[^\n]*Cannot allocate memory",
    ),
    *_cause(
        FailureClass.NOT_FINITE,
        r"Step \d+[^\n]* not finite\b",
        r"(?i)\bloss is (?:nan|inf|not finite)\b|non-?finite (?:loss|grad)|\bFloatingPointError\b",
        r"(?i)found nan in|nan(?: or inf)? (?:detected|encountered|found)|loss(?: is)? nan,? stopping",
        r"(?i)(?:loss|gradients?)(?: \w+)? (?:is|are|was|became) (?:not finite|nan\b|infinite)",
        r"Function '\w+Backward\d*' returned nan values",
    ),
    *_cause(
        FailureClass.CUDA_MISMATCH,
        r"driver version is insufficient for CUDA runtime|driver on your system is too old",
        r"no kernel image is available for execution|forward compatibility was attempted on non supported",
        r"Driver/library version mismatch|mismatches the version that was used to compile",
        r"\.so[\w.]*: undefined symbol: |(Import|OS)Error[^\n]*lib(cu\w+|nccl|nv\w+)\.so[\w.]*: cannot open",
    ),
    *_cause(
        FailureClass.AUTH,
        r"\bGatedRepoError\b|Invalid (?:user token|username or password)",
        r"\bExpiredToken(?:Exception)?\b|InvalidClientTokenId|InvalidAccessKeyId|SignatureDoesNotMatch",
        r"\bAccessDenied(?:Exception)?\b|Unable to locate credentials|\bNoCredentialsError\b",
        r"api_key not configured|not authorized to perform",
    ),
    *_cause(
        FailureClass.CONFIGURATION,
        r"\d+ errors?\. Nothing was started\.|error: (?:unrecognized arguments|the following arguments are)",
        r"error: argument \S+: (?:invalid|expected)|omegaconf\.errors\.|hydra\.errors\.|Could not override '",
        r"yaml\.\w+\.\w+Error|pydantic\S*ValidationError|validation errors? for \w+",
        r"(?:Error|assert)[^\n]*divisible by|Bootstrap ?: no socket interface found",
        r"CUDA error: invalid device ordinal|Duplicate GPU detected",
        r"Error: network .+ not found\.|Failed to initialize any NET plugin",
    ),
    *_cause(
        FailureClass.TCP_FALLBACK,
        r"NCCL opened sockets between machines that have (?:EFA|InfiniBand)\b",
    ),
    *_cause(
        FailureClass.USER_CODE,
        r"device-side assert triggered|an illegal memory access was encountered|misaligned address",
        rf"{_XID}{_APPLICATION_XIDS}",
    ),
    # The last line of a traceback.
    *_raised(FailureClass.AUTH, r"\b40[13] Client Error"),
    *_raised(FailureClass.CONFIGURATION, r"\bModuleNotFoundError: No module"),
    # Connections.
    *_communication(FailureClass.NCCL_ERROR, r"\bncclInvalid(?:Usage|Argument)\b", heals=False),
    *_communication(
        FailureClass.PORT_IN_USE,
        r"failed to listen on any local network address|OSError: \[Errno 98\]",
    ),
    *_communication(
        FailureClass.NCCL_ERROR,
        r"\bnccl(?:SystemError|InternalError|UnhandledCudaError)\b",
        r"NCCL error in: [^\n]*(?:unhandled system error|internal error|unhandled cuda error)",
    ),
    *_communication(
        FailureClass.RENDEZVOUS_TIMEOUT,
        r"\bRendezvous(?:Timeout|Connection)Error\b|Timed out after \d+ seconds waiting for clients",
    ),
    *_waited(
        FailureClass.NCCL_ERROR,
        r"\bncclRemoteError\b|remote process exited or there was a network error",
    ),
    # Waiting.
    *_waited(FailureClass.NCCL_TIMEOUT, r"Watchdog caught collective operation timeout"),
    *_waited(
        FailureClass.HANG,
        r"Heartbeat monitor timed out|Timed out waiting \d+ms for (?:recv|send) operation",
        r"hang_suspected\b|a hang was suspected|no progress for \d+",
        r"Step \d+: nothing moved for \d",
    ),
    # Ending.
    *_aftermath(
        FailureClass.CANCELLED,
        r"\bKeyboardInterrupt\b|The operation was cancell?ed|got signal: 2\b|STEP [\d.]+ ON \S+ CANCELLED AT",
        r"JOB \d+ ON \S+ CANCELLED AT",
    ),
)

_ZERO = (
    r"[\"']?\s*[:=|]\s*[\"']?(?:0(?:\.0+)?(?![\w./-])"
    r"|(?:false|none|no|n/a|disabled)[\"']?\s*(?:$|[,;|)}]))"
)
_COUNTED = r"(?:errors?|nans?|infs?|xids?|ooms?|preemptions|hangs?|failures?|exceptions?|out.of.memory)\b"
HARMLESS = re.compile(
    r"(?i)"
    rf"\b(?:nan_\w+|(?:nans?|infs?|errors?|ecc|xids?|events?|counts?"
    r"|total|OOMKilled|failures?|failed)[\w ()-]{0,60})"
    rf"{_ZERO}"
    rf"|\b(?:fail(?:ure|ed)?|preempted|\w*suspected|occurred|\w*exceeded|\w*errors?){_ZERO}"
    r"|\boom.kill(?:er)?\b[\w =:]{0,30}\b(?:disabled|enabled|off)\b"
    rf"|\b{_COUNTED} 0\s*$|\b(?:in|for|on) 0 \w+s\b"
    r"|\b(?:earlier|previous|last) (?:attempt|job|run|exit|life)\b|\bresum(?:ed|ing) (?:a|from|after)\b"
    r"|\(attempt (\d+)(?:/| of )(?!\1\b)\d+\)"
    r"|^[\w ]{0,40}\bpolicy: |\}\s+0(?:\.0+)?\s*$"
    rf"|\b(?:no|without|zero|never had) (?:any )?(?:[\w-]+ ){{0,3}}?{_COUNTED}"
    r"|(?<!rank )(?<!gpu )(?<!device )(?<!node )(?<!worker )\b0 "
    r"(?:[\w-]+ ){0,3}?(?:errors|nans|infs|xids|events)\b"
)
"""Healthy lines that count zero failures, or deny one."""
GOES_ON = re.compile(
    r"(?i)\bfell back|\bfall(?:s|ing)? back|\busing (?:the |a )?(?:local|cached|default|fallback)"
    r"|\bretrying\b|\bwill (?:be |now )?(?:retr(?:y|ied)|ignored?|skip(?:ped)?|continue)\b|\bretry in \d"
    r"|\bignor(?:ing|ed)\b|\bskipp(?:ing|ed)\b|\bcontinu(?:ing|es)\b|\bgoing on\b|\bsucceeded\b"
    r"|\brecovered\b|\boptional (?:dependency|package|module|import|feature)|\(optional\)"
    r"|\bdeprecat\w+|\bdisabl(?:ed|ing)\b"
    r"|\bnot installed\b|\bnot critical\b|\bnon-fatal\b|\bhandled\b|\bpress ctrl"
    r"|\bcould not import\b|\bcan ?not be used\b"
)
"""The line itself says that the program continued. Not used for evidence of the machine and of waiting."""
HYPOTHETICAL = re.compile(
    r"(?i)\b(?:avoid\w*|prevent\w*|if|when|whenever|unless|in case of|against|handl(?:es?|ing)"
    r"|catch(?:es|ing)?|recover\w* from|such as|like|e\.g\.|detect|detecting|detection|detects"
    r"|check(?:s|ing)?|watch(?:es|ing)?|listen(?:s|ing)?|poll(?:s|ing)?|monitor(?:s|ing)?|waiting"
    r"|may|might|can|could|would|no|not|without|never|about|reduce|mitigate|retries|that (?:is|are)"
    r"|(?:retr\w+|restart\w*|requeue\w*|rais\w+|abort\w*|exit\w*|stop\w*|resum\w+|happens?)"
    r" (?:on|after))"
    r" (?:for |be |an? |any |the |of |in |with |job |to )*(?:[\w-]+ ){0,2}[\"'`(\[]*(?:[\w.]+[,|/] ?)*$"
)
"""Words right before the evidence that make it a condition, an option, a watcher or a denial."""
NAMED = re.compile(
    r"(?i)^[\"'`)\]]?(?: (?:\w+ ){0,2}?(?:handlers?|callbacks?|hooks?|guard|checks?|policy|rules?|threshold"
    r"|counters?|enabled|installed|registered|loaded|cleared|means|will (?:abort|be raised|raise)"
    r"|is (?:raised|thrown) (?:by|when|if)|raises in|(?:not |as )?expected)\b"
    r"|=\d|\S* (?:after|within|every) \d+ ?s\b| retries\b|[\w ]{0,12}: ?\[0(?:, ?0)*\])"
)
"""Words right after the evidence that make it the name of a handler, a rule or a number."""
GLOSSARY = re.compile(
    r"(?i)\b(?:codes|tip|known issues?|docs|alert rule|unit test|retryable errors)\b[^\n]{0,60}$"
    r"|\bregistered (?:a )?handler for $|\b\d+=$|\bsee https?://[^\n]*$"
)
"""Words somewhere before the evidence that make the line a list of names, or advice."""
QUOTED = re.compile(
    r"(?i)\b(?:text|prompt|completion|generated|generation|document|question|answer|decoded)"
    r"(?: \d+)?[\"']?\s*[:=]"
    r"|\b(?:sample|example|input|target|prediction|output|response|row|record|batch)"
    r"(?: ?\[?\d+\]?)?[\"']?\s*[:=]\s*[\"'`<]"
)
"""Training data in the log: whatever follows on the line is not a message of the program."""
OFTEN_SURVIVED = frozenset({FailureClass.AUTH, FailureClass.CONFIGURATION, FailureClass.CUDA_MISMATCH})
"""Outside a traceback, programs often survive these, so a later broken connection makes them doubtful."""
WARNING = re.compile(
    r"\bWARN(?:ING)?\b|Warning:|(?<![=\w])(?:INFO|DEBUG|NOTICE|TRACE)\b|(?:^|\[)[IW]\d{4} \d\d:\d\d"
    r"|\blevel[\"']?[:=] ?[\"']?(?:info|debug|warn)"
)
"""A program continues after a warning or an information; those of NCCL and Kubernetes are excluded."""
HELP = re.compile(r"(?i)^\s*(?:usage|(?:\w+ )?(?:options|arguments|flags)):")
"""The indented lines below are a help text."""

RESOLVED_BY = {
    FailureClass.IMAGE_PULL: re.compile(
        r"Successfully pulled image|Started container|Container image .* already present"
    ),
    FailureClass.UNSCHEDULABLE: re.compile(
        r"Successfully assigned|Started container|pod triggered scale-up[^\n]*ready"
    ),
    FailureClass.QUOTA: re.compile(r"Successfully assigned|Quota reserved|Started container"),
}
"""Lines that revoke an earlier line of a class: it waited, and continued."""

PROGRESS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i)\b(?:global_?)?(?:step|iteration|iter)\b[\s\"']*[:=]?\s*(\d+)",
        r"(\d+)/\d+ \[[\d:]+<",
        r"(?i)\bepoch\b[\s\"']*[:=]?\s*(\d+(?:\.\d+)?)",
    )
)
"""Lines of a training that continues; the first pattern that matches gives its step or epoch."""

EXCEPTION = re.compile(
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Fault|Iteration)|(?:[a-z_]\w*\.)+[A-Z]\w*)(?::\s(.*))?$"
)
"""The last line of a traceback: a class, a colon, a message."""
OF_ANOTHER = re.compile(
    r"(?i)nccl|gloo|c10d|socket|connection|timed? ?out|cuda|cublas|cudnn|nvml|worker|peer|aborted"
)
"""Messages of exceptions that report what happened elsewhere, or on the GPU: not a mistake of the program."""
LAUNCHER_EXCEPTIONS = re.compile(
    r"ChildFailedError|SignalException|DistBackendError|DistNetworkError|DistStoreError"
    r"|ProcessExitedException|ProcessRaisedException|CalledProcessError|SystemExit|KeyboardInterrupt"
    r"|BrokenPipeError|ConnectionResetError|ConnectionError|TimeoutError|EOFError|ActorDiedError"
    r"|PermissionError|FileNotFoundError|OSError|WorkerCrashedError|RayTaskError"
)
"""Exceptions that do not show the cause: they report that another process or a connection ended, or that a
file is missing, which may be the fault of the data, the configuration or the code."""
