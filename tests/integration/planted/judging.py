"""Call scripts in this process, as a person calls them; return exit code and output, and whether it ended."""

import contextlib
import io
import os
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.integration.planted.yard import Yard, script

from trainyard.command import handler

# A signal ends a call that exceeds the limit: its handler opens the pipes that a thread may be reading, so
# that no thread is left behind.
LIMIT_SECONDS = 10
"""The longest that a call may last on a machine that does nothing else."""
HUNG = -1


class _TooLongError(BaseException):
    pass


@dataclass(frozen=True)
class Answer:
    """The result of a call."""

    code: int
    """The exit code, or HUNG."""
    said: str
    out: str = ""
    """The part of it on stdout."""


def call(name: str, *arguments: str, within: Path) -> Answer:
    """Run `scripts/NAME.py`; `within` is the folder whose pipes are opened when it hangs."""
    out, err = _stream(), _stream()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limit(within):
            code = handler.exit_code_of(lambda: int(script(name).main(list(arguments))))
    except _TooLongError:
        code = HUNG
    return Answer(int(code), _written(out) + _written(err), _written(out))


def prove(yard: Yard, *more: str) -> Answer:
    flags = ("--run-dir", str(yard.run.path), "--store", yard.store)
    only = ("--only", yard.parts) if yard.parts else ()
    return call("prove", *flags, *only, *more, within=yard.path)


def verify(yard: Yard, *more: str, disk: bool = True) -> Answer:
    where = ("--run-dir", str(yard.run.path)) if disk else ()
    flags = ("--store", yard.store, "--run-number", "1", "--depth", "full", *where)
    return call("store_verify", *flags, *more, within=yard.path)


def restore(yard: Yard, *more: str) -> Answer:
    flags = ("--store", yard.store, "--run-number", "1", "--to", str(yard.path / "back"))
    return call("store_restore", *flags, *more, within=yard.path)


def sync(yard: Yard) -> Answer:
    flags = ("--run-dir", str(yard.run.path), "--store", yard.store, "--run-number", "1", "--once")
    return call("store_sync", *flags, within=yard.path)


def _stream() -> io.TextIOWrapper:
    """A stream in UTF-8, as in an ordinary locale: not every text can be written to it."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _written(stream: io.TextIOWrapper) -> str:
    content = stream.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode()


@contextlib.contextmanager
def _limit(within: Path) -> Iterator[None]:
    came: list[int] = []

    def end(number: int, _frame: object) -> None:
        for path in within.rglob("*"):
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(path.lstat().st_mode):
                    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        came.append(number)
        if len(came) == 1:  # later signals only free threads that wait at pipes
            raise _TooLongError

    before = signal.signal(signal.SIGALRM, end)
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # processes per processor
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS * busy, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Every other script that reads a run or a store ends soon and without a crash, whatever it finds there.
Reader = Callable[[Yard], Answer]


def _of_run(name: str, *flags: str, option: str = "--run-dir") -> Reader:
    def ask(yard: Yard) -> Answer:
        where = (option, str(yard.run.path)) if option else (str(yard.run.path),)
        return call(name, *_filled(flags, yard), *where, within=yard.path)

    return ask


def _of_store(name: str, *flags: str) -> Reader:
    return lambda yard: call(name, "--store", yard.store, *_filled(flags, yard), within=yard.path)


def _filled(flags: tuple[str, ...], yard: Yard) -> list[str]:
    return [flag.replace("@new", str(yard.path / "new")) for flag in flags]


DISK: Mapping[str, Reader] = {
    "dashboard": _of_run("report", "--format", "text", option=""),
    "dashboard json": _of_run("report", "--format", "json", option=""),
    "dashboard markdown": _of_run("report", "--format", "markdown", option=""),
    "watch": _of_run("watch", "--once", "--json", option=""),
    "dashboard html": _of_run("report", "--format", "html", "--output", "@new.html", option=""),
    "slack": _of_run("notify", "succeeded", "--dry-run"),
    "export": _of_run("export", "--to", "@new", "--dry-run"),
    "verify alone": _of_run("store_verify"),
    "sync elsewhere": _of_run("store_sync", "--store", "file://@new-store", "--once"),
}
STORE: Mapping[str, Reader] = {
    "list": _of_store("store_ls"),
    "list json": _of_store("store_ls", "--json"),
    "prune": _of_store("store_prune", "--all-runs", "--keep-last", "1"),
    "promote": _of_store(
        *("store_promote", "--run-number", "1", "--step", "newest", "--name", "best", "--dry-run")
    ),
    "restore newest": _of_store(
        "store_restore", "--run-number", "1", "--step", "newest", "--to", "@new newest"
    ),
    "go on": _of_store(
        *("step_fetch_checkpoint", "--run-number", "1", "--run-dir", "@new next", "--resume", "auto"),
        *("--segment", "2"),
    ),
    "second sync": sync,
}
"""Readers by a name for the messages of the tests."""
