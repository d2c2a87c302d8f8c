"""The exit codes of pods: which of them end a job, and how a pod requests a restart from its operator.

    final       0 done, 2 configuration, 3 bug, 6 trained and stored but not proven: a restart would repeat it
    restart     everything else, at most `cluster.pod.restarts` times

Who distinguishes them depends on the kind of job; each module of `kinds` defines it. The training operator
restarts a pod by its exit code without a limit, so `PodStarts` counts the starts in a file beside the run
directory. The count starts again from 1 when the run has a newer checkpoint than at the previous start, and
after six hours, because the file may be of an earlier job of the same name.
"""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from trainyard.errors import DamagedFileError, ExitCode
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.untrusted_files import read_json_object

# The exit codes of a failure that a restart would only repeat.
FINAL_CODES = (ExitCode.USAGE, ExitCode.BUG, ExitCode.NOT_PROVEN)
# The first of the exit codes with which a pod requests a restart; those of signals end at 192.
RESTART_CODE = 192
_LAST_OWN = 127
# The exit codes of a requested end: with a checkpoint, from the keyboard, by SIGTERM.
REQUESTED_END_CODES = (ExitCode.STOPPED, ExitCode.INTERRUPTED, 143)
_STANDS_FOR = re.compile(r"\bexit code (\d{1,3}) stands for (\d{1,3})\b")
_NOT_PROVEN = re.compile(r"\bThe run is not proven: (.+?)(?: \[failed\])?\s*$")
# Longer than any start takes that ends without a checkpoint.
_FORGOTTEN_AFTER_SECONDS = 6 * 3600.0
# The exit code of a container that was killed, which could not record one.
_KILLED = 137
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


@dataclass(frozen=True)
class PodStarts:
    """The starts of one pod since its run last made progress."""

    file: Path
    directory: RunDirectory

    def add(self, now: float) -> int:
        """Count one more start at `now` (Unix seconds); return its number, from 1."""
        before, step = self._read(), max(self.directory.checkpoint_steps(), default=0)
        is_over = step > before["step"] or not 0 <= now - before["time"] < _FORGOTTEN_AFTER_SECONDS
        number = 1 if is_over else before["starts"] + 1
        code = _KILLED if before["code"] is None else before["code"]
        self._write({"starts": number, "step": step, "time": now, "code": None, "code_before": code})
        return number

    def note_end(self, code: int, *, counts: bool) -> None:
        """Record the exit code of this start; with `counts` False it is not counted."""
        before = self._read()
        number = max(0, before["starts"] - (not counts))
        self._write({**before, "starts": number, "code": code})

    @property
    def code_before(self) -> int:
        """The exit code of the previous start."""
        return int(self._read()["code_before"])

    def forget(self) -> None:
        """Remove the count, because the operator does not start the pod again."""
        self.file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = {"starts": 0, "step": 0, "time": 0.0, "code": None, "code_before": _KILLED}
        with suppress(OSError, DamagedFileError):
            found |= read_json_object(self.file, links=False)
        return found

    def _write(self, content: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.file, content)


def starts_of_pod(run_directory: Path, pod: str) -> PodStarts:
    """Return the count of the pod's starts."""
    file = run_directory.parent / f".{run_directory.name}.{pod or 'pod'}.starts.json"
    return PodStarts(file, RunDirectory(run_directory))
