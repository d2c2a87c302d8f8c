"""The class of a failure in logs as tools hand them on: prefixed, cut, mixed with other ranks', long."""

import time
from collections.abc import Callable
from itertools import zip_longest

import pytest
from tests.unit.watch.failure_logs.test_log_explanation import (
    CASES,
    CHILDREN,
    REMOTE,
    WATCHDOG,
    explained,
    steps,
)

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
"""What other ranks say, and the end of the job, after one rank has failed."""
WAITING = ("image-pull", "quota", "unschedulable")
"""Where these are the end, nothing ran; in a log that is cut they may have ended well."""
WITH_CAUSE = {name: case for name, case in CASES.items() if case[0] not in ("unknown", *WAITING)}
ALSO_CONSEQUENCES = ("hang", "nccl-timeout", "nccl-error", "rendezvous-timeout", "cancelled", "time-limit")
ANSWER = "a program's answer to a lost connection"
"""Without the line on the connection, an exception of the program's own is all that is left."""


def prefixed(prefix: str) -> Callable[[str], str]:
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
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


@pytest.mark.slow
def test_a_long_log_is_read_in_bounded_time() -> None:
    long = "21:45:00 INFO  loader: read 41,220 records of part 7 without an error, nothing to repeat here\n"
    text = long * (20_000_000 // len(long)) + CASES["a gpu is full"][1]
    begun = time.process_time()
    assert str(explained(text).klass) == "oom-gpu"
    assert time.process_time() - begun < 24
