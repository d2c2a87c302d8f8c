"""Report on training runs: as text, JSON, Markdown (the job summary) or one HTML file.

With --compare two runs are laid side by side as Markdown: figures, weights, and settings that differ.
A run may be running, done, stopped, cut off in the middle of a line, or empty. Unknown figures are left out.

Reads:   run directories, or metrics files in them: run.json, metrics.jsonl, events.jsonl, config.yaml,
         checkpoints/*/manifest.json, report/proof.json; TRAINYARD_USD_PER_HOUR (the price of the machines).
Writes:  the report to stdout or --output; with --write report/index.html, report/dashboard.json and
         report/summary.md in each run directory; with --github-summary the job summary, in GitHub Actions.
Exit codes: 0 reported, also for a failed run; 2 there is no such run directory, a report cannot be
         written, or --compare was not given two runs.
Example: scripts/training_dashboard.py runs/20261120-214501-7c1f --format markdown
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, output, terminal
from trainyard.command.parser import script_parser
from trainyard.command.visible_text import escape_controls
from trainyard.errors import ConfigError

if TYPE_CHECKING:
    from trainyard.report.dashboard.dashboard import TrainingDashboard

FORMATS = ("text", "json", "markdown", "html")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "runs", type=arguments.path, nargs="+", metavar="RUN_DIR", help="the directory of a run"
    )
    parser.add_argument("--format", choices=FORMATS, help="default: by the suffix of --output, else text")
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="the same as --format json"
    )
    parser.add_argument("--output", type=arguments.path, metavar="FILE", help="default: stdout")
    parser.add_argument("--write", action="store_true", help="write the reports into each run's report/")
    parser.add_argument("--github-summary", action="store_true", help="append Markdown to the job summary")
    compare = "compare two runs: the base, then the one to compare with it"
    parser.add_argument("--compare", action="store_true", help=compare)
    args = parser.parse_args(argv)
    if args.compare and (len(args.runs) != 2 or args.write or args.format not in (None, "markdown")):
        parser.error("--compare takes two run directories, writes Markdown, and excludes --write")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    from trainyard.gateways.github import append_summary
    from trainyard.report.dashboard.dashboard import Format, TrainingDashboard, format_of, render_dashboards
    from trainyard.report.dashboard.run_comparison import comparison_report

    dashboards = [TrainingDashboard(run) for run in args.runs]

    def render(form: Format) -> str:
        if args.compare:
            return comparison_report([dashboard.facts for dashboard in dashboards])
        return render_dashboards(dashboards, form)

    if args.write:
        for dashboard in dashboards:
            write_into_run(dashboard)
    if args.github_summary and not append_summary(render(Format.MARKDOWN)):
        output.announce("summary", "none written: GITHUB_STEP_SUMMARY is not set outside GitHub Actions")
    if args.output is not None:
        write(args.output, render(Format(args.format) if args.format else format_of(args.output)))
    elif args.format or not (args.write or args.github_summary):
        form = Format(args.format or ("markdown" if args.compare else "text"))
        text = render(form)
        sys.stdout.write(escape_controls(text) if form in (Format.TEXT, Format.MARKDOWN) else text)
    return 0


def write_into_run(dashboard: "TrainingDashboard") -> None:
    """Write the three files into the run's report folder; return their paths."""
    from trainyard.report.dashboard.dashboard import format_of, render_dashboards
    from trainyard.report.terminal.closing_lines import closing_lines, is_copied
    from trainyard.report.terminal.phase import PhaseDisplay
    from trainyard.run.atomic_files import make_folder
    from trainyard.run.directory import RunDirectory

    with terminal.show_live(PhaseDisplay("report", "drawing the reports")):
        folder = RunDirectory(dashboard.facts.directory).report
        make_folder(folder)
        for name in ("dashboard.json", "summary.md", "index.html"):
            path = folder / name
            write(path, render_dashboards([dashboard], format_of(path)))
    for phase, text, status in closing_lines(dashboard.facts):
        output.announce(phase, text, status, copied=is_copied(phase, text))


def write(path: Path, content: str) -> None:
    from trainyard.run.atomic_files import write_bytes_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(path, content.encode())
    except OSError as error:
        raise ConfigError(f"{path}: the report cannot be written ({error.strerror})") from None
