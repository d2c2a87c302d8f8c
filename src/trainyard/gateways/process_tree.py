"""Read from /proc which processes there are: below another one, in a run, or with a handler for a signal.

Process ids are used again, so a process is identified by its id and its start. Outside Linux none is found.
"""

import contextlib
import os
import pwd
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

RUN_VARIABLE, NODE_VARIABLE = "TRAINYARD_RUN_DIR", "TRAINYARD_RUN_NODE"
"""The environment of a program's processes names their run by its directory and their node by its number."""
_PROC = Path("/proc")
_COMPUTE_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dxg")
"""Devices that a process opens to compute. A monitor such as that of W&B opens only /dev/nvidia0."""
_CHECKPOINT = re.compile(
    r"(ckpt|checkpoint|\.(pt|pth|bin|safetensors|distcp|pkl|npz|h5|keras)\b)", re.IGNORECASE
)
_POLL_SECONDS, _KILL_SECONDS = 0.1, 10.0


@dataclass(frozen=True)
class Process:
    """A process that has not ended."""

    pid: int
    parent: int
    group: int
    session: int
    start: int
    """When it started, in the kernel's ticks since the boot."""

    @property
    def started(self) -> float:
        """When it started, in Unix seconds."""
        boot = re.search(r"^btime (\d+)", (_PROC / "stat").read_text(), re.MULTILINE)
        return (int(boot[1]) if boot else 0) + self.start / os.sysconf("SC_CLK_TCK")

    @property
    def words(self) -> str:
        """The beginning of its command line; options behind it may hold secrets."""
        return " ".join(self.arguments[:2]).strip()[:80]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of its command line."""
        return tuple(os.fsdecode(_read(self.pid, "cmdline")).rstrip("\0").split("\0"))

    @property
    def user(self) -> str:
        """The name of its user, or the number; empty if it has ended."""
        with contextlib.suppress(OSError):
            owner = (_PROC / str(self.pid)).stat().st_uid
            try:
                return pwd.getpwuid(owner).pw_name
            except KeyError:
                return str(owner)
        return ""

    def catches(self, number: int) -> bool:
        """Return whether it has a handler for the signal."""
        found = re.search(rb"^SigCgt:\s*([0-9a-f]+)", _read(self.pid, "status"), re.MULTILINE)
        return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)

    @property
    def program(self) -> Path:
        """The file of its program; `.` where it may not be read."""
        with contextlib.suppress(OSError):
            return (_PROC / str(self.pid) / "exe").readlink()
        return Path()

    def is_python(self) -> bool:
        return self.program.name.startswith("python")

    def environment(self) -> dict[str, str]:
        """Return the environment that it was started with; empty if it belongs to another user."""
        pairs = (os.fsdecode(each).partition("=") for each in _read(self.pid, "environ").split(b"\0"))
        return {name: value for name, equals, value in pairs if equals}

    def trains(self) -> bool:
        """Return whether it computes on a GPU, has loaded torch, or writes a checkpoint."""
        if b"libtorch" in _read(self.pid, "maps"):
            return True
        with contextlib.suppress(OSError):
            for link, is_written in self.open_files():
                with contextlib.suppress(OSError):
                    target = os.fspath(link.readlink())
                    is_file = is_written and target.startswith("/")
                    if target in _COMPUTE_DEVICES or (is_file and _CHECKPOINT.search(Path(target).name)):
                        return True
        return False

    def open_files(self) -> Iterator[tuple[Path, bool]]:
        """Yield a link to each open file, and whether it is open for writing. Raises OSError."""
        for link in (_PROC / str(self.pid) / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the link has the mode of the open file
                yield link, bool(link.lstat().st_mode & 0o200)


@dataclass(frozen=True)
class RunProcesses:
    """The processes that the program of a run has on this machine."""

    training: tuple[Process, ...] = ()
    """The program with its session, and any process that uses a GPU or torch or writes a checkpoint."""
    left: tuple[Process, ...] = ()
    """Others that outlived the program, such as the daemon of a tracker."""


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / name).read_bytes()
    return b""


def find_process(pid: int) -> Process | None:
    """Return a process; None if there is none, or it has ended and was not reaped."""
    # pid (name) state ppid pgrp session …; the name may hold blanks and parentheses
    facts = _read(pid, "stat").rpartition(b")")[2].split()
    if len(facts) < 20 or facts[0] in b"ZX":
        return None
    parent, group, session = map(int, facts[1:4])
    return Process(pid, parent, group, session, int(facts[19]))


def processes() -> list[Process]:
    """Return all processes of this machine, as far as this process sees them."""
    if not (_PROC / "self" / "stat").exists():
        return []
    found = (find_process(int(each.name)) for each in _PROC.iterdir() if each.name.isdecimal())
    return [each for each in found if each is not None]


def family(pid: int) -> list[Process]:
    """Return a process, the members of its group, and all processes below it, parents first."""
    every = processes()
    found = [each for each in every if each.pid == pid or each.group == pid]
    found.sort(key=lambda each: each.pid != pid)
    for parent in found:
        found += [each for each in every if each.parent == parent.pid and each not in found]
    return found


def ancestors(pid: int) -> list[Process]:
    """Return a process and those that started it, the nearest first."""
    found = list[Process]()
    while (each := find_process(pid)) is not None:
        found.append(each)
        pid = each.parent
    return found


def lives(process: Process) -> bool:
    """Return whether this process still runs, and not another one of its id."""
    now = find_process(process.pid)
    return now is not None and now.start == process.start


def send(processes: Iterable[Process], number: int) -> bool:
    """Send a signal to each process; return whether any was there."""
    sent = False
    for each in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each.pid, number)
            sent = True
    return sent


def catchers(pid: int, number: int) -> list[Process]:
    """Return the processes of a program's group, and workers below it, that have a handler for the signal.

    Workers of torchrun are in sessions of their own. Only Python counts there: programs in Go, such as the
    daemon of W&B, have a handler for every signal that does nothing.
    """
    return [each for each in family(pid) if (each.group == pid or each.is_python()) and each.catches(number)]


def processes_of_run(directory: Path, node: int = 0, leader: tuple[int, int] | None = None) -> RunProcesses:
    """Return the processes of a run's program on this machine.

    They are those of the session that `leader` (id and start) leads or led, and those whose environment names
    the run; neither this process nor those above it. A launcher's workers have sessions of their own.
    """
    every = {each.pid: each for each in processes()}
    above = {each.pid for each in ancestors(os.getpid())}
    head = every.get(leader[0]) if leader is not None else None
    is_reused = head is not None and leader is not None and head.start != leader[1]
    training, left = list[Process](), list[Process]()
    for each in every.values():
        of_session = leader is not None and each.session == leader[0] and not is_reused
        # If the leader has ended, only the environment shows that the session is not another one by now.
        is_known = of_session and head is not None
        if each.pid in above or not (is_known or _is_of_run(each, directory, node)):
            continue
        (training if of_session or each.trains() else left).append(each)
    return RunProcesses(tuple(training), tuple(left))


def files_being_written(
    directory: Path, node: int = 0, leader: tuple[int, int] | None = None
) -> frozenset[tuple[int, int]] | None:
    """Return device and inode of the files that a run's processes have open for writing.

    None if that cannot be seen: there is no /proc, or a process belongs to another user.
    """
    found = processes_of_run(directory, node, leader)
    files = set[tuple[int, int]]()
    for each in (*found.training, *found.left):
        try:
            for link, is_written in each.open_files():
                with contextlib.suppress(FileNotFoundError):
                    if is_written:
                        facts = link.stat()
                        files.add((facts.st_dev, facts.st_ino))
        except FileNotFoundError:  # it has ended
            continue
        except PermissionError:
            return None
    return frozenset(files) if (_PROC / "self").exists() else None


def _is_of_run(process: Process, directory: Path, node: int) -> bool:
    environment = process.environment()
    named = environment.get(RUN_VARIABLE)
    if not named or environment.get(NODE_VARIABLE) != str(node):
        return False
    with contextlib.suppress(OSError):
        return os.path.samefile(named, directory)  # noqa: PTH121 - a name may be any text
    return False


def stop_processes(stopping: Iterable[Process], seconds: float) -> list[Process]:
    """Send SIGTERM to processes, also to stopped ones, and SIGKILL to those that run `seconds` longer.

    Return those that the kernel does not end, which wait for a device or a file server.
    """
    left = list(stopping)
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, _KILL_SECONDS)):
        send(left, number)
        send(left, signal.SIGCONT)
        until = time.monotonic() + patience
        while (left := [each for each in left if lives(each)]) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
    return left
