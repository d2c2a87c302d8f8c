"""Finished lines and the live line: by rule over widths and kinds of terminal, on real pseudo-terminals."""

import contextlib
import fcntl
import io
import itertools
import json
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests import warm_start
from tests.cases import each_case

from trainyard.command import output, terminal
from trainyard.command.terminal import INDENT, finished_lines
from trainyard.command.visible_text import escape_controls, visible_json, visible_line

NOTHING: Mapping[str, str] = {}
WIDTHS = (40, 80, 120)
STATUSES = ("", "ok", "degraded", "failed")
COMMAND = ".venv/bin/trainyard train --config runs/20261121-023331-11ac/config.yaml"
TEXTS = {
    "short": "5 of 5",
    "nothing": "",
    "summary": "400 steps, 1.6 M tokens in 4:23 · loss 5.61 → 1.54 · validation 2.31 bits/byte",
    "environment": "Python 3.11.7, torch 2.13.0, no GPU (training on CPU), 73 GB free",
    "path": f"14 files, 20 MB → file:///home/{'some-body/' * 14}trainyard-store/run-3 in 0.1 s",
    "proof": "commit 9fd65d1 (clean), lock c75b…, config 9961…, data 8605…, seed 42",
    "code": "    if not isinstance(name,  str):",
}
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def test_a_finished_line_fits_and_shows_its_verdict_first() -> None:
    for text, status, columns in itertools.product(TEXTS.values(), STATUSES, WIDTHS):
        first, *others = finished_lines("training", text, status, cells=columns - 1)
        assert first.startswith("  training")
        assert first.endswith(status)
        assert all(line.startswith(" " * INDENT) and line.strip() for line in others)
        lines = [first.removesuffix(status)[INDENT:], *others]
        assert [word for line in lines for word in line.split()] == text.split()
        room = columns - 1 - INDENT - (len(status) + 1 if status else 0)
        is_narrow = max(map(len, text.split()), default=0) <= room
        assert not is_narrow or all(len(line) < columns for line in (first, *others))


def test_what_people_copy_is_neither_broken_nor_shortened() -> None:
    for text, status, columns in itertools.product((COMMAND, "runs/x/report/index.html"), STATUSES, WIDTHS):
        lines = finished_lines("again", text, status, cells=columns - 1, copied=True)
        assert lines[0].startswith("  again")
        assert lines[0].endswith(f" {status}".rstrip())
        assert any(text in line for line in lines)
        assert all(len(line) < columns or line == f"    {text}" for line in lines)


PROGRAM = """
import logging, os, sys, time
from trainyard.command import arguments, handler, output, parser, signals, time_limits, terminal
from trainyard.report.terminal.phase import PhaseDisplay
output.configure_logging("info")
display = PhaseDisplay("data")
display.begin("reading a path that is longer than narrow terminals are", 4_800_000_000)
{body}
output.announce("data", "Python 3.11 standard library: 729 files, 10.9 MB train, 1.2 MB validation", "ok")
"""
SHOWS = """
with terminal.show_live(display):
    for _ in range(4):
        time.sleep(0.3)
        display.advance(600_000_000)
        logging.getLogger("trainyard.x").warning("a line " + "that is long " * 12 + "end")
        sys.stderr.write("half a ")
        sys.stderr.write("line\\n")
"""


class Screen:
    """The lines that a terminal shows after `written`."""

    def __init__(self, written: str) -> None:
        self.rows, self.row = [""], 0
        for part in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", written):
            self._take(part)

    def _take(self, part: str) -> None:
        if part == "\n":
            self.row += 1
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif part == "\x1b[2K":
            self.rows[self.row] = ""
        elif part == "\x1b[1A":
            self.row -= 1
        elif part[0] not in "\x1b\r":
            self.rows[self.row] += part

    @property
    def lines(self) -> list[str]:
        return [line for line in self.rows if line]


def on_a_terminal(
    body: str, columns: int, *, end: signal.Signals | None = None, variables: Mapping[str, str] = NOTHING
) -> tuple[str, int]:
    """Return a process's output on a terminal of `columns` cells, and its status; `end` stops it early."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    hidden = ("CI", "NO_COLOR", "COLUMNS", "TERM")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"TERM": "xterm-256color", **variables}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM.format(body=body))
        line = [sys.executable, str(program)]
        process = warm_start.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # EIO: the last writer has closed it
            while piece := os.read(ours, 1 << 16):
                written += piece
                if end is not None and b"reading" in written:
                    process.send_signal(end)
                    end = None
        os.close(ours)
        return written.decode(), process.wait(60)


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_live_line_leaves_only_what_was_written_and_the_final_line(columns: int) -> None:
    written, status = on_a_terminal(SHOWS, columns)
    assert status == 0
    drawn = [piece for piece in re.split(r"\r|\n", ESCAPE.sub("", written)) if " data  " in piece]
    live = [line for line in drawn if "reading" in line]
    assert len(set(live)) >= 4
    assert all(len(line) < columns for line in drawn)
    lines = Screen(written).lines
    warned = [line for line in lines if "WARN" in line]
    assert [line.endswith("that is long end") for line in warned] == [True] * 4
    assert [line for line in lines if line == "half a line"] == ["half a line"] * 4
    rest = [line for line in lines if line not in warned and line != "half a line"]
    assert rest[0].startswith("  data          Python 3.11")
    assert ESCAPE.sub("", rest[0]).rstrip().endswith("ok")
    assert not any("reading" in line for line in lines)
    assert "\x1b[?25" not in written, "the cursor is left alone"


@pytest.mark.parametrize(
    ("variables", "escapes", "live"),
    [({"NO_COLOR": "1"}, False, True), ({"CI": "true"}, False, False)],
    ids=["NO_COLOR", "CI"],
)
def test_a_terminal_is_sent_what_it_can_show(variables: dict[str, str], escapes: bool, live: bool) -> None:
    written, _ = on_a_terminal(SHOWS, 80, variables=variables)
    assert ("\x1b[32mok" in written) == escapes
    assert ("\r\x1b[2K" in written) == live
    assert live or ("\x1b" not in written and "\r" not in written.replace("\r\n", ""))
    said = "INFO  data: Python" if "CI" in variables else "  data          Python"
    assert said in written


def test_what_draws_is_imported_only_for_a_terminal() -> None:
    body = "with terminal.show_live(display): pass\nprint('there', 'rich' in sys.modules)"
    line = [sys.executable, "-c", PROGRAM.format(body=body)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "there False\n"
    assert "there True" in on_a_terminal(body, 80)[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_a_terminal_that_can_be_used(number: signal.Signals) -> None:
    body = "signals.end_at_signals()\ndef main():\n    with terminal.show_live(display): time.sleep(60)\n"
    written, status = on_a_terminal(f"{body}sys.exit(handler.exit_code_of(main))", 80, end=number)
    assert "\x1b[?25" not in written
    if number == signal.SIGKILL:
        assert status == -number
    else:
        assert status == 130
        assert Screen(written).lines == ["Interrupted."]


def test_a_signal_that_logs_in_the_middle_of_an_advance_waits_for_no_lock() -> None:
    body = """
import signal
told = []
def tell(*_):
    logging.getLogger("trainyard.x").warning("told")
    told.append(1)
    signal.setitimer(signal.ITIMER_REAL, 0.001 if len(told) < 50 else 0)
signal.signal(signal.SIGALRM, tell)
with terminal.show_live(display):
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while len(told) < 50:
        display.advance(1)
"""
    written, status = on_a_terminal(body, 80)
    assert status == 0
    assert written.count("WARN  told") == 50


def test_what_others_draw_by_themselves_and_what_goes_to_stdout_does_not_garble() -> None:
    body = """
with terminal.show_live(display):
    for share in range(0, 101, 10):
        sys.stderr.write(f"\\rloading {share}%")
    sys.stderr.write("\\n")
    print('{"a": 1}')
    time.sleep(0.3)
    sys.stderr.write("no end")
"""
    lines = Screen(on_a_terminal(body, 80)[0]).lines
    assert lines[:2] == ["loading 100%", '{"a": 1}']
    assert lines[2] == "no end"
    assert lines[3].startswith("  data ")


def test_where_there_is_no_terminal_the_work_is_told_to_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "_LOG_SECONDS", 0.01)
    logged = threading.Event()
    work = SimpleNamespace(line=str, log_progress=logged.set)
    with terminal.show_live(work):
        assert logged.wait(10)
    assert capsys.readouterr() == ("", "")


@each_case("ci", [None, "", "true"])
@each_case("kind", ["xterm", "dumb", "DUMB", "unknown", ""])
@each_case("no_color", ["", "1"])
@each_case("is_terminal", [True, False])
def test_what_is_shown_follows_the_terminal_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, ci: str | None, kind: str, no_color: str, is_terminal: bool
) -> None:
    monkeypatch.delenv("CI", raising=False)
    for name, value in {"TERM": kind, "NO_COLOR": no_color, "CI": ci}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    dumb = kind.lower() in ("dumb", "unknown")
    assert terminal.on_terminal() == (is_terminal and ci != "true")
    assert terminal.can_redraw() == (is_terminal and ci != "true" and not dumb)
    assert terminal.shows_colours() == (not no_color and not dumb)


def test_the_width_is_the_environments_else_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    with os.fdopen(theirs, "w") as stream, open(os.devnull, "w") as nowhere:  # noqa: PTH123 - not a file
        for columns, cells in {"40": 39, "200": 199, "": 119, "0": 119, "-5": 119, "wide": 119}.items():
            monkeypatch.setenv("COLUMNS", columns)
            monkeypatch.setattr(sys, "stderr", stream)
            assert terminal.width() == cells
            assert terminal.text_width() == min(cells, 97) - INDENT
            monkeypatch.setattr(sys, "stderr", nowhere)
            assert terminal.width() == (79 if cells == 119 else cells)
    os.close(ours)


def test_a_log_outlives_the_stderr_it_was_set_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    monkeypatch.setattr(sys, "stderr", before)
    output.configure_logging("info")
    monkeypatch.setattr(sys, "stderr", after)
    before.close()
    logging.getLogger("trainyard.x").info("told")
    assert after.getvalue().endswith("INFO  told\n")


PARTS = st.sampled_from(
    ["::", ":", "##[", "##", "[", "\n", " ", "\t", "\x1b[2J", "\r", "\x9b", "\u202e", "a"]
)
HOSTILE_TEXTS = st.lists(PARTS | st.text(max_size=3)).map("".join)


@given(HOSTILE_TEXTS)
@example("x\n::set-output name=proven::true")
@example("\u00a0::error::x")
@example("##[##[error]")
def test_nothing_is_obeyed(text: str) -> None:
    shown = escape_controls(text)
    assert not any(unicodedata.category(each) == "Cc" and each not in "\t\n" for each in shown)
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())
    assert "##[" not in shown
    assert shown.count("\n") == text.count("\n")
    assert "\n" not in visible_line(text)


@given(HOSTILE_TEXTS)
def test_json_keeps_its_value(text: str) -> None:
    shown = visible_json(json.dumps({text: [text]}))
    assert "##[" not in shown
    assert json.loads(shown) == {text: [text]}


@pytest.mark.parametrize(
    "text", ["", "é ü 漢字 🙂", "a: b::c", "key: ## title", "two\n  lines\tand a tab", "[::1]:80"]
)
def test_what_people_write_is_left_as_it_is(text: str) -> None:
    assert escape_controls(text) == text
