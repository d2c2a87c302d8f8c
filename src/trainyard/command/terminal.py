"""Output for people, fitted to the width of their terminal: finished lines, and one live line.

    finished line:   phase, text, verdict; long text is wrapped and indented below its first line
    live line:       redrawn five times per second by its own thread; other output appears above it

A `LiveSubject` gives the text of the live line. rich is imported only when a live line is drawn. The cursor
is never hidden, so that a killed process leaves a usable terminal.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

INDENT = 16
"""Cells before the text of a finished line: two spaces, the phase in 13 cells, one space."""
_WIDEST, _COLUMNS = 97, 80
"""The greatest width of a finished line in cells, and the width of a terminal that does not report one."""
_NARROWEST_TEXT = 12
_DRAW_SECONDS = 0.2
_LOG_SECONDS = 0.5
_CLOSE_SECONDS = 1.0
"""How long the end waits for the thread, which blocks while the terminal's output is paused (Ctrl-S)."""


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
    """The lines of a finished phase, each at most `cells` wide; the verdict ends the first line.

    Long text is wrapped. A word that is too long, such as a path, is shortened in the middle.
    Text that is to be `copied`, such as a command, is neither wrapped nor shortened: if it does not fit, it
    gets a line of its own.
    """
    import textwrap

    cells = min(cells, _WIDEST)
    head = f"  {phase:<{INDENT - 3}} "
    room = max(_NARROWEST_TEXT, cells - len(head) - (len(status) + 1 if status else 0))
    if len(text) <= room:  # unchanged: runs of spaces stay
        return [f"{head}{text:<{room}} {status}".rstrip()]
    if copied:
        return _unbroken_lines(head, text, room, status)
    words = " ".join(_shorten(word, room) if len(word) > room else word for word in text.split(" "))
    first, *others = textwrap.wrap(words, room, break_on_hyphens=False)
    return [f"{head}{first:<{room}} {status}".rstrip(), *(" " * INDENT + other for other in others)]


def _unbroken_lines(head: str, text: str, room: int, status: str) -> list[str]:
    """The unchanged text on a line of its own, which only the terminal wraps; a remark goes below it.

    Two spaces separate the remark from the text.
    """
    command, gap, remark = text.partition("  ")
    below = [" " * INDENT + remark.strip()] if gap else []
    if gap and len(command) <= room:
        return [f"{head}{command:<{room}} {status}".rstrip(), *below]
    return [f"{head}{'':<{room}} {status}".rstrip(), f"    {command}", *below]


def _shorten(word: str, room: int) -> str:
    """`file:///home/…/trainyard-store/run-3`: cut in the middle, because the end says more."""
    kept = room - 1
    start = kept // 3
    return f"{word[:start]}…{word[len(word) - (kept - start) :]}"


@contextmanager
def show_live(subject: Subject) -> Iterator[Subject]:
    """Show `subject` while the body runs: by a live line, erased at the end, or by lines in a log."""
    line = _LiveLine(subject) if can_redraw() else None
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(subject, line, over), name="display", daemon=True)
    try:
        if line is not None:
            line.start()
        thread.start()
        yield subject
    finally:
        over.set()
        if thread.is_alive():
            thread.join(_CLOSE_SECONDS)
        elif line is not None:
            line.stop()


def _show(subject: LiveSubject, line: "_LiveLine | None", over: threading.Event) -> None:
    """Draw the line, or let the subject log, until it is `over`; then erase the line."""
    # The main thread must receive the signals, because they wake it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        with suppress(OSError):  # the terminal was closed
            while not over.wait(_DRAW_SECONDS if line else _LOG_SECONDS):
                line.draw() if line is not None else subject.log_progress()
    finally:
        if line is not None:  # here, because `show_live` may have given up waiting for this thread
            line.stop()


class _LiveLine:
    """The last line of the terminal that stderr leads to."""

    def __init__(self, subject: LiveSubject) -> None:
        from rich.live import Live

        self._subject = subject
        self._lock = threading.RLock()
        self._is_up = False
        streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._above = {name: _LineRedirection(self, s) for name, s in streams.items() if s and s.isatty()}
        self._console = _console(sys.stderr)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._text,
        )

    def start(self) -> None:
        with self._lock:
            self._is_up = True
            for name, above in self._above.items():
                setattr(sys, name, above)
            with suppress(OSError):  # the terminal was closed; the work continues without it
                self._live.start()
                self._live.refresh()

    def draw(self) -> None:
        with self._lock:
            if self._is_up:
                self._live.refresh()

    def print_above(self, text: str, stream: TextIO) -> None:
        """Write complete lines above the live line; after `stop` they go to `stream`."""
        with self._lock:
            if self._is_up:
                self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
            else:
                stream.write(text + "\n")

    def stop(self) -> None:
        with self._lock:
            if not self._is_up:
                return
            self._is_up = False
            with suppress(OSError):
                self._live.stop()
            for name, above in self._above.items():
                if getattr(sys, name) is above:
                    setattr(sys, name, above.stream)
                unfinished, above.unfinished = above.unfinished, ""
                with suppress(OSError):
                    above.stream.write(unfinished)
                    above.stream.flush()

    def _text(self) -> "Text":
        from rich.text import Text

        return Text(self._subject.line(width()) if self._is_up else "", no_wrap=True, overflow="crop", end="")


def _console(stream: TextIO) -> "Console":
    """A console that writes to `stream` without colours and leaves the cursor visible."""
    from rich.console import Console

    class _CursorConsole(Console):
        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - Live would hide it
            return False

    return _CursorConsole(
        file=stream, force_terminal=True, force_interactive=True, force_jupyter=False, color_system=None
    )


class _LineRedirection:
    """Replaces stdout or stderr while there is a live line: each complete line is written above it.

    Of a line that other code redraws with carriage returns, only the last state is shown. A forked child has
    no live line and must not take its lock, so it writes to the stream directly. All but writing is left to
    the stream.
    """

    def __init__(self, line: _LiveLine, stream: TextIO) -> None:
        self._line, self.stream, self._pid = line, stream, os.getpid()
        self.unfinished = ""
        """The beginning of a line that has not ended yet."""

    def write(self, text: str, /) -> int:
        if os.getpid() != self._pid:
            return self.stream.write(text)
        *whole, unfinished = (self.unfinished + text).replace("\r\n", "\n").split("\n")
        self.unfinished = _last_state(unfinished)
        if whole:
            self._line.print_above("\n".join(map(_last_state, whole)), self.stream)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _last_state(line: str) -> str:
    """The last state of a line that was redrawn; a carriage return at its end has not drawn anything yet."""
    return line.rstrip("\r").rpartition("\r")[2]
