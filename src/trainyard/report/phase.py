"""A phase of a pipeline while it goes on: its line on a terminal, and the lines of it in a log.

    begin, advance ──> what, 1.2 of 4.8 GB, 210 MB/s, 0:17 left ──> line (terminal), tell (log)

It writes to no terminal; `terminal.shown` asks for the line. Times are those of the clock that it is handed.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from trainyard.report.quantities import amount_done, duration, scaled, size

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TURNS_A_SECOND = 5
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 16
_FIRST_SECONDS = 2.0
"""What takes no longer is not told in a log."""
_LOG_SECONDS, _LOG_SECONDS_AT_MOST = 10.0, 60.0
"""Between two lines of a log: a tenth of the time that it takes, within these."""
_STILL_SECONDS = 2.0
"""After so long without anything done, the time since then is shown."""
_WINDOW = 15
"""Seconds that the speed is taken over."""
_LEAST = 4
"""Cells of a part that is shortened."""
_LEFT_OUT_FIRST = ("bar", "bits", "speed", "left", "reward", "loss")
_logger = logging.getLogger(__name__)


class PhaseDisplay:
    """Shows one phase, such as `data`; what is done in it may change. A `run.progress.Progress`."""

    def __init__(self, phase: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase, self._clock = phase, clock
        # For those who write only: a signal's handler may log, and so draw, in the middle of `advance`, while
        # the thread that draws holds the terminal. Whoever waits for the other here would wait for ever.
        self._lock = threading.RLock()
        self._work = _Work("", None, "", clock())
        self._next_line = clock() + _FIRST_SECONDS

    def begin(self, what: str, total: int | None = None, unit: str = "B") -> None:
        with self._lock:
            now = self._clock()
            self._work = _Work(what, total, unit, now)
            self._next_line = now + _FIRST_SECONDS

    def keep_quiet(self, seconds: float) -> None:
        """Tell a log nothing of what has begun for so long."""
        with self._lock:
            self._next_line = self._work.began + seconds

    def advance(self, count: int) -> None:
        with self._lock:
            self._work.advance(count, self._clock())

    def line(self, width: int) -> str:
        now = self._clock()
        return phase_line(self.phase, self._work.parts(now), width, now=now)

    def tell(self) -> None:
        now, work = self._clock(), self._work
        if now < self._next_line or not work.what:
            return
        since = now - work.began
        self._next_line = now + min(_LOG_SECONDS_AT_MOST, max(_LOG_SECONDS, since / 10))
        parts = work.parts(now)
        told = [part for name, part in parts.items() if part and name != "bar"]
        _logger.info("%s: %s", self.phase, ", ".join(told))


class _Work:
    """What is being done, and how far it is."""

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
        """What is shown of it, in order."""
        still = now - self._moved
        total = self._total
        if total is None:
            elapsed = _clock(now - self.began) if now - self.began >= _STILL_SECONDS else ""
            came = amount_done(self._done, None, self._unit) if self._done else ""
            return {"what": self.what, "done": came, "since": elapsed}
        done = min(self._done, total)  # what was read again counts twice
        parts = {"what": self.what, "done": amount_done(done, total, self._unit)}
        if still >= _STILL_SECONDS:
            parts["since"] = f"{'waiting' if done < total else 'ending'} {_clock(still)}"
        elif speed := self._speed(now):
            each = f"{size(speed)}/s" if self._unit == "B" else f"{scaled(speed)} {self._unit}/s"
            left = (total - done) / speed
            parts |= {"speed": each, "left": f"{duration(left)} left"}
        return parts | {"bar": bar(done / total if total else 1.0)}

    def _speed(self, now: float) -> float:
        """A second, over the last seconds; 0 before there is any."""
        since, before = self._seen[0]
        return (self._done - before) / (now - since) if now - since >= 1.0 else 0.0


def _clock(seconds: float) -> str:
    """`0:07`, `1:52`: what counts up moves once a second; `6 h 12 m` beyond an hour."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}" if whole < 3600 else duration(seconds)


def phase_line(phase: str, parts: Mapping[str, str], width: int, *, now: float) -> str:
    """`⠹ data          reading  1.2 of 4.8 GB  210 MB/s  0:17 left  ▕███▌      ▏`, turning with time."""
    turn = _SPINNER[int(now * _TURNS_A_SECOND) % len(_SPINNER)]
    return f"{turn} {phase:<13} "[:width] + fitted(parts, max(0, width - 16))


def fitted(parts: Mapping[str, str], width: int) -> str:
    """The parts in one line of `width` cells: what people can best do without is left out first.

    Then what is done is shortened: how long it takes stays, and shows that something goes on.
    """
    kept = {name: part for name, part in parts.items() if part}
    for name in _LEFT_OUT_FIRST:
        if len(line := "  ".join(kept.values())) <= width:
            return line
        kept.pop(name, None)
    for name in ("done", "step"):
        if len(line := _shortened(kept, width)) > width and "since" in kept and "what" in kept:
            kept.pop(name, None)
    return _shortened(kept, width)[:width]


def _shortened(parts: Mapping[str, str], width: int) -> str:
    """The parts in one line, with the words for what is done as short as they must and can be."""
    line, what = "  ".join(parts.values()), parts.get("what", "")
    room = max(_LEAST, len(what) - max(0, len(line) - width))
    short = what if len(what) <= room else f"{what[: room - 1]}…"
    return "  ".join({**parts, "what": short}.values()) if what else line


def bar(share: float) -> str:
    """A bar of 16 cells, drawn in eighths."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR_CELLS * 8)
    full, part = divmod(eighths, 8)
    return "▕" + (_EIGHTHS[8] * full + (_EIGHTHS[part] if part else "")).ljust(_BAR_CELLS) + "▏"
