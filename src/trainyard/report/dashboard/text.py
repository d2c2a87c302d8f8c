"""The report for a terminal and a log: one figure per line under plain headings (source document 004).

An unknown figure has no line, and a section without lines has no heading.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from trainyard.report.facts.figures import Line, text_figures
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.troubles import alert_lines
from trainyard.report.facts.verdict_line import root_error
from trainyard.run.sizes import format_size


def text_report(facts: RunFacts) -> str:
    """The complete report, ending in a newline."""
    sections = (
        ("TRAINING PROGRESS REPORT", _identity(facts)),
        *text_figures(facts).items(),
        ("HEALTH", (("Alert", line) for line in alert_lines(facts))),
        ("CHECKPOINTS", _checkpoints(facts)),
        (_proof_heading(facts), _proof(facts)),
    )
    blocks = (_block(heading, lines) for heading, lines in sections)
    return "\n\n".join(block for block in blocks if block) + "\n"


def utc(moment: float) -> str:
    """Unix seconds as `2025-01-09T14:23:45Z`; a number that no calendar has is shown as it is."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{moment:.6g} s"


def _block(heading: str, lines: Iterable[Line]) -> str:
    known = [f"  {label}: {value}" for label, value in lines if value is not None]
    return "\n".join([heading, *known]) if known else ""


def _identity(facts: RunFacts) -> Iterable[Line]:
    yield "Status", str(facts.state)
    yield "Error", root_error(facts) or None
    yield "Timestamp", None if facts.timestamp is None else utc(facts.timestamp)
    yield "Run", facts.name
    yield "Run Number", None if facts.run_number is None else str(facts.run_number)
    yield "Git SHA", None if facts.commit is None else facts.commit + (" (dirty)" if facts.dirty else "")


def _checkpoints(facts: RunFacts) -> Iterable[Line]:
    if facts.checkpoints:
        last = facts.checkpoints[-1]
        yield "Last Checkpoint", f"step {last.step}, {format_size(last.size)}, {last.path}"


def _proof_heading(facts: RunFacts) -> str:
    if facts.proof is None or facts.proof.proven:
        return "PROVEN"
    return f"NOT PROVEN: {', '.join(part.name for part in facts.proof.failing) or 'the record is incomplete'}"


def _proof(facts: RunFacts) -> Iterable[Line]:
    shown: set[str | None] = {None}
    for part in facts.proof.parts if facts.proof else ():
        yield part.name.capitalize(), part.evidence
        if not part.passed and part.next_step not in shown:
            shown.add(part.next_step)
            yield "  Next", part.next_step
