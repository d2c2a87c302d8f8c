"""The set-up as text of 80 columns: one row per step, then the remaining tasks in their order."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.github.setup_step import SetupStep, SetupVerdict, exit_code_of_steps

WIDTH = 80
_NAME, _VERDICT = 15, 11
_COLOURS = {
    SetupVerdict.OK: "32",
    SetupVerdict.DONE: "32",
    SetupVerdict.WOULD: "33",
    SetupVerdict.YOU: "33",
    SetupVerdict.WAITS: "33",
    SetupVerdict.REFUSED: "31",
    SetupVerdict.UNREACHED: "31",
}


def step_row(step: SetupStep, *, colour: bool = False) -> str:
    """The row of a step, with its verdict at the end of the first line."""
    room = WIDTH - 2 - _NAME - 1 - 1 - _VERDICT
    first, *more = textwrap.wrap(step.text, room, break_on_hyphens=False) or [""]
    verdict = (
        f"\x1b[{_COLOURS[step.verdict]}m{step.verdict}\x1b[0m"
        if colour and step.verdict in _COLOURS
        else step.verdict
    )
    indent = " " * (2 + _NAME + 1)
    return "\n".join(
        [f"  {step.name:<{_NAME}} {first:<{room}} {verdict}", *(f"{indent}{line}" for line in more)]
    )


def remaining_tasks(steps: Sequence[SetupStep], host: str, repository: str, *, dry_run: bool) -> str:
    """The text after the rows: the calls of a dry run, the person's remaining tasks, and a summary line."""
    parts: list[str] = []
    calls = [change.command_line(host, repository) for step in steps for change in step.changes]
    if dry_run and calls:
        parts += ["A run without --dry-run would make these calls:", "\n".join(calls)]
    numbered = [(step, todo) for step in steps for todo in step.todo]
    if numbered:
        parts.append("Your remaining steps, in this order:")
    for number, (step, todo) in enumerate(numbered, 1):
        title = f"{number}. {step.name}: {todo.where}" + (f"; {todo.note}" if todo.note else "")
        parts += [textwrap.fill(title, WIDTH, subsequent_indent="   "), todo.command]
    return "\n\n".join([*parts, textwrap.fill(_summary(steps), WIDTH)])


def describe_steps(steps: Sequence[SetupStep], host: str, repository: str) -> Mapping[str, Any]:
    """The steps as data."""
    return {
        "repository": repository,
        "host": host,
        "ready": exit_code_of_steps(steps) == 0,
        "steps": [
            {
                "name": step.name,
                "verdict": str(step.verdict),
                "text": step.text,
                "calls": [change.command_line(host, repository) for change in step.changes],
                "todo": [{"where": t.where, "command": t.command, "note": t.note} for t in step.todo],
            }
            for step in steps
        ],
    }


def _summary(steps: Sequence[SetupStep]) -> str:
    counts = {verdict: sum(step.verdict is verdict for step in steps) for verdict in SetupVerdict}
    checked = counts[SetupVerdict.OK] + counts[SetupVerdict.DONE]
    needed = len(steps) - counts[SetupVerdict.OPTIONAL]
    if checked == needed:
        return f"All {needed} steps are checked."
    if counts[SetupVerdict.REFUSED] or counts[SetupVerdict.UNREACHED]:
        left = (
            "GitHub refused, or could not be reached. "
            "Finished steps are kept: fix the cause and run this again."
        )
    else:
        left = "Run this again to continue and to check."
    return f"{checked} of {needed} steps are checked. {left}"
