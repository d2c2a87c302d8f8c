"""What is written for people, by the width of their terminal: finished lines, and a live line meanwhile.

    finished line:   phase, text, verdict; long text is wrapped below itself
    live line:       drawn five times a second by a thread of its own; what is written meanwhile goes above

It knows no phase: a `Subject` gives the text. rich is imported only where a live line is drawn. The cursor is
never hidden, so that a process that is killed leaves a terminal that can be used.
"""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

INDENT = 16
"""Cells before the text of a finished line: two, the phase in 13, one."""
_WIDEST, _COLUMNS = 97, 80
"""Cells of a finished line at most, and of a terminal that does not say."""
_NARROWEST_TEXT = 12
_DRAW_SECONDS = 0.2
_TELL_SECONDS = 0.5
_CLOSE_SECONDS = 1.0
"""How long the end waits for a thread that may be stuck in a terminal that takes nothing (Ctrl-S)."""


class Subject(Protocol):
    """What goes on, and can be asked for it at any moment from another thread."""

    def line(self, width: int) -> str:
        """It in one line of at most `width` cells, for a terminal; empty when there is nothing to show."""
        ...

    def tell(self) -> None:
        """Log a line if one is due: called twice a second where there is no terminal."""
        ...


def on_terminal() -> bool:
    """Whether people watch stderr live; a log or a CI runner gets plain lines instead."""
    return sys.stderr.isatty() and os.environ.get("CI") != "true"


def draws() -> bool:
    """Whether a line of that terminal can be drawn again."""
    return on_terminal() and not _is_dumb()


def colours() -> bool:
    """Whether that terminal is to show colours."""
    return not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def width() -> int:
    """Cells of a line; the last one stays free, where some terminals would wrap."""
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
    """The lines of a finished phase, each at most `cells` wide; the verdict stands right in the first.

    Long text goes on below itself, and a word that is too long, such as a path, is shortened in the middle.
    Text that is to be `copied`, such as a command, is neither: what does not fit has a line of its own.
    """
    import textwrap

    cells = min(cells, _WIDEST)
    head = f"  {phase:<{INDENT - 3}} "
    room = max(_NARROWEST_TEXT, cells - len(head) - (len(status) + 1 if status else 0))
    if len(text) <= room:  # as it is, with its own spaces
        return [f"{head}{text:<{room}} {status}".rstrip()]
    if copied:
        return _whole(head, text, room, status)
    words = " ".join(_shortened(word, room) if len(word) > room else word for word in text.split(" "))
    first, *others = textwrap.wrap(words, room, break_on_hyphens=False)
    return [f"{head}{first:<{room}} {status}".rstrip(), *(" " * INDENT + other for other in others)]


def _whole(head: str, text: str, room: int, status: str) -> list[str]:
    """The text as it is, on a line of its own that only the terminal breaks; a remark after it goes below."""
    command, gap, remark = text.partition("  ")
    below = [" " * INDENT + remark.strip()] if gap else []
    if gap and len(command) <= room:
        return [f"{head}{command:<{room}} {status}".rstrip(), *below]
    return [f"{head}{'':<{room}} {status}".rstrip(), f"    {command}", *below]


def _shortened(word: str, room: int) -> str:
    """`file:///home/…/trainyard-store/run-3`: the end tells more than the middle."""
    kept = room - 1
    start = kept // 3
    return f"{word[:start]}…{word[len(word) - (kept - start) :]}"


@contextmanager
def shown(subject: Subject) -> Iterator[None]:
    """Show `subject` while what is inside goes on: by a live line that is gone at the end, or in a log."""
    display = Display(subject)
    try:
        display.start()
        yield
    finally:
        display.close()


class Display:
    """Shows a subject from `start` to `close`, which may come from any thread and more than once."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._line = _LiveLine(subject) if draws() else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)

    def start(self) -> None:
        if self._line is not None:
            self._line.start()
        self._thread.start()

    def close(self) -> None:
        """Erase the live line, and show nothing any more."""
        self._over.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        elif self._line is not None:
            self._line.stop()

    def _run(self) -> None:
        # Signals are for the main thread, which they wake.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            with suppress(OSError):  # the terminal has gone
                while not self._over.wait(_DRAW_SECONDS if self._line else _TELL_SECONDS):
                    self._line.draw() if self._line is not None else self._subject.tell()
        finally:
            if self._line is not None:  # here, so that it also ends after a wait for the terminal
                self._line.stop()


class _LiveLine:
    """The last line of the terminal that stderr leads to."""

    def __init__(self, subject: Subject) -> None:
        from rich.live import Live

        self._subject = subject
        self._lock = threading.RLock()
        self._is_up = False
        names = [name for name in ("stdout", "stderr") if _is_terminal(getattr(sys, name))]
        self._above = {name: _Above(self, getattr(sys, name)) for name in names}
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
            with suppress(OSError):  # the terminal has gone, which is no reason not to work
                self._live.start()
                self._live.refresh()

    def draw(self) -> None:
        with self._lock:
            if self._is_up:
                self._live.refresh()

    def print_above(self, text: str, stream: TextIO) -> None:
        """Write whole lines where the live line stands, which goes on below; `stream` takes later ones."""
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
                with suppress(OSError):
                    above.stream.write(above.begun)
                    above.stream.flush()

    def _text(self) -> "Text":
        from rich.text import Text

        return Text(self._subject.line(width()) if self._is_up else "", no_wrap=True, overflow="crop", end="")


def _console(stream: TextIO) -> "Console":
    """A console that draws on `stream` without colours, and leaves the cursor visible."""
    from rich.console import Console

    class _Visible(Console):
        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - Live would hide it
            return False

    return _Visible(
        file=stream, force_terminal=True, force_interactive=True, force_jupyter=False, color_system=None
    )


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


class _Above(io.TextIOBase):
    """Stands for stdout or stderr while there is a live line: lines go above it once they are whole.

    What others draw themselves, by carriage returns, is left out but for its last state.

    A child that was forked has no such line, and takes no lock of ours: it writes to the stream itself.
    """

    def __init__(self, line: _LiveLine, stream: TextIO) -> None:
        self._line, self.stream, self._pid = line, stream, os.getpid()
        self.begun = ""
        """Of a line whose end has not come."""

    def write(self, text: str, /) -> int:
        if os.getpid() != self._pid:
            return self.stream.write(text)
        *whole, begun = (self.begun + text).replace("\r\n", "\n").split("\n")
        self.begun = _last_state(begun)
        if whole:
            self._line.print_above("\n".join(map(_last_state, whole)), self.stream)
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _last_state(line: str) -> str:
    """What a line that was drawn again shows at last; a return at its end has drawn nothing yet."""
    return line.rstrip("\r").rpartition("\r")[2]
