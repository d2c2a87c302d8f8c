"""The checklist before a deployment: what was checked, what was found, and how to repair it. Pure.

findings, steps, checks ──> CheckItem, CheckItem, … ──> rows of 80 columns, or a page to sign
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.machine.preflight import PreflightFinding

_AREA, _VERDICT = 14, 12
_DONE = ("ok", "done")


class CheckState(StrEnum):
    """The result of an item; only `FAILED` means not ready."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"
    UNKNOWN = "cannot look"
    """Nothing is known: a tool, a login or a network is missing."""
    UNUSED = "not used"
    """Neither the configuration nor the environment uses it."""


@dataclass(frozen=True)
class CheckItem:
    """One line of the checklist."""

    area: str
    """The part of the deployment, such as `machine`, `store` or `github`."""
    name: str
    state: CheckState
    found: str
    fix: str = ""


def items_of_findings(area: str, findings: Sequence[PreflightFinding]) -> list[CheckItem]:
    """Return an item for each finding about the machine, the store and the like."""
    return [
        CheckItem(area, each.check, CheckState(each.verdict), each.found, each.fix or "") for each in findings
    ]


def items_of_setup(found: Mapping[str, Any]) -> list[CheckItem]:
    """Return an item for each step of the set-up of GitHub."""
    items = []
    for step in found["steps"]:
        state = CheckState.FAILED
        if step["verdict"] in _DONE:
            state = CheckState.OK
        elif step["verdict"] in ("not reached", "refused"):
            state = CheckState.UNKNOWN
        fix = [*step["calls"], *(todo["command"] for todo in step["todo"])]
        items.append(CheckItem("github", step["name"], state, step["text"], "\n".join(fix)))
    return items


def items_of_cluster(found: Mapping[str, Any]) -> list[CheckItem]:
    """Return an item for each check in the record of a cluster's verdict."""
    states = {
        "error": CheckState.FAILED,
        "warning": CheckState.DEGRADED,
        "info": CheckState.OK,
        "passed": CheckState.OK,
        "skipped": CheckState.UNKNOWN,
    }
    return [
        CheckItem("cluster", each["check"], states[each["severity"]], each["evidence"], each["remedy"])
        for each in found["checks"]
    ]


def is_ready(items: Sequence[CheckItem]) -> bool:
    """Return whether nothing failed. Items that could not be checked do not count, but are listed."""
    return all(item.state is not CheckState.FAILED for item in items)


def conclusion(items: Sequence[CheckItem]) -> str:
    """Return one sentence: `Ready: 14 of 20 items are ok, 2 could not be checked, 4 not used.`"""
    count = {state: sum(item.state is state for item in items) for state in CheckState}
    words = {
        CheckState.FAILED: "failed",
        CheckState.DEGRADED: "degraded",
        CheckState.UNKNOWN: "could not be checked",
        CheckState.UNUSED: "not used",
    }
    parts = [f"{count[state]} {text}" for state, text in words.items() if count[state]]
    whole = f"{count[CheckState.OK]} of {len(items)} items are ok"
    return f"{'Ready' if is_ready(items) else 'Not ready'}: {', '.join([whole, *parts])}."


def checklist_rows(items: Sequence[CheckItem], *, width: int = 80) -> Iterator[str]:
    """Yield the lines of the checklist; a fix is below its finding."""
    indent = " " * (_AREA + _VERDICT)
    for index, item in enumerate(items):
        area = item.area if index == 0 or items[index - 1].area != item.area else ""
        text = f"{item.name}: {item.found}" if item.name != item.area else item.found
        start = f"{area:<{_AREA}}{item.state:<{_VERDICT}}"
        yield textwrap.fill(" ".join(text.split()), width, initial_indent=start, subsequent_indent=indent)
        if item.fix and item.state is not CheckState.OK:
            for line in item.fix.splitlines():  # commands are not wrapped: people copy them
                yield f"{indent}{line}" if line.startswith(" ") else f"{indent}fix: {line}"


def sign_off_page(items: Sequence[CheckItem], header: Mapping[str, str]) -> str:
    """Return the checklist as Markdown with the given facts, and lines for the names of those who sign."""
    rows = [
        f"| {' | '.join(map(markdown_cell, (item.area, item.name, item.state, item.found, item.fix)))} |"
        for item in items
    ]
    facts = [f"- {name}: {value}" for name, value in header.items()]
    return "\n".join(
        [
            f"# {conclusion(items)}",
            "",
            *facts,
            "",
            "| area | item | result | found | fix |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "Signed by: ______________________  Date: ______________",
            "",
        ]
    )


def markdown_cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return "<br>".join(text.replace("|", "\\|").splitlines())
