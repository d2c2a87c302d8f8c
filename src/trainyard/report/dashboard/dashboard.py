"""The dashboard of a run: its facts, read once, as text, JSON, Markdown or HTML (source document 004)."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainyard.report.dashboard.html import html_report
from trainyard.report.dashboard.json_report import SCHEMA_VERSION, json_report
from trainyard.report.dashboard.markdown import markdown_report
from trainyard.report.dashboard.run_comparison import comparison_report, comparison_text
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts.run_facts import RunFacts, read_facts
from trainyard.run.atomic_files import write_bytes_atomically


class Format(StrEnum):
    """The output format of a report."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


class TrainingDashboard:
    """Reports on one run, from its directory or its `metrics.jsonl`.

    The run may still be running, cut off, or empty. Raises ConfigError when there is no run.
    `now` (Unix seconds) decides whether a run without an outcome is still alive; the default is the clock.
    """

    def __init__(self, metrics_file: str | Path, *, now: float | None = None) -> None:
        self.facts: RunFacts = read_facts(Path(metrics_file), now=now)

    def generate_text_report(self) -> str:
        return text_report(self.facts)

    def generate_json_report(self) -> dict[str, Any]:
        return json_report(self.facts)

    def generate_markdown_report(self) -> str:
        return markdown_report(self.facts)

    def generate_html_report(self) -> str:
        return html_report([self.facts])

    def print_report(self) -> None:
        """Write the text report to stdout."""
        sys.stdout.write(self.generate_text_report())

    def save_report(self, output_file: str | Path) -> None:
        """Write the report in the format of the file's suffix (`.json`, `.md`, `.html`), else as text."""
        path = Path(output_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(path, render_dashboards([self], format_of(path)).encode())


def format_of(path: Path) -> Format:
    """The format that a file's suffix stands for."""
    endings = {".json": Format.JSON, ".md": Format.MARKDOWN, ".html": Format.HTML}
    return endings.get(path.suffix.lower(), Format.TEXT)


def render_dashboards(
    dashboards: Sequence[TrainingDashboard], form: Format, *, refresh_seconds: float | None = None
) -> str:
    """One document with all `dashboards`.

    JSON is an object for one run, a list for several. `refresh_seconds` is for HTML (`html_report`).
    """
    runs = [one.facts for one in dashboards]
    comparison = [comparison_report(runs)] if len(runs) > 1 else []
    match form:
        case Format.TEXT:
            compared = [comparison_text(runs)] if len(runs) > 1 else []
            return "\n\n".join([*compared, *(text_report(run) for run in runs)])
        case Format.MARKDOWN:
            return "\n---\n\n".join([*comparison, *(markdown_report(run) for run in runs)])
        case Format.JSON:
            reports = [json_report(run) for run in runs]
            value = reports[0] if len(reports) == 1 else {"schema_version": SCHEMA_VERSION, "runs": reports}
            return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        case Format.HTML:
            return html_report(runs, refresh_seconds=refresh_seconds)
