"""The class of a failure in logs as tools pass them on: prefixed, cut, mixed with other ranks', long."""

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.watch.failure_logs.test_log_explanation import (
    CASES,
    CHILDREN,
    REMOTE,
    WATCHDOG,
    explained,
    steps,
)

from trainyard.watch.failure_logs.evidence_rules import table

PREFIXES = {
    "torchrun": "[rank3]: ",
    "torchrun by default names": "[default3]:",
    "kubectl logs --prefix": "[pod/llama-worker-0/pytorch] ",
    "kubectl logs --timestamps": "2026-11-20T12:00:00.123456789Z ",
    "kubectl logs with both": "[pod/llama-worker-0/pytorch] 2026-11-20T12:00:00.123456789Z ",
    "a container's log file": "2026-11-20T12:00:00.123456789+00:00 stderr F ",
    "ray": "(WorkerDict pid=4242, ip=10.0.0.7) ",
    "ray in colour": "\x1b[36m(TaskRunner pid=4242)\x1b[0m ",
    "ray on a node, of a rank": "(WorkerDict pid=4242, ip=10.0.0.7) [rank3]: ",
    "docker compose": "trainer-1  | ",
    "docker build": "#12 3.141 ",
    "vllm": "(EngineCore_0 pid=4242) ERROR 11-20 12:00:00 [core.py:343] ",
    "glog": "E1120 12:00:00.123456 4242 site-packages/torch/distributed/run.py:88] ",
    "slurm": "3: ",
    "GitHub": "2026-11-20T12:00:00.1234567Z ",
}
OTHERS = {
    "a connection lost": REMOTE,
    "a collective that waited": WATCHDOG,
    "the launcher's count": CHILDREN,
    "signals": "W1218 20:27:22 elastic/api.py:900] Sending process 7 closing signal SIGTERM",
    "killed": "Killed",
}
"""The lines of other ranks and of the job's end after one rank has failed."""
WAITING = ("image-pull", "quota", "unschedulable")
"""If a log ends with such a wait, nothing ran; in a log that is cut it may have ended well."""
WITH_CAUSE = {name: case for name, case in CASES.items() if case[0] not in ("unknown", *WAITING)}
ALSO_CONSEQUENCES = ("hang", "nccl-timeout", "nccl-error", "rendezvous-timeout", "cancelled", "time-limit")
ANSWER = "a program's answer to a lost connection"
"""Without the line on the connection, only an exception of the program's own is left."""


def prefixed(prefix: str) -> Callable[[str], str]:
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


@each_case("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_prefix_on_every_line_hides_no_cause_and_makes_none(prefix: str) -> None:
    wrong, lost = {}, []
    for name, (klass, text) in CASES.items():
        found = str(explained(prefixed(prefix)(text)).klass)
        if found not in (klass, "unknown"):
            wrong[name] = found
        elif found != klass:
            lost.append(name)
    assert wrong == {}
    assert lost == []


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\n\n"])
def test_the_ends_of_lines_change_nothing(newline: str) -> None:
    wrong = {
        name: str(found)
        for name, (klass, text) in CASES.items()
        if str(found := explained(text.replace("\n", newline)).klass) != klass
    }
    assert wrong == {}


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_log_that_is_cut_is_never_explained_wrongly(share: float, end: str) -> None:
    """Cut before its cause, a log may still name a true consequence, never another cause."""
    wrong = {}
    for name, (klass, text) in WITH_CAUSE.items():
        lines = text.split("\n")
        at = round(len(lines) * share)
        left = lines[at:] if end == "first" else lines[:at]
        found = str(explained("\n".join(left)).klass)
        if found not in (klass, "unknown", *ALSO_CONSEQUENCES, *WAITING) and name != ANSWER:
            wrong[name] = found
    assert wrong == {}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_a_consequence_after_the_cause_is_not_taken_for_it(others: str) -> None:
    wrong = {}
    for name, (klass, text) in WITH_CAUSE.items():
        found = str(explained(f"{steps(1, 5)}\n{text}\n{others}").klass)
        if found not in (klass, "unknown") and klass not in ALSO_CONSEQUENCES:
            wrong[name] = found
    assert wrong == {}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_lines_of_other_ranks_between_those_of_the_cause_change_no_class(others: str) -> None:
    wrong = {}
    for name, (klass, text) in WITH_CAUSE.items():
        mixed = zip_longest(
            prefixed("[rank1]: ")(text).split("\n"), prefixed("[rank0]: ")(others).split("\n"), fillvalue=""
        )
        found = str(explained("\n".join(line for pair in mixed for line in pair)).klass)
        if found not in (klass, "unknown") and klass not in ALSO_CONSEQUENCES:
            wrong[name] = found
    assert wrong == {}


ROWS = {row["cause"]: row for row in table()}
BEGIN = 'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    main()\n'
"""Before the examples of exceptions, whose words count only at the end of a traceback."""


def example(row: dict[str, Any]) -> str:
    return (BEGIN if row["level"] == "raised" else "") + str(row["example"])


def disguises(text: str) -> dict[str, str]:
    """The text as tools pass it on: prefixed, in colour, cut at its ends, and with lines of other ranks."""
    lines = text.split("\n")
    cuts = {f"cut to {n} of its lines": "\n".join(lines[-n:]) for n in range(1, len(lines))}
    prefixes = {name: prefixed(prefix)(text) for name, prefix in PREFIXES.items()}
    coloured = "\n".join(f"\x1b[31m{line}\x1b[0m\r" for line in lines)
    mixed = {name: f"{steps(1, 5)}\n{text}\n{prefixed('[rank7]: ')(each)}" for name, each in OTHERS.items()}
    return {**cuts, **prefixes, "in colour": coloured, **mixed}


WHOLE = {*PREFIXES, "in colour"}
"""With these the message is complete, so the class must be the same."""


@each_case("cause", ROWS)
def test_the_example_of_a_cause_is_never_taken_for_another_class(cause: str) -> None:
    row = ROWS[cause]
    wrong = {}
    for name, text in disguises(example(row)).items():
        found = str(explained(text, 1).klass)
        allowed = {row["class"]} if name in WHOLE else {row["class"], "unknown"}
        if name in OTHERS and row["level"] in (
            "communication",
            "wait",
            "pending",
            "aftermath",
        ):
            allowed |= {"unknown", *ALSO_CONSEQUENCES}
        if name.startswith("cut") and "after" in row:
            continue  # without its earlier line the message has another meaning
        if found not in allowed:
            wrong[name] = (found, text)
    assert wrong == {}
