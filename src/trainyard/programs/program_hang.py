"""Detect that a program of several processes hangs: on a node that reads rows, and elsewhere by its mark.

    no row and no output for program.hang_minutes ──> logs/hang-suspected ──> every node ends its processes

A program counts as hung only after its first row: before that it may download, tokenise or compile for hours
without output. `gateways/supervised_process.py` ends the processes, and writes the stacks of all Pythons.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.run.atomic_files import write_bytes_atomically, write_json_atomically
from trainyard.run.untrusted_files import parse_json_object, read_bytes

HANG = "a hang"
"""The cause of a stop, as reported for a hung program."""
_MARK = "hang-suspected"
_PAUSE_SECONDS = 60.0
"""Polls that are further apart show that this process was stopped meanwhile, by Ctrl-Z or a batch system."""
_MOST_STACKS = 16 << 20
"""Most bytes of stacks that are copied out of a node's log."""


class HangRule:
    """Decides whether a program hangs. Times are in seconds of the monotonic clock."""

    def __init__(self, logs: Path, minutes: float | None, *, number: int) -> None:
        """`number` is that of this node, whose program writes `logs/node-N.log`."""
        self._logs, self._number = logs, number
        self._limit = None if minutes is None else 60.0 * minutes
        self._started = time.time()
        self._moved: float | None = None
        self._polled: float | None = None
        self._rows = self._logged = 0
        self.noticed: dict[str, Any] = {}
        """The facts of the hang: seconds, limit_seconds, node, time; empty while there is none."""
        if not number:
            (logs / _MARK).unlink(missing_ok=True)

    def note_poll(self, now: float) -> None:
        """Note that this process runs; time in which it did not is none in which the program hung."""
        pause = 0.0 if self._polled is None else now - self._polled
        if self._moved is not None and pause > _PAUSE_SECONDS:
            self._moved += pause
        self._polled = now

    def note_rows(self, count: int, now: float) -> None:
        """Note how many rows were read so far; the program is watched from its first row on."""
        if count != self._rows:
            self._rows, self._moved = count, now

    def note_output(self, now: float) -> None:
        if self._moved is not None:
            self._moved = now

    def is_hung(self, now: float) -> bool:
        """Return whether the program hangs here, or hangs according to another node."""
        if self._limit is None or self.noticed:
            return bool(self.noticed)
        with contextlib.suppress(OSError, TrainyardError, KeyError, TypeError, ValueError):
            found = parse_json_object(read_bytes(self._logs / _MARK, links=False), _MARK)
            # That of another node, unless it is of an earlier start.
            self.noticed = found if float(found["time"]) > self._started else {}
        if not self.noticed and self._moved is not None and now - self._moved >= self._limit:
            self.noticed = {
                "seconds": round(now - self._moved, 1),
                "limit_seconds": self._limit,
                "node": self._number,
                "time": time.time(),
            }
            with contextlib.suppress(OSError):
                write_json_atomically(self._logs / _MARK, self.noticed)
        if self.noticed:
            with contextlib.suppress(OSError):
                self._logged = self._log.stat().st_size
        return bool(self.noticed)

    def keep_stacks(self) -> None:
        """Copy what the program has written since the hang was noticed into `logs/hang-node-N.txt`."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(self._logged)
            write_bytes_atomically(self._logs / f"hang-node-{self._number}.txt", log.read(_MOST_STACKS))

    def describe(self, step: int) -> str:
        """Return the reason in words; it begins as that of the shipped trainer does."""
        paths = sorted(self._logs.glob("hang-node-*.txt"))
        stacks = [f"logs/{path.name}" for path in paths if path.stat().st_mtime >= self.noticed["time"] - 60]
        return (
            f"Step {step + 1}: nothing moved for {self.noticed['seconds']} s (no row and no output, "
            f"program.hang_minutes), so the program was ended. The stacks: {', '.join(stacks) or 'none'}"
        )

    @property
    def _log(self) -> Path:
        return self._logs / f"node-{self._number}.log"
