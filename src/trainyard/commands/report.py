"""Report on training runs: as text, JSON, Markdown (the job summary) or one HTML file.

Several runs share their charts, with a table of their figures and of the settings that differ. With --compare
only this comparison is written, as Markdown; it always shows the thresholds of the last run, and --last-green
adds the figures of that run. The report of a folder of runs, or of a --store, is an index of them. A run may
be running, done, stopped, cut off in the middle of a line, or empty. Unknown figures are left out.

Reads:   run directories, or metrics files in them: run.json, metrics.jsonl, events.jsonl, config.yaml,
         checkpoints/*/manifest.json, report/proof.json; TRAINYARD_USD_PER_HOUR (the price of the machines);
         with --store the names, sizes and manifests of its runs, and the records of those that succeeded,
         which are judged, AWS_*.
Writes:  the report to stdout or --output; with --write report/index.html, report/dashboard.json and
         report/summary.md in each run directory; with --github-summary the job summary, in GitHub Actions.
         With --watch they are written repeatedly until no run is in progress, or until no run has written
         for ten minutes; the HTML page reloads itself.
Exit codes: 0 reported, also for a failed run; 2 there is no such run directory, a report cannot be
         written, or --compare was not given two runs; 4 the store cannot be reached.
Example: trainyard report runs/20261120-214501-7c1f --format markdown
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, output, terminal
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.command.visible_text import escape_controls
from trainyard.commands.runs import folder_entries, index_record, store_entries
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.github import append_summary
from trainyard.report.dashboard.dashboard import Format, TrainingDashboard, format_of, render_dashboards
from trainyard.report.dashboard.html import html_index
from trainyard.report.dashboard.run_comparison import comparison_report
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.facts.run_list import entry_lines, sort_entries
from trainyard.report.terminal.closing_lines import closing_lines, is_copied
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.atomic_files import make_folder, write_bytes_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.suggested_commands import trainyard_command

if TYPE_CHECKING:
    from trainyard.report.facts.run_facts import RunFacts

FORMATS = ("text", "json", "markdown", "html")
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    runs = "a run, or a folder of runs"
    parser.add_argument("runs", type=arguments.run_directory, nargs="*", metavar="RUN", help=runs)
    add_option(parser, "--store", "URL", "report on all runs of s3://bucket/prefix or file:///folder")
    parser.add_argument("--format", choices=FORMATS, help="default: by the suffix of --output, else text")
    json = "the same as --format json"
    parser.add_argument("--json", action="store_const", const="json", dest="format", help=json)
    add_option(parser, "--output", "FILE", "default: stdout", type=arguments.path)
    add_flag(parser, "--write", "write the reports into each run's report/")
    add_flag(parser, "--github-summary", "append Markdown to the job summary")
    add_flag(parser, "--compare", "compare runs: first the base, then the runs to compare with it")
    green = "with --compare: folder of the last green run's records, or the folder above it; may be empty"
    add_option(parser, "--last-green", "FOLDER", green, type=arguments.path)
    add_flag(parser, "--watch", "repeat the report until no run is in progress")
    every = "time between reports of --watch; default: 10s"
    add_option(parser, "--every", "DURATION", every, type=arguments.duration, default=10.0)
    args = parser.parse_args(argv)
    if bool(args.runs) == bool(args.store):
        parser.error("name run directories, or a --store")
    args.place = args.store or folder_of_runs(args.runs)
    if args.place and (args.write or args.watch or args.compare or args.github_summary):
        parser.error("a --store, or a folder of runs, takes --format and --output only")
    least = 1 if args.last_green else 2
    if args.compare and (len(args.runs) < least or args.write or args.format not in (None, "markdown")):
        parser.error(
            "--compare takes two runs, or one with --last-green, writes Markdown, and excludes --write"
        )
    if args.last_green and not args.compare:
        parser.error("--last-green needs --compare")
    if args.watch and args.github_summary:
        parser.error("--watch excludes --github-summary, which would get each report again")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.place:
        publish(args, index_of(args.place, format_of_output(args), args.output))
        return 0

    shown = ""
    while True:
        dashboards = [TrainingDashboard(run) for run in args.runs]
        is_going = args.watch and any(one.facts.state.going for one in dashboards)
        shown = report(args, dashboards, is_going=is_going, shown=shown)
        if not is_going:
            return 0
        time.sleep(args.every)


def report(
    args: argparse.Namespace, dashboards: Sequence[TrainingDashboard], *, is_going: bool, shown: str
) -> str:
    """Write the reports once, to stdout only if they differ from `shown`; return the text on stdout."""
    refresh = args.every if is_going else None

    def render(form: Format) -> str:
        if args.compare:
            runs, green = [one.facts for one in dashboards], last_green_run(args.last_green)
            if green and len(runs) == 1:
                return comparison_report([green, *runs])
            return comparison_report(runs, green)
        return render_dashboards(dashboards, form, refresh_seconds=refresh)

    if args.write:
        for dashboard in dashboards:
            write_into_run(dashboard, refresh)
    if args.github_summary and not append_summary(render(Format.MARKDOWN)):
        output.announce("summary", "none written: GITHUB_STEP_SUMMARY is not set outside GitHub Actions")
    if not (args.output or args.format or args.compare or not (args.write or args.github_summary)):
        return ""
    text = render(format_of_output(args))
    if args.output is not None or text != shown:
        publish(args, text)
    return text


def folder_of_runs(paths: Sequence[Path]) -> Path | None:
    """Return the one path if it is a folder with runs, and no run itself."""
    folder = paths[0] if len(paths) == 1 else None
    if folder is None or not folder.is_dir() or (folder / "run.json").exists():
        return None
    return folder if next(folder.glob("*/run.json"), None) else None


def last_green_run(folder: Path | None) -> "RunFacts | None":
    """Return the newest run whose records are in `folder` or in a folder below it; None without one."""
    if folder is None:
        return None
    found = [path.parent for pattern in ("run.json", "*/run.json") for path in folder.glob(pattern)]
    return max(map(read_facts, found), key=lambda run: run.timestamp or 0, default=None)


def format_of_output(args: argparse.Namespace) -> Format:
    """The format that was requested, by its name or by the suffix of --output."""
    if args.format or args.compare:
        return Format(args.format or "markdown")
    return format_of(args.output) if args.output else Format.TEXT


def publish(args: argparse.Namespace, text: str) -> None:
    """Write a report to --output, or to stdout, where with --watch it replaces the report before."""
    if args.output is not None:
        write(args.output, text)
        return
    if args.watch and sys.stdout.isatty():
        sys.stdout.write(_CLEAR_SCREEN)
    is_markup = format_of_output(args) in (Format.JSON, Format.HTML)
    sys.stdout.write(text if is_markup else escape_controls(text))
    sys.stdout.flush()


def index_of(place: str | Path, form: Format, output_file: Path | None) -> str:
    """Return the index of all runs of a folder, or of the store of this address.

    Raises ConfigError for Markdown, ServiceError when the store cannot be reached.
    """
    is_folder = isinstance(place, Path)
    entries = sort_entries(
        folder_entries(place) if isinstance(place, Path) else store_entries(place), "created"
    )
    match form:
        case Format.HTML:
            here = (output_file.parent if output_file else Path()).resolve()
            pages = [(entry.run, Path(entry.run, "report", "index.html")) for entry in entries if is_folder]
            links = {run: os.path.relpath(page.resolve(), here) for run, page in pages if page.is_file()}
            command = trainyard_command("report") if is_folder else ""
            return html_index(str(place), entries, links, now=time.time(), command=command)
        case Format.JSON:
            return output.json_text(index_record(str(place), entries)) + "\n"
        case Format.TEXT:
            return "\n".join([*entry_lines(entries, width=terminal.width()), ""])
        case Format.MARKDOWN:
            raise ConfigError("The index of runs is written as html, json or text: choose one with --format.")


def write_report(run_dir: Path) -> int:
    """Write the reports of a run into its directory and, in GitHub Actions, append it to the job summary."""
    dashboard = TrainingDashboard(run_dir)
    write_into_run(dashboard, None)
    append_summary(render_dashboards([dashboard], Format.MARKDOWN))
    return ExitCode.DONE


def write_into_run(dashboard: TrainingDashboard, refresh_seconds: float | None) -> None:
    """Write the three files into the run's report folder, and name them once the run is over."""
    with terminal.show_live(PhaseDisplay("report", "drawing the reports")):
        folder = RunDirectory(dashboard.facts.directory).report
        make_folder(folder)
        for name in ("dashboard.json", "summary.md", "index.html"):
            path = folder / name
            write(path, render_dashboards([dashboard], format_of(path), refresh_seconds=refresh_seconds))
    if refresh_seconds is None:
        for phase, text, status in closing_lines(dashboard.facts):
            output.announce(phase, text, status, copied=is_copied(phase, text))


def write(path: Path, content: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(path, content.encode())
    except OSError as error:
        raise ConfigError(f"{path}: the report cannot be written ({error.strerror})") from None
