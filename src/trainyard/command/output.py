"""What a script writes: log lines on stderr, one line per phase, JSON on stdout.

How wide the terminal is and whether people watch it is asked of `command.terminal`.
"""

import contextlib
import json
import logging
import sys
from typing import TextIO

from trainyard.command import terminal

_COLOURS = {"ok": "32", "degraded": "33", "failed": "31"}
_logger = logging.getLogger("trainyard")


def print_json(value: object) -> None:
    """Write `value` to stdout. What cannot be written now is said when the process ends (`exit_code_of`)."""
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(value, indent=2) + "\n")


class _LineFormatter(logging.Formatter):
    """Level names of at most five letters, so that the messages of a log stand below each other."""

    def format(self, record: logging.LogRecord) -> str:
        line = logging.makeLogRecord(record.__dict__)
        line.levelname = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(record.levelname, record.levelname)
        return super().format(line)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the moment: while there is a live line, that puts lines above it."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not sys.stderr:
            self.setStream(sys.stderr)
        super().emit(record)


def configure_logging(level: str | None) -> None:
    """Send the library's records from `level` on (None: info) to stderr, one plain line each.

    `21:45:01 INFO  message`.
    """
    handler = _ToStderr(sys.stderr)
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)-5s %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger("trainyard")
    root.handlers[:] = [handler]
    root.setLevel((level or "info").upper())
    root.propagate = False


def on_terminal() -> bool:
    """Whether people watch stderr live; a log or a CI runner gets plain lines instead."""
    return terminal.on_terminal()


def announce(phase: str, text: str, status: str = "", *, copied: bool = False) -> None:
    """Say how a phase ended: aligned lines that fit the terminal, one plain line in a log.

    `status` is a verdict (`ok`, `degraded`, `failed`); its colour is never its only carrier. Text that people
    copy, such as a command, is `copied`: it is neither broken nor shortened.
    """
    if not on_terminal():
        _logger.info("%s: %s%s", phase, text, f" [{status}]" if status else "")
        return
    first, *others = terminal.finished_lines(phase, text, status, cells=terminal.width(), copied=copied)
    first = first.removesuffix(status) + _coloured(status)
    sys.stderr.write("".join(f"{line}\n" for line in (first, *others)))


def _coloured(status: str) -> str:
    colour = _COLOURS.get(status)
    return status if colour is None or not terminal.colours() else f"\x1b[{colour}m{status}\x1b[0m"
