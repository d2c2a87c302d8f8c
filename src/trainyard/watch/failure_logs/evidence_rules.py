"""The table of causes, read from causes.yaml, and the patterns of lines that only look like evidence.

Each rule is a message of a program, found in its source or in logs that people posted. It may be anywhere in
a line, because a progress bar, a time stamp or another rank's output may come before it. `HARMLESS` and the
patterns after it match lines that only look like evidence; `RESOLVED_BY` matches lines that revoke earlier
ones.
"""

import functools
import re
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from typing import Any

from trainyard.config.yaml_reader import parse_yaml
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.rule_index import RuleIndex


class Nearness(IntEnum):
    """Nearness of a line to the cause. The nearest line decides; of equally near ones, the first."""

    PLATFORM = 0
    """The machine, the kernel or the cluster reports its own action."""
    CAUSE = 1
    """The program reports the cause."""
    SYMPTOM = 2
    """The program reports an effect that has several causes."""
    RAISED = 3
    """The last line of a traceback that names no cause; elsewhere the same words do not count."""
    COMMUNICATION = 4
    """A connection broke or could not be made: often the first sign that another process had failed."""
    WAIT = 5
    """A process waited too long for another one that failed, hangs or is slow."""
    PENDING = 6
    """The job waited before its start; this wait may have ended well."""
    AFTERMATH = 7
    """The processes are being ended: signals, cancelled steps, launchers that count their children."""


@dataclass(frozen=True)
class Rule:
    """One cause, and the messages that show it."""

    klass: FailureClass
    nearness: Nearness
    cause: str
    who: str
    """Who must act: program, configuration, image, node, network, cluster, cloud, github or person."""
    retry: str
    """Where a retry recovers from this cause: no, same (any machine), other (node), later."""
    fix: str
    patterns: tuple[re.Pattern[str], ...] = ()
    after: re.Pattern[str] | None = None
    """An earlier line must match this."""
    exact: bool = False
    """The message is unmistakable, so other words on its line do not weaken it."""
    is_plain: bool = False
    """The message itself shows what to correct, so the runbook of failures leaves it out."""

    def matches(self, line: str) -> tuple[re.Match[str], ...]:
        """Return where the line has the message, for each form of it."""
        return tuple(match for pattern in self.patterns if (match := pattern.search(line)))


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of causes.yaml, in its order."""
    return tuple(_rule(row) for row in table())


@functools.cache
def rule_index() -> RuleIndex[Rule]:
    """Return the patterns of all rules, in the order of the table."""
    return RuleIndex((rule, pattern) for rule in rules() for pattern in rule.patterns)


def table() -> list[dict[str, Any]]:
    """Return the rows of causes.yaml, with their examples."""
    file = resources.files(__package__) / "causes.yaml"
    rows: list[dict[str, Any]] = parse_yaml(file.read_bytes(), str(file))
    return rows


def _rule(row: dict[str, Any]) -> Rule:
    after = row.get("after")
    return Rule(
        FailureClass(row["class"]),
        Nearness[row["level"].upper()],
        row["cause"],
        row["who"],
        row["retry"],
        row["fix"],
        tuple(re.compile(pattern) for pattern in row["match"]),
        re.compile(after) if after else None,
        row.get("exact") is True,
        row.get("plain") is True,
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
    r"|^\s*Tolerations:|:(?:No|PreferNo)(?:Execute|Schedule)(?: op=\w+| for -?\d+s)+\s*$"
)
"""Healthy lines that count zero failures, deny one, or name a taint that a pod tolerates."""
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
OFTEN_SURVIVED = frozenset(
    {
        FailureClass.AUTH,
        FailureClass.CONFIGURATION,
        FailureClass.CUDA_MISMATCH,
        FailureClass.IMAGE,
        FailureClass.NETWORK,
        FailureClass.SERVICE,
    }
)
"""Outside a traceback, programs often survive these, so a later broken connection makes them doubtful."""
WARNING = re.compile(
    r"\bWARN(?:ING)?\b|Warning:|(?<![=\w])(?:INFO|DEBUG|NOTICE|TRACE)\b|(?:^|\[)[IW]\d{4} \d\d:\d\d"
    r"|\[[IW] \w+\.cpp:|\blevel[\"']?[:=] ?[\"']?(?:info|debug|warn)"
)
"""Programs continue after warnings and notices; those of NCCL and Kubernetes are excluded."""

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
        r"(?i)\b(?:global_?)?(?:step|iteration|iter)\b[\s\"']*[:=]?\s*(\d+)(?!/\d+ ?:)",
        r"(\d+)/\d+ \[[\d:]+<",
        r"(?i)\bepoch\b[\s\"']*[:=]?\s*(\d+(?:\.\d+)?)",
    )
)
"""Lines of a training that continues; the first pattern that matches gives its step or epoch."""
NO_TRAINING = re.compile(
    r"(?i)\b(?:map|filter|generating|loading|download\w*|fetching|tokeniz\w*|resolving|upload\w*|saving"
    r"|convert\w*|casting|creating|prepar\w*|preprocess\w*|shards?|splits?|files?|writing|capturing|#\d+)\b[^|\n]{0,60}:?"
    r"\s+\d+%\|"
    r"|\bStep \d+/\d+ ?: (?:FROM|RUN|COPY|ADD|ENV|WORKDIR|ARG|CMD|ENTRYPOINT|USER|LABEL|EXPOSE)\b"
)
"""Progress bars of data, downloads and image builds, which show no training step."""

EXCEPTION = re.compile(
    r"((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Failure|Fault|Iteration)|Exception)"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w*)(?::(?:\s(.*))?)?$"
)
"""The last line of a traceback: a class, a colon, a message."""
OF_ANOTHER = re.compile(
    r"(?i)nccl|gloo|c10d|socket|connection|timed? ?out|(?:cuda|cudnn|hip) (?:runtime |driver )?(?:error|fail)"
    r"|cu(?:da|blas|dnn)_?(?:error|status)|cudaerror|nvml|worker|peer|aborted|non-zero|exit (?:code|status)"
    r"|exited with|returned with|subprocess|child process|signal \d|sig(?:kill|term|abrt|segv)|terminated"
    r"|killed|root cause|see (?:above|below)|\bcommand\b"
)
"""Messages of exceptions that report what happened elsewhere, on the GPU or in a command that the program
started: not a mistake of the program."""
LAUNCHER_EXCEPTIONS = re.compile(
    r"ChildFailedError|SignalException|DistBackendError|DistNetworkError|DistStoreError"
    r"|ProcessExitedException|ProcessRaisedException|CalledProcessError|SystemExit|KeyboardInterrupt"
    r"|BrokenPipeError|ConnectionResetError|ConnectionError|TimeoutError|EOFError|ActorDiedError"
    r"|PermissionError|FileNotFoundError|OSError|WorkerCrashedError|RayTaskError"
)
"""Exceptions that do not show the cause: they report that another process or a connection ended, or that a
file is missing, which may be the fault of the data, the configuration or the code."""
