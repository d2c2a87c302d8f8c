"""The exit codes of pods: which of them end a job, and how a pod requests a restart from its operator.

    final       0 done, 2 configuration, 3 bug, 6 trained and stored but not proven: a restart would repeat it
    restart     everything else, at most `cluster.pod.restarts` times

Who distinguishes them depends on the kind of job; each module of `kinds` defines it.
"""

import re
from collections.abc import Callable, Collection, Sequence
from textwrap import shorten

from trainyard.errors import ExitCode

# The exit codes of a failure that a restart would only repeat.
FINAL_CODES = (ExitCode.USAGE, ExitCode.BUG, ExitCode.NOT_PROVEN)
# The first of the exit codes with which a pod requests a restart; those of signals end at 192.
RESTART_CODE = 192
_LAST_OWN = 127
# The exit codes of a requested end: with a checkpoint, from the keyboard, by SIGTERM.
REQUESTED_END_CODES = (ExitCode.STOPPED, ExitCode.INTERRUPTED, 143)
_STANDS_FOR = re.compile(r"\bexit code (\d{1,3}) stands for (\d{1,3})\b")
_NOT_PROVEN = re.compile(r"\bThe run is not proven: (.+?)(?: \[failed\])?\s*$")
_LONGEST_EVIDENCE = 300
"""Kubernetes keeps the last 2 kB of what a container printed."""


def is_final(code: int) -> bool:
    """Return whether a pod that ended with this exit code is not started again."""
    return code == ExitCode.DONE or code in FINAL_CODES


def code_for_restart(code: int) -> int:
    """Return the exit code by which an operator restarts a pod whose own exit code is `code`: 128 or more."""
    return code if code > _LAST_OWN else RESTART_CODE + code % (256 - RESTART_CODE)


def describe_restart(code: int) -> str:
    """Return the line that says which exit code `code_for_restart` stands for; `code_on_record` reads it."""
    return f"exit code {code_for_restart(code)} stands for {code}: the operator starts this pod again"


def describe_last_restart(code: int, restarts: int) -> str:
    """Return the line for a pod that ends with 1 after its last restart; `code_on_record` reads it."""
    spent = f"no new checkpoint after {restarts} restart{'' if restarts == 1 else 's'}"
    return f"exit code {int(ExitCode.NO)} stands for {code}: {spent} (cluster.pod.restarts)"


def code_on_record(code: int | None, message: str) -> int | None:
    """Return the exit code that `code` stands for by the last lines of a pod; `code` if they name none."""
    for found in _STANDS_FOR.finditer(message):
        if int(found[1]) == code:
            return int(found[2])
    return code


def describe_not_proven(parts: Sequence[tuple[str, str]]) -> str:
    """Return the line that names the parts of the proof that do not hold, with their evidence."""
    named = "; ".join(f"{name} ({shorten(why, _LONGEST_EVIDENCE, placeholder='…')})" for name, why in parts)
    return f"The run is not proven: {named or 'no proof was written; the lines above show the cause'}"


def not_proven_on_record(code: int | None, lines: Sequence[str]) -> str | None:
    """Return what a pod that trained and stored reports as not proven; None after another end."""
    if code != ExitCode.NOT_PROVEN:
        return None
    found = [match[1] for line in lines if (match := _NOT_PROVEN.search(line))]
    return f"not proven: {found[-1]}" if found else None


def restart_in_place(
    run: Callable[[], int], restarts: int, on_restart: Callable[[str], None], *, last: Collection[int] = ()
) -> int:
    """Run until the exit code is final or in `last`, at most 1 + `restarts` times; return the last one."""
    for number in range(1, restarts + 1):
        code = run()
        if is_final(code) or code in last:
            return code
        on_restart(f"ended with exit code {code}; restart {number} of {restarts}")
    return run()
