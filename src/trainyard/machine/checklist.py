"""The checklist before a deployment: what was checked, what was found, and how to repair it. Pure.

findings, steps, checks ──> Finding, Finding, … ──> rows of 80 columns, or a page to sign
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from trainyard.plan.finding import Finding, Severity

_AREA, _VERDICT = 14, 12


def item_record(item: Finding) -> dict[str, str]:
    """Return an item as plain data."""
    words = {"area": item.area, "name": item.subject, "status": item.severity.verdict}
    return {**words, "found": item.evidence, "fix": item.fix}


def is_ready(items: Sequence[Finding]) -> bool:
    """Return whether nothing failed. Items that could not be checked do not count, but are listed."""
    return all(item.severity is not Severity.ERROR for item in items)


def conclusion(items: Sequence[Finding]) -> str:
    """Return one sentence: `Ready: 14 of 20 items are ok, 2 not checked, 4 not used.`"""
    count = Counter(item.severity.verdict for item in items)
    words = ("failed", "degraded", "not checked", "not used")
    parts = [f"{count[word]} {word}" for word in words if count[word]]
    whole = f"{count['ok']} of {len(items)} items are ok"
    return f"{'Ready' if is_ready(items) else 'Not ready'}: {', '.join([whole, *parts])}."


def checklist_rows(items: Sequence[Finding], *, width: int = 80) -> Iterator[str]:
    """Yield the lines of the checklist; a fix is below its finding."""
    indent = " " * (_AREA + _VERDICT)
    for index, item in enumerate(items):
        area = item.area if index == 0 or items[index - 1].area != item.area else ""
        text = f"{item.subject}: {item.evidence}" if item.subject != item.area else item.evidence
        start = f"{area:<{_AREA}}{item.severity.verdict:<{_VERDICT}}"
        yield textwrap.fill(" ".join(text.split()), width, initial_indent=start, subsequent_indent=indent)
        if item.fix and item.severity.verdict != "ok":
            for line in item.fix.splitlines():  # commands are not wrapped: people copy them
                yield f"{indent}{line}" if line.startswith(" ") else f"{indent}fix: {line}"


def sign_off_page(items: Sequence[Finding], header: Mapping[str, str]) -> str:
    """Return the checklist as Markdown with the given facts, and lines for the names of those who sign."""
    rows = [f"| {' | '.join(map(markdown_cell, item_record(item).values()))} |" for item in items]
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
