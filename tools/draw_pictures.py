#!/usr/bin/env python3
"""Draw the pictures at the top of the README from a real run: the terminal and the report.

The command runs on a terminal of 80 columns; the screen at its end becomes terminal.svg. The report of the
newest run is opened in Chromium and becomes report.png. If the command fails, nothing is drawn.

Reads:      the command's output on its terminal; runs/*/report/index.html of the newest run
Writes:     terminal.svg and report.png in --to; what the command itself writes
Exit codes: 0 drawn; 1 the command failed, or Chromium could not open the report; 2 wrong usage, or Chromium
            is not installed; 5 the command took longer than --seconds
Example:    tools/draw_pictures.py --to docs/pictures make train
"""

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError, WaitTimeoutError

if TYPE_CHECKING:
    from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 80, 50
WINDOW = (1200, 1080)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_SECONDS = 120
# Rows of the emulated screen; empty rows at its end are not drawn.
SCREEN_ROWS = 200
# The frame is our own, because rich's frame loads its font from the network.
_FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre;
}}
.{unique_id}-title {{ font-family: system-ui, sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--to", type=arguments.path, default=ROOT / "docs" / "pictures", metavar="DIR", help="docs/pictures"
    )
    parser.add_argument(
        "--runs", type=arguments.path, default=ROOT / "runs", metavar="DIR", help="the folder of its run"
    )
    parser.add_argument("--seconds", type=arguments.duration, default=3600.0, metavar="DURATION", help="1h")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, do nothing")
    parser.add_argument("command", nargs="*", help="default: make train")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    from trainyard.run.atomic_files import make_folder

    words = args.command or ["make", "train"]
    if args.dry_run:
        print(f"{shlex.join(words)} → {args.to / 'terminal.svg'}, {args.to / 'report.png'}")
        return 0
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ConfigError(
            f"Chromium was not found ({', '.join(BROWSERS)}). Debian, Ubuntu: apt-get install chromium"
        )
    make_folder(args.to)
    draw_terminal(words, args.seconds, args.to / "terminal.svg")
    draw_report(browser, newest_report(args.runs), args.to / "report.png")
    return 0


def draw_terminal(words: Sequence[str], seconds: float, target: Path) -> None:
    """Run the command on a terminal, and draw the screen at its end."""
    from trainyard.run.atomic_files import write_bytes_atomically

    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS")) and name not in ("CI", "NO_COLOR", "COLUMNS", "LINES")
    }
    # `script` gives the command a terminal, whose size the shell sets first.
    line = f"stty columns {COLUMNS} rows {ROWS}; exec {shlex.join(words)}"
    try:
        done = subprocess.run(  # noqa: S603
            ["script", "--quiet", "--return", "--command", line, "/dev/null"],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=seconds,
            cwd=ROOT,
            env={**environment, "TERM": "xterm-256color", "SHELL": "/bin/sh"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WaitTimeoutError(
            f"{shlex.join(words)} took longer than {seconds:,.0f} s: raise --seconds"
        ) from None
    typed = f"$ {shlex.join(words)}\r\n".encode()
    if done.returncode:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        raise CheckFailedError(
            f"{shlex.join(words)} ended with exit code {done.returncode}: nothing was drawn"
        )
    picture = terminal_svg(typed + done.stdout, columns=COLUMNS, title="Trainyard")
    write_bytes_atomically(target, picture.encode())
    output.announce("terminal", f"{target}", "ok")


def terminal_svg(output: bytes, *, columns: int, title: str) -> str:
    """Draw the screen that `output`, with its escape sequences, leaves on a terminal of `columns` cells."""
    from rich.console import Console

    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in screen_lines(output, columns=columns):
        console.print(line, no_wrap=True, crop=False, highlight=False)
    svg = console.export_svg(title=title, code_format=_FRAME, unique_id="terminal")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def screen_lines(output: bytes, *, columns: int) -> list["Text"]:
    """The lines of that screen with their colours, without the empty lines at its end."""
    import pyte
    from rich.style import Style
    from rich.text import Text

    screen = pyte.Screen(columns, SCREEN_ROWS)
    pyte.ByteStream(screen).feed(output)
    lines = []
    for row in range(SCREEN_ROWS):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(columns)]
        for (colour, bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            line.append("".join(cell.data for cell in run), Style(color=_colour(colour), bold=bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def _colour(name: str) -> str | None:
    """rich's name of a colour that pyte names: a word, or six hexadecimal digits after a `#`."""
    if name == "default":
        return None
    names = {"brown": "yellow"} | {f"bright{base}": f"bright_{base}" for base in ("red", "green", "blue")}
    digits = len(name) == 6 and all(digit in "0123456789abcdefABCDEF" for digit in name)
    return f"#{name}" if digits else names.get(name, name)


def newest_report(runs: Path) -> Path:
    """Return the report of the run that ended last."""
    reports = sorted(runs.glob("*/report/index.html"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise CheckFailedError(
            f"{runs} has no report, because the command made no run there; name the folder with --runs"
        )
    return reports[-1]


def draw_report(browser: str, report: Path, target: Path) -> None:
    """Open the report in the browser, and save the first screen as a picture."""
    from trainyard.gateways.process import run_program

    with tempfile.TemporaryDirectory() as profile:
        line = [browser, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        line += ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium refuses its sandbox to root
        line += [
            f"--window-size={WINDOW[0]},{WINDOW[1]}",
            f"--screenshot={target.absolute()}",
            report.absolute().as_uri(),
        ]
        done = run_program(line, seconds=BROWSER_SECONDS)
    if not done.ok or not target.is_file():
        raise CheckFailedError(f"{done.stderr.strip()}\n{browser} could not open {report}")
    output.announce("report", f"{target}", "ok")


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
