"""The output of scripts: log lines on stderr, one line per phase, JSON on stdout.

`command.terminal` says how wide the terminal is, and whether people watch it.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

from trainyard.command import terminal
from trainyard.command.visible_text import escape_controls, visible_json, visible_line

# The version of the JSON outputs: a change that breaks a reader raises it.
_SCHEMA_VERSION = 1
_COLOURS = {"ok": "32", "degraded": "33", "failed": "31"}
_logger = logging.getLogger("trainyard")


def json_text(value: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """Return the JSON output of a command: its version first, which the value's own replaces."""
    return json.dumps({"schema_version": _SCHEMA_VERSION, **value}, indent=indent)


def print_json(value: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write `value` to stdout. An error of writing is reported when the process ends (`exit_code_of`)."""
    with contextlib.suppress(OSError):
        sys.stdout.write(visible_json(json_text(value, indent=indent)) + "\n")
        sys.stdout.flush()


def print_result(data: Any, lines: Callable[[Any, int], list[str]], *, as_json: bool) -> None:
    """Print `data` as JSON, or as the lines that `lines` makes from it for the width of the terminal."""
    if as_json:
        print_json(data)
    else:
        print_text("\n".join(lines(data, terminal.width())))


def print_text(text: str) -> None:
    """Write lines for people to stdout."""
    sys.stdout.write(f"{escape_controls(text)}\n")
    sys.stdout.flush()


def print_remarks(lines: Iterable[str]) -> None:
    """Write each problem or remark to stderr, as one line even if a name in it holds a newline."""
    sys.stderr.write("".join(f"{visible_line(line)}\n" for line in lines))


class _LineFormatter(logging.Formatter):
    """Level names of at most five letters, so that the messages of a log are aligned."""

    def format(self, record: logging.LogRecord) -> str:
        line = logging.makeLogRecord(record.__dict__)
        line.levelname = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(record.levelname, record.levelname)
        return escape_controls(super().format(line))


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which a live line or a test may have replaced."""

    def __init__(self) -> None:
        # Like `logging.lastResort`: StreamHandler.__init__ would set `stream`, which is a property here.
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Write a record to the descriptor if a signal came in the middle of a buffered write."""
        if isinstance(sys.exc_info()[1], RuntimeError):
            with contextlib.suppress(OSError, AttributeError):
                os.write(sys.stderr.fileno(), f"{self.format(record)}\n".encode(errors="replace"))
        else:
            super().handleError(record)


def configure_logging(level: str | None) -> None:
    """Send the library's records of `level` (None: info) and above to stderr, one plain line each.

    `21:45:01 INFO  message`.
    """
    handler = _StderrHandler()
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)-5s %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger("trainyard")
    root.handlers[:] = [handler]
    root.setLevel((level or "info").upper())
    root.propagate = False


@contextlib.contextmanager
def leave_log_to_terminal() -> Iterator[None]:
    """Log only warnings inside where a live line on a terminal shows the same."""
    root = logging.getLogger("trainyard")
    before = root.level
    if terminal.on_terminal() and before == logging.INFO:
        root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(before)


def announce(phase: str, text: str, status: str = "", *, copied: bool = False) -> None:
    """Report how a phase ended: aligned lines that fit the terminal, one plain line in a log.

    `status` is a verdict (`ok`, `degraded`, `failed`), never shown by colour alone. Text that people copy,
    such as a command, is `copied`: it is neither broken nor shortened.
    """
    text = escape_controls(text)
    if not terminal.on_terminal():
        _logger.info("%s%s%s", f"{phase}: " if phase else "  ", text, f" [{status}]" if status else "")
        return
    first, *others = terminal.finished_lines(phase, text, status, cells=terminal.width(), copied=copied)
    first = first.removesuffix(status) + _colour(status)
    sys.stderr.write("".join(f"{line}\n" for line in (first, *others)))


def _colour(status: str) -> str:
    colour = _COLOURS.get(status)
    return status if colour is None or not terminal.shows_colours() else f"\x1b[{colour}m{status}\x1b[0m"
