"""Read what the machine records about an end: kills for memory, lines of the kernel, full disks.

    SystemRecord() at the start ──> the program runs ──> `changes`: one sentence or line a fact

A counter or a log that cannot be read gives no fact: most containers may not read the kernel's log.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_KERNEL_LOG = "/dev/kmsg"
_KERNEL = re.compile(r"NVRM: |SXid|Out of memory: Kill|Memory cgroup out of memory: Kill|\[Hardware Error\]")
_MOST_RECORDS = 100_000
_LONGEST_RECORD = 8192
_FULL_BYTES = 1 << 20
"""A disk with less room than this is full: no checkpoint fits."""
_MOST_LINES = 20


class SystemRecord:
    """The counters and the clock of this machine when a program starts."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._since = time.monotonic()
        self._kills = _memory_kills()

    def changes(self, *, was_killed: bool) -> tuple[str, ...]:
        """Return what was recorded since the start.

        The kernel's log is that of all programs of the machine, so its kills count only if this program
        `was_killed`.
        """
        kernel = [line for line in _kernel_lines(self._since) if was_killed or "Kill" not in line]
        kills = self.memory_kills()
        own = f"oom_kill event: the kernel ended {kills} processes of this cgroup for memory"
        return (
            *kernel[:_MOST_LINES],
            *([own] if kills else []),
            *filter(None, map(_full_disk, self._folders)),
        )

    def memory_kills(self) -> int | None:
        """Return how many processes of this cgroup the kernel ended for memory since the start, if known."""
        now = _memory_kills()
        return None if now is None or self._kills is None else now - self._kills


def _memory_kills() -> int | None:
    """Return how many processes of this cgroup the kernel has ended for memory; None if that is not known."""
    with suppress(OSError):
        own = re.search(r"^0::/?(.*)$", _OWN_CGROUP.read_text(), re.MULTILINE)
        for folder in (_CGROUPS / own[1], _CGROUPS) if own else ():
            with suppress(OSError):
                events = (folder / "memory.events").read_text()
                if found := re.search(r"^oom_kill (\d+)", events, re.MULTILINE):
                    return int(found[1])
    return None


def _kernel_lines(since: float) -> Iterator[str]:
    """Return the kernel's lines about faults since `since`, in seconds of the monotonic clock."""
    with suppress(OSError):
        log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        try:
            for _ in range(_MOST_RECORDS):
                # Each read is one record: PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT. The end is an EAGAIN.
                head, _, text = os.read(log, _LONGEST_RECORD).decode(errors="replace").partition(";")
                fields = head.split(",")
                is_new = len(fields) > 2 and fields[2].isdigit() and int(fields[2]) / 1e6 >= since
                if is_new and _KERNEL.search(text):
                    yield text.splitlines()[0]
        finally:
            os.close(log)


def _full_disk(folder: Path) -> str:
    """Return that the disk of a folder is full; empty if it is not, or is not known."""
    with suppress(OSError):
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
        if free < _FULL_BYTES:
            return f"No space left on the disk of {folder}: {free / 1e6:.1f} MB free"
        if room.f_files and not room.f_favail:
            return f"No space left on the disk of {folder}: no inodes are free (df -i)"
    return ""
