"""The progress of a pipeline's phase while it runs: one line for a terminal, several over time for a log.

    begin, advance ──> what, 1.2 of 4.8 GB, 210 MB/s, 0:17 left ──> line (terminal), log_progress (log)

It does not write to the terminal; `command.terminal.show_live` asks for the line. The clock is passed in.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from trainyard.report.facts.quantities import format_duration, format_progress, format_scaled
from trainyard.run.sizes import format_size

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TURNS_A_SECOND = 5
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 16
_FIRST_SECONDS = 2.0
"""Work that takes less than this many seconds is not logged."""
_LOG_SECONDS, _LOG_SECONDS_AT_MOST = 10.0, 60.0
"""The least and greatest seconds between log lines; the interval is a tenth of the time so far."""
_STILL_SECONDS = 2.0
"""After this long without progress, the time since the last progress is shown."""
_LEFT_OUT_FIRST = ("bar", "bits", "speed", "left", "what", "loss", "done", "step")
_logger = logging.getLogger(__name__)


class PhaseDisplay:
    """Shows one phase, such as `data`, and the work that is being done in it. A `run.progress.Progress`.

    The first work is `what`; with an empty one nothing is logged before `begin`.
    """

    def __init__(self, phase: str, what: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase, self._clock = phase, clock
        # Only writers take this lock. A signal handler may interrupt `advance`, log a line and so wait for
        # the terminal. If the drawing thread, which holds the terminal, waited for this lock, both would
        # wait forever.
        self._lock = threading.RLock()
        self.begin(what)

    def begin(self, what: str, total: int | None = None, unit: str = "B") -> None:
        with self._lock:
            now = self._clock()
            self._work = _Work(what, total, unit, now)
            self._next_line = now + _FIRST_SECONDS

    def advance(self, count: int) -> None:
        with self._lock:
            self._work.advance(count, self._clock())

    def line(self, width: int) -> str:
        now = self._clock()
        return phase_line(self.phase, self._work.parts(now), width, now=now)

    def log_progress(self) -> None:
        now, work = self._clock(), self._work
        if now < self._next_line or not work.what:
            return
        since = now - work.began
        self._next_line = now + min(_LOG_SECONDS_AT_MOST, max(_LOG_SECONDS, since / 10))
        parts = work.parts(now)
        shown = [part for name, part in parts.items() if part and name != "bar"]
        _logger.info("%s: %s", self.phase, ", ".join(shown))


class _Work:
    """One piece of work and its progress."""

    def __init__(self, what: str, total: int | None, unit: str, now: float) -> None:
        self.what, self.began = what, now
        self._total, self._unit = total, unit
        self._done, self._moved = 0, now

    def advance(self, count: int, now: float) -> None:
        if count:
            self._done, self._moved = self._done + count, now

    def parts(self, now: float) -> dict[str, str]:
        """The texts to show, in their order."""
        since, still, total = now - self.began, now - self._moved, self._total
        if total is None:
            came = format_progress(self._done, None, self._unit) if self._done else ""
            elapsed = format_duration(since) if since >= _STILL_SECONDS else ""
            return {"what": self.what, "done": came, "since": elapsed}
        done = min(self._done, total)  # bytes that were read twice count twice
        parts = {"what": self.what, "done": format_progress(done, total, self._unit)}
        if still >= _STILL_SECONDS:
            parts["since"] = f"{'waiting' if done < total else 'ending'} {format_duration(still)}"
        elif done and since >= 1.0:
            speed = self._done / since
            each = format_size(speed) if self._unit == "B" else f"{format_scaled(speed)} {self._unit}"
            parts |= {"speed": f"{each}/s", "left": f"{format_duration((total - done) / speed)} left"}
        return parts | {"bar": bar(done / total if total else 1.0)}


def phase_line(phase: str, parts: Mapping[str, str], width: int, *, now: float) -> str:
    """`⠹ data          reading  1.2 of 4.8 GB  210 MB/s  0:17 left  ▕███▌      ▏`, with a turning spinner.

    The least important parts are left out first; then the description of the work is cut.
    """
    kept, room = {name: part for name, part in parts.items() if part}, width - 16
    for name in _LEFT_OUT_FIRST:
        too_long = len("  ".join(kept.values())) - room
        if too_long > 0 and name == "what" and name in kept:
            kept[name] = f"{kept[name][: max(0, len(kept[name]) - too_long - 1)]}…"
        elif too_long > 0 and len(kept) > 1:
            kept.pop(name, None)
    turn = _SPINNER[int(now * _TURNS_A_SECOND) % len(_SPINNER)]
    return f"{turn} {phase:<13} {'  '.join(kept.values())}"[:width]


def bar(share: float) -> str:
    """A bar of 16 cells, drawn in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR_CELLS * 8)
    full, part = divmod(eighths, 8)
    return "▕" + (_EIGHTHS[8] * full + (_EIGHTHS[part] if part else "")).ljust(_BAR_CELLS) + "▏"
