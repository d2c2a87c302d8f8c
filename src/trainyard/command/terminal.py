"""Output for people, fitted to the width of their terminal: finished lines, and one live line.

    finished line:   phase, text, verdict; long text is wrapped and indented below its first line
    live line:       redrawn five times per second by its own thread; other output appears above it

A `LiveSubject` gives the text of the live line. rich is imported only when a live line is drawn.
"""

import os
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.live import Live

INDENT = 16
"""Cells before the text of a finished line: two spaces, the phase in 13 cells, one space."""
_WIDEST, _COLUMNS = 97, 80
"""The greatest width of a finished line in cells, and the width of a terminal that does not report one."""
_NARROWEST_TEXT = 12
_DRAWN_A_SECOND = 5
_LOG_SECONDS = 0.5


class LiveSubject(Protocol):
    """The work that is shown; another thread may ask it for its text at any time."""

    def line(self, width: int) -> str:
        """One line of at most `width` cells for a terminal; empty when there is nothing to show."""
        ...

    def log_progress(self) -> None:
        """Log a line if one is due; called twice per second where there is no terminal."""
        ...


Subject = TypeVar("Subject", bound=LiveSubject)


def on_terminal() -> bool:
    """Return whether people watch stderr live; a log or a CI runner gets plain lines instead."""
    return sys.stderr.isatty() and os.environ.get("CI") != "true"


def can_redraw() -> bool:
    """Return whether stderr is a terminal on which a line can be redrawn."""
    return on_terminal() and not _is_dumb()


def shows_colours() -> bool:
    """Return whether stderr is to show colours."""
    return not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def width() -> int:
    """Cells per line; the last column stays free, because some terminals wrap there."""
    columns = 0
    with suppress(ValueError):
        columns = int(os.environ.get("COLUMNS", ""))
    if columns <= 0:
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return (columns if columns > 0 else _COLUMNS) - 1


def text_width() -> int:
    """Cells for the text of a finished line."""
    return max(_NARROWEST_TEXT, min(width(), _WIDEST) - INDENT)


def finished_lines(phase: str, text: str, status: str, *, cells: int, copied: bool = False) -> list[str]:
    """Return the lines of a finished phase; the verdict ends the first line.

    Text that is too long is wrapped between words. Text that is to be `copied`, such as a command, gets a
    line of its own instead, which only the terminal wraps.
    """
    head = f"  {phase:<{INDENT - 3}} "
    room = max(_NARROWEST_TEXT, min(cells, _WIDEST) - len(head) - (len(status) + 1 if status else 0))
    if len(text) <= room:  # unchanged: runs of spaces stay
        return [f"{head}{text:<{room}} {status}".rstrip()]
    if copied:
        return [f"{head}{'':<{room}} {status}".rstrip(), f"    {text}"]
    first, *others = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False)
    return [f"{head}{first:<{room}} {status}".rstrip(), *(" " * INDENT + other for other in others)]


@contextmanager
def show_live(subject: Subject) -> Iterator[Subject]:
    """Show `subject` while the body runs: by a live line, erased at the end, or by lines in a log."""
    if can_redraw():
        with _live_line(subject):
            try:
                yield subject
            finally:  # rich drops the beginning of a line that is not flushed
                sys.stdout.flush()
                sys.stderr.flush()
        return
    over = threading.Event()

    def log() -> None:
        while not over.wait(_LOG_SECONDS):
            subject.log_progress()

    thread = threading.Thread(target=log, name="progress", daemon=True)
    thread.start()
    try:
        yield subject
    finally:
        over.set()
        thread.join()


def _live_line(subject: LiveSubject) -> "Live":
    """Return the last line of the terminal; what is written meanwhile appears above it, line by line."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    class _CursorConsole(Console):
        # A hidden cursor would stay hidden in the terminal of a process that is killed.
        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
            return False

    console = _CursorConsole(
        stderr=True,
        force_terminal=True,
        force_interactive=True,
        force_jupyter=False,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,  # what people copy from a log is not broken
    )
    return Live(
        console=console,
        refresh_per_second=_DRAWN_A_SECOND,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # else data for a file would go to the terminal
        get_renderable=lambda: Text(subject.line(width()), no_wrap=True, overflow="crop", end=""),
    )
