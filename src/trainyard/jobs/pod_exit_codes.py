"""The exit codes of pods: which of them end a job, and the restarts of a pod in place.

    final       0 done, 2 configuration, 3 bug, 6 trained and stored but not proven: a restart would repeat it
    restart     everything else, at most `cluster.pod.restarts` times

Who distinguishes them depends on the kind of job; each module of `kinds` defines it.
"""

import re
import signal
from collections.abc import Callable, Collection, Sequence
from textwrap import shorten

from trainyard.errors import ExitCode
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows

# The exit codes of a failure that a restart would only repeat.
FINAL_CODES = (ExitCode.USAGE, ExitCode.BUG, ExitCode.NOT_PROVEN)
# The exit codes of a requested end: with a checkpoint, from the keyboard, by SIGTERM.
REQUESTED_END_CODES = (ExitCode.STOPPED, ExitCode.INTERRUPTED, 143)
GAVE_UP = "gave_up"
"""The event of a pod that was killed too often without a new checkpoint."""
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
    run: Callable[[], int], restarts: int, on_restart: Callable[[str], None], *, last: Collection[int] = ()
) -> int:
    """Run until the exit code is final or in `last`, at most 1 + `restarts` times; return the last one."""
    for number in range(1, restarts + 1):
        code = run()
        if is_final(code) or code in last:
            return code
        on_restart(f"ended with exit code {code}; restart {number} of {restarts}")
    return run()


def starts_without_end(directory: RunDirectory) -> int:
    """Return how often the run was started since it last saved a checkpoint or recorded an end.

    Each of these starts was killed, as with the container or the node.
    """
    count = 0
    for row in read_rows(directory.events_file):
        if row.get("event") in ("started", "resumed"):
            count += 1
        elif row.get("event") in ("checkpoint_saved", "finished", "preempted", "interrupted", GAVE_UP):
            count = 0
    return count


def code_for_operator(code: int) -> int:
    """Return an exit code that an operator with the policy `ExitCode` restarts only after a requested end.

    It restarts 128 and more, without a limit; a process of the training that crashed was restarted in place.
    """
    if code in REQUESTED_END_CODES:
        return 128 + signal.SIGTERM
    return int(ExitCode.NO) if code > 127 else code
