"""The progress of a pipeline's phase while it runs: one line for a terminal, several over time for a log.

    begin, advance ──> what, 1.2 of 4.8 GB, 210 MB/s, 0:17 left ──> line (terminal), log_progress (log)

It does not write to the terminal; `command.terminal.show_live` asks for the line. The clock is passed in.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from trainyard.report.facts.quantities import format_duration, format_progress, format_scaled, format_size

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
_WINDOW = 15
"""The speed is measured over this many seconds."""
_LEAST = 4
"""The least width in cells of the text that is shortened."""
_LEFT_OUT_FIRST = ("bar", "bits", "speed", "left", "loss")
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

    def keep_quiet(self, seconds: float) -> None:
        """Log nothing about the current work for this long after it started."""
        with self._lock:
            self._next_line = self._work.began + seconds

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
        self._seen: deque[tuple[float, int]] = deque([(now, 0)])

    def advance(self, count: int, now: float) -> None:
        if not count:
            return
        self._done, self._moved = self._done + count, now
        if now - self._seen[-1][0] >= 1.0:
            self._seen.append((now, self._done))
            while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
                self._seen.popleft()

    def parts(self, now: float) -> dict[str, str]:
        """The texts to show, in their order."""
        still = now - self._moved
        total = self._total
        if total is None:
            elapsed = _clock(now - self.began) if now - self.began >= _STILL_SECONDS else ""
            came = format_progress(self._done, None, self._unit) if self._done else ""
            return {"what": self.what, "done": came, "since": elapsed}
        done = min(self._done, total)  # bytes that were read twice count twice
        parts = {"what": self.what, "done": format_progress(done, total, self._unit)}
        if still >= _STILL_SECONDS:
            parts["since"] = f"{'waiting' if done < total else 'ending'} {_clock(still)}"
        elif speed := self._speed(now):
            each = (
                f"{format_size(speed)}/s" if self._unit == "B" else f"{format_scaled(speed)} {self._unit}/s"
            )
            left = (total - done) / speed
            parts |= {"speed": each, "left": f"{format_duration(left)} left"}
        return parts | {"bar": bar(done / total if total else 1.0)}

    def _speed(self, now: float) -> float:
        """Units per second over the last seconds; 0 before it is known."""
        since, before = self._seen[0]
        return (self._done - before) / (now - since) if now - since >= 1.0 else 0.0


def _clock(seconds: float) -> str:
    """`0:07`, `1:52`, counted in whole seconds; `6 h 12 m` beyond an hour."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}" if whole < 3600 else format_duration(seconds)


def phase_line(phase: str, parts: Mapping[str, str], width: int, *, now: float) -> str:
    """`⠹ data          reading  1.2 of 4.8 GB  210 MB/s  0:17 left  ▕███▌      ▏`, with a turning spinner."""
    turn = _SPINNER[int(now * _TURNS_A_SECOND) % len(_SPINNER)]
    return f"{turn} {phase:<13} "[:width] + fit_line(parts, max(0, width - 16))


def fit_line(parts: Mapping[str, str], width: int) -> str:
    """The parts in one line of `width` cells; the least important ones are left out first.

    If that is not enough, the description of the work is shortened. The elapsed time stays, because it shows
    that the work is still running.
    """
    kept = {name: part for name, part in parts.items() if part}
    for name in _LEFT_OUT_FIRST:
        if len(line := "  ".join(kept.values())) <= width:
            return line
        kept.pop(name, None)
    for name in ("done", "step"):
        if len(line := _shorten(kept, width)) > width and "since" in kept and "what" in kept:
            kept.pop(name, None)
    return _shorten(kept, width)[:width]


def _shorten(parts: Mapping[str, str], width: int) -> str:
    """The parts in one line of `width` cells, if shortening the description of the work suffices."""
    line, what = "  ".join(parts.values()), parts.get("what", "")
    room = max(_LEAST, len(what) - max(0, len(line) - width))
    short = what if len(what) <= room else f"{what[: room - 1]}…"
    return "  ".join({**parts, "what": short}.values()) if what else line


def bar(share: float) -> str:
    """A bar of 16 cells, drawn in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR_CELLS * 8)
    full, part = divmod(eighths, 8)
    return "▕" + (_EIGHTHS[8] * full + (_EIGHTHS[part] if part else "")).ljust(_BAR_CELLS) + "▏"
