"""The exit codes of pods: which of them end a job, and the restarts of a pod in place.

    final       0 done, 2 configuration, 3 bug, 6 trained and stored but not proven: a restart would repeat it
    restart     everything else, at most `cluster.pod.restarts` times

Who distinguishes them depends on the kind of job; each module of `kinds` defines it.
"""

import re
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

from trainyard.errors import DamagedFileError, ExitCode
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.untrusted_files import read_json_object

# The exit codes of a failure that a restart would only repeat.
FINAL_CODES = (ExitCode.USAGE, ExitCode.BUG, ExitCode.NOT_PROVEN)
# The exit codes of a requested end: with a checkpoint, from the keyboard, by SIGTERM.
REQUESTED_END_CODES = (ExitCode.STOPPED, ExitCode.INTERRUPTED, 143)
_NOT_PROVEN = re.compile(r"\bThe run is not proven: (.+?)(?: \[failed\])?\s*$")
_LONGEST_EVIDENCE = 300
"""Kubernetes keeps the last 2 kB of what a container printed."""


def is_final(code: int) -> bool:
    """Return whether a pod that ended with this exit code is not started again."""
    return code == ExitCode.DONE or code in FINAL_CODES


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
    run: Callable[[], int],
    restarts: int,
    on_restart: Callable[[str], None],
    *,
    last: Collection[int] = (),
    progress: Callable[[], int] = lambda: 0,
) -> int:
    """Run until the exit code is final or in `last`; return the last one.

    It runs at most `restarts` times more while `progress`, the step of the newest checkpoint, stays the same.
    """
    number, reached = 0, progress()
    while True:
        code = run()
        if (now := progress()) > reached:
            number, reached = 0, now
        if is_final(code) or code in last or number == restarts:
            return code
        number += 1
        on_restart(f"ended with exit code {code}; restart {number} of {restarts}")


def add_start(file: Path, step: int) -> int:
    """Count one more start of a pod in `file`, and return its number since the checkpoint of `step`, from 1.

    The pod removes the file when it ends by itself, so that only starts are counted that were killed.
    """
    before: dict[str, Any] = {}
    with suppress(OSError, DamagedFileError):
        before = read_json_object(file, links=False)
    number = int(before.get("starts", 0)) + 1 if before.get("step") == step else 1
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(file, {"starts": number, "step": step})
    return number


def code_for_operator(code: int) -> int:
    """Return an exit code that an operator with the policy `ExitCode` restarts only after a requested end.

    It restarts 128 and more, without a limit; a process of the training that crashed was restarted in place.
    """
    if code in REQUESTED_END_CODES:
        return 128 + signal.SIGTERM
    return int(ExitCode.NO) if code > 127 else code
