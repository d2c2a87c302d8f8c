"""The frame every script stands in: shared options, logging set once, one line a phase, errors as exit codes.

It knows no pipeline step and starts nothing; `scripts/` hold the steps.
"""

import argparse
import contextlib
import errno
import io
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import NoReturn, TextIO, TypeVar

from trainyard import arguments, terminal
from trainyard.errors import ConfigError, ExitCode, TrainyardError, WaitTimeoutError

LOG_LEVELS = ("debug", "info", "warning", "error")
_COLOURS = {"ok": "32", "degraded": "33", "failed": "31"}
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space left: the machine's trouble and no bug, wherever it is met."""
_FLUSH_SECONDS = 3.0
_MOST_REPEATED = 120
"""Letters of a word in a message of argparse."""
_LONGEST_WORD = 1000
"""Letters of a word in any other message: longer than every path that people use."""
_WRONG_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
"""A name that leads to no such thing: whoever gave it is told."""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE)
"""What the machine may refuse at any file."""
_logger = logging.getLogger("trainyard")
Answer = TypeVar("Answer")


class _Parser(argparse.ArgumentParser):
    """Wrong usage is answered in short words: a value that argparse repeats may have any length."""

    def error(self, message: str) -> NoReturn:
        super().error(arguments.with_short_words(message, most=_MOST_REPEATED))


def parser(doc: str | None, *, reads_config: bool = False) -> argparse.ArgumentParser:
    """An argument parser whose help is the script's docstring, with the options that all scripts share.

    `reads_config` adds those of the scripts that work for a configuration.
    """
    result = _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.register("type", None, arguments.text)  # of every option that names no type
    if reads_config:
        result.add_argument(
            "--config", type=arguments.path, required=True, metavar="FILE", help="the configuration"
        )
        how = "change one value; may be repeated"
        result.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=how)
    level = "how much to log on stderr, default info"
    result.add_argument("--log-level", choices=LOG_LEVELS, help=level)
    return result


def job_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long the job of CI that this process belongs to has been going; 0 outside one.

    `TRAINYARD_JOB_STARTED` holds its start in Unix seconds; a start in the future counts as now.
    """
    started = environment.get("TRAINYARD_JOB_STARTED")
    if not started:
        return 0.0
    if not re.fullmatch(r"\d+(\.\d+)?", started, re.ASCII):
        raise ConfigError(
            f"TRAINYARD_JOB_STARTED: {started!r} is not a time in Unix seconds, as date +%s prints"
        )
    return max(0.0, time.time() - float(started))


def within(seconds: float, work: Callable[[], Answer]) -> Answer:
    """What `work` gives or raises. Raises WaitTimeoutError when it takes longer; it is then left behind.

    For a question whose answer may never come: a thread asks it, which does not keep the process from ending.
    """
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            answer.set_exception(error)

    threading.Thread(target=ask, name="within", daemon=True).start()
    try:
        return answer.result(seconds)
    except FutureTimeoutError as error:
        if answer.done():  # the work itself ran out of time
            raise
        raise WaitTimeoutError(f"no answer within {seconds:g} seconds") from error


def print_json(value: object) -> None:
    """Write `value` to stdout. What cannot be written now is said when the process ends (`exit_code_of`)."""
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(value, indent=2) + "\n")


def end_at_signals(*, silently: bool = False) -> Callable[[], str | None]:
    """Let SIGTERM and SIGINT end the program at once, as a Ctrl-C does, and be cleaned up after.

    Returns what names the signal that came: code that swallows every exception, as imports have it, may have
    gone on. `silently` is for one process of several, whose launcher says that they were interrupted.
    """
    came: list[str] = []

    def end(number: int, _frame: object) -> NoReturn:
        came.append(signal.Signals(number).name)
        raise SystemExit(ExitCode.INTERRUPTED) if silently else KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background jobs start with SIGINT ignored
        signal.signal(number, end)
    sys.unraisablehook = _send_again
    return lambda: came[0] if came else None


def _send_again(ignored: "sys.UnraisableHookArgs") -> None:
    """Send the signal once more whose exception came where Python ignores one, as in `__del__`."""
    if isinstance(ignored.exc_value, KeyboardInterrupt | SystemExit):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(ignored)


def stand_back(behind: Path | None = None) -> threading.Event:
    """Work beside another program: leave it the processors, and end when asked to.

    The event is set at the first SIGTERM or SIGINT, and the script then ends by itself; a second one kills.
    With `behind` what started the script goes on at once; see `_go_behind`.
    """
    if behind is not None:
        _go_behind(behind)
    with contextlib.suppress(OSError):
        os.nice(19)
    event = threading.Event()

    def note(number: int, _frame: object) -> None:
        event.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return event


def _go_behind(path: Path) -> None:
    """Go on in a session of our own, out of reach of what ends a step of CI with all that it started.

    The process id is in `path` before the first process ends, what is said goes into `path`.log.
    """
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        os._exit(ExitCode.DONE if os.read(reader, 1) else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setsid()
    with contextlib.suppress(OSError):  # Linux shares processors between sessions first (sched(7), autogroup)
        Path("/proc/self/autogroup").write_text("19")
    sys.stdout.flush()
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, target in ((0, nothing), (1, log), (2, log)):
        os.dup2(target, stream)
    path.write_text(f"{os.getpid()}\n")
    os.write(writer, b"1")


class _LineFormatter(logging.Formatter):
    """Level names of at most five letters, so that the messages of a log stand below each other."""

    def format(self, record: logging.LogRecord) -> str:
        line = logging.makeLogRecord(record.__dict__)
        line.levelname = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(record.levelname, record.levelname)
        return super().format(line)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the moment: while there is a live line, that puts lines above it."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not sys.stderr:
            self.setStream(sys.stderr)
        super().emit(record)


def configure_logging(level: str | None) -> None:
    """Send the library's records from `level` on (None: info) to stderr, one plain line each.

    `21:45:01 INFO  message`.
    """
    handler = _ToStderr(sys.stderr)
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)-5s %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger("trainyard")
    root.handlers[:] = [handler]
    root.setLevel((level or "info").upper())
    root.propagate = False


def on_terminal() -> bool:
    """Whether people watch stderr live; a log or a CI runner gets plain lines instead."""
    return terminal.on_terminal()


def announce(phase: str, text: str, status: str = "", *, copied: bool = False) -> None:
    """Say how a phase ended: aligned lines that fit the terminal, one plain line in a log.

    `status` is a verdict (`ok`, `degraded`, `failed`); its colour is never its only carrier. Text that people
    copy, such as a command, is `copied`: it is neither broken nor shortened.
    """
    if not on_terminal():
        _logger.info("%s: %s%s", phase, text, f" [{status}]" if status else "")
        return
    first, *others = terminal.finished_lines(phase, text, status, cells=terminal.width(), copied=copied)
    first = first.removesuffix(status) + _coloured(status)
    sys.stderr.write("".join(f"{line}\n" for line in (first, *others)))


def _coloured(status: str) -> str:
    colour = _COLOURS.get(status)
    return status if colour is None or not terminal.colours() else f"\x1b[{colour}m{status}\x1b[0m"


def exit_code_of(main: Callable[[], int]) -> int:
    """Run `main` and return the process status: the one place that catches everything.

    A bug shows its traceback and ends with `ExitCode.BUG`, so that it cannot be taken for a "no". The answer
    of `main` holds even if the reader of our output (`| head`) has gone; a `main` cut short by it is a "no".
    """
    if threading.current_thread() is threading.main_thread():  # another one might wait for a stream here
        _have_streams()
    code = _answer_of(main)
    for stream in (sys.stdout, sys.stderr):
        if (problem := _flush(stream)) is not None:
            _say(f"The output could not be written: {problem}\n")
            code = code or ExitCode.NO
    return code


def _have_streams() -> None:
    """Let output be possible: a stream that was closed leads nowhere, and any character can be written."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a file would get its number
            pass
        os.close(descriptor)
        sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
        sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def end_at_once(answer: Callable[[], int]) -> NoReturn:
    """End the process from any thread with what `answer` gives; no other thread can hold that up.

    What the streams still hold is written if they take it within seconds: one that hangs takes nothing.
    """
    ending = threading.Thread(target=lambda: os._exit(exit_code_of(answer)), name="end", daemon=True)
    ending.start()
    ending.join(_FLUSH_SECONDS)
    os._exit(ExitCode.NO)


def _answer_of(main: Callable[[], int]) -> int:
    try:
        return main()
    except SystemExit as leaving:
        return int(leaving.code or 0)  # argparse has said it all: the help, or wrong usage
    except TrainyardError as error:
        _say(f"{arguments.with_short_words(str(error), most=_LONGEST_WORD)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        _say("Interrupted.\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _logger.debug("where the pipe broke:", exc_info=True)
        _say("Cut short: what read the output has closed it (broken pipe).\n")
        return ExitCode.NO
    except Exception as error:  # the one top-level handler
        if isinstance(error, OSError) and error.errno in _FULL:
            _logger.debug("where the space ran out:", exc_info=True)
            _say(f"The output could not be written: {error}\n")
            return ExitCode.NO
        if isinstance(error, OSError) and error.errno in (*_WRONG_NAMES, *_REFUSED):
            _logger.debug("where the file was refused:", exc_info=True)
            _say(f"{str(error.filename or '')[:300]}: {error.strerror}\n")
            return ExitCode.USAGE if error.errno in _WRONG_NAMES else ExitCode.NO
        _say(traceback.format_exc())
        return ExitCode.BUG


def _say(text: str) -> None:
    """Write to stderr if it is still read; the exit code must not depend on it."""
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _flush(stream: TextIO | None) -> str | None:
    """Write out what `stream` still holds; returns why that failed, None for a reader that just left."""
    if stream is None:
        return None
    try:
        stream.flush()
        return None
    except OSError as error:
        # What it holds would fail once more at interpreter exit, which would then choose the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return None if isinstance(error, BrokenPipeError) else str(error)
