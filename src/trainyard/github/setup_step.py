"""One row of the set-up: the state of a setting, the calls that set it, the tasks of a person; and its text.

SetupStep ──> a row of 80 columns, the remaining tasks in their order, data, the exit code
"""

import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.errors import ExitCode
from trainyard.github.repository import GITHUB

HERE, MACHINE, BROWSER = "here", "on the GPU machine", "in the browser"
WIDTH = 80
_NAME, _VERDICT = 15, 11


class SetupVerdict(StrEnum):
    """The state of a step."""

    OK = "ok"  # read from GitHub, and correct
    CHANGE = "change"  # the step's changes would make it correct; another verdict replaces it at the end
    DONE = "done"  # changed now, and read back
    WOULD = "would do"  # not changed, because this is a dry run
    YOU = "you"  # only a person can do it; the step says how
    WAITS = "waits"  # another step must be done first
    REFUSED = "refused"  # GitHub refused the change, or accepted it but did not keep it


FINISHED = (SetupVerdict.OK, SetupVerdict.DONE)


@dataclass(frozen=True)
class SetupChange:
    """One call that changes something on GitHub."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def command_line(self, host: str) -> str:
        """Return the call as a command for a shell."""
        prefix = "" if host == GITHUB else f"GH_HOST={host} "
        given = f" --input - <<< {shlex.quote(json.dumps(self.body))}" if self.body else ""
        return f"{prefix}gh api --method {self.method} {self.path}{given}"


@dataclass(frozen=True)
class Todo:
    """A command to run or a page to open, for a person."""

    where: str
    """`HERE`, `MACHINE` or `BROWSER`."""
    command: str
    note: str = ""
    """A remark to read before that."""


@dataclass(frozen=True)
class SetupStep:
    """One row of the set-up."""

    name: str
    verdict: SetupVerdict
    text: str
    """The state that was found, or its difference from the wanted one."""
    changes: tuple[SetupChange, ...] = ()
    overwrites: bool = False
    """The changes replace a setting that somebody chose, so the person must agree first."""
    todo: tuple[Todo, ...] = ()


def repository_argument(host: str, repository: str) -> str:
    """Return the repository in the form of `gh --repo`."""
    return repository if host == GITHUB else f"{host}/{repository}"


def exit_code_of_steps(steps: Sequence[SetupStep]) -> ExitCode:
    """Return 0 when every step is checked, 1 when steps remain, 4 when GitHub refused."""
    if any(step.verdict is SetupVerdict.REFUSED for step in steps):
        return ExitCode.REFUSED
    return ExitCode.DONE if all(step.verdict in FINISHED for step in steps) else ExitCode.NO


def step_row(step: SetupStep) -> str:
    """Return the row of a step, with its verdict at the end of the first line."""
    indent = 2 + _NAME + 1
    width = WIDTH - indent - 1 - _VERDICT
    first, *more = textwrap.wrap(step.text, width, break_on_hyphens=False)
    row = f"  {step.name:<{_NAME}} {first:<{width}} {step.verdict}"
    return "\n".join([row, *(" " * indent + line for line in more)])


def remaining_tasks(steps: Sequence[SetupStep], host: str, *, dry_run: bool) -> str:
    """Return the text after the rows: the calls of a dry run, the tasks of a person, and a summary line."""
    parts: list[str] = []
    calls = [change.command_line(host) for step in steps for change in step.changes]
    if dry_run and calls:
        parts += ["A run without --dry-run would make these calls:", "\n".join(calls)]
    numbered = [(step, todo) for step in steps for todo in step.todo]
    if numbered:
        parts.append("Your remaining steps, in this order:")
    for number, (step, todo) in enumerate(numbered, 1):
        title = f"{number}. {step.name}: {todo.where}" + (f"; {todo.note}" if todo.note else "")
        parts += [textwrap.fill(title, WIDTH, subsequent_indent="   "), todo.command]
    checked = f"{sum(step.verdict in FINISHED for step in steps)} of {len(steps)} steps are checked."
    last = {
        ExitCode.DONE: f"All {len(steps)} steps are checked.",
        ExitCode.NO: f"{checked} Run this again to continue and to check.",
        ExitCode.REFUSED: f"{checked} GitHub refused the others. Fix the cause and run this again.",
    }
    return "\n\n".join([*parts, textwrap.fill(last[exit_code_of_steps(steps)], WIDTH)])


def describe_steps(steps: Sequence[SetupStep], host: str, repository: str) -> Mapping[str, Any]:
    """Return the steps as data."""
    rows = [
        {
            "name": step.name,
            "verdict": str(step.verdict),
            "text": step.text,
            "calls": [change.command_line(host) for change in step.changes],
            "todo": [vars(todo) for todo in step.todo],
        }
        for step in steps
    ]
    ready = exit_code_of_steps(steps) == ExitCode.DONE
    return {"repository": repository, "host": host, "ready": ready, "steps": rows}
