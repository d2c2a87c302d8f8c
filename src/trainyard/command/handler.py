"""The one top-level handler: it turns errors into exit codes, and flushes the output streams.

Only this room catches every exception.
"""

import contextlib
import errno
import io
import itertools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from trainyard.command import output
from trainyard.command.missing_extra import extra_of, install_command
from trainyard.command.parser import UsageExit
from trainyard.command.visible_text import escape_controls
from trainyard.errors import ExitCode, TrainyardError

_FLUSH_SECONDS = 3.0
_WRONG_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
"""Errors for a name that does not exist; the person who gave it sees the message."""
_OF_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE),
)
"""Errors that a machine may raise for any file; never a bug."""
_NO_REASON = "it failed; the reason is on stderr"
_logger = logging.getLogger("trainyard")


def exit_code_of(main: Callable[[], int]) -> int:
    """Run `main` and return the process status: the one place that catches everything.

    A bug shows its traceback and ends with `ExitCode.BUG`, so that it cannot be mistaken for `ExitCode.NO`.
    If the reader of our output (`| head`) has closed it, the exit code is still that of `main`; it is
    `ExitCode.NO` if the closed pipe interrupted `main`.
    """
    if threading.current_thread() is threading.main_thread():  # another thread might wait for a stream here
        _have_streams()
    with _failure_as_json(sys.argv[1:]) as stdout:
        code = code_of(main)
        if stdout is not None and code and not stdout.has_written and _asks_for_json(sys.argv[1:]):
            output.print_json({"error": stdout.error or _NO_REASON, "exit_code": int(code)})
    for stream in (sys.stdout, sys.stderr):
        if (problem := _flush(stream)) is not None:
            _say(f"The output could not be written: {problem}\n")
            code = code or ExitCode.NO
    return code


class _JsonOutput:
    """Replaces stdout while a command runs with `--json`, and records whether the command has printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.has_written = False
        self.error = ""
        """The last error, which is also on stderr."""

    def write(self, text: str) -> int:
        self.has_written = self.has_written or bool(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _failure_as_json(words: Sequence[str]) -> Iterator[_JsonOutput | None]:
    """Yield the stdout of a command with `--json`; None without it, and inside another such command.

    Only the first worker of a training prints the failure; the process that started them does if it cannot.
    """
    is_further_worker = "LOCAL_RANK" in os.environ and os.environ.get("RANK") != "0"
    if not _asks_for_json(words) or is_further_worker or isinstance(sys.stdout, _JsonOutput):
        yield None
        return
    before, stdout = sys.stdout, _JsonOutput(sys.stdout)
    sys.stdout = stdout
    try:
        yield stdout
    finally:
        sys.stdout = before


def _asks_for_json(words: Sequence[str]) -> bool:
    """Return whether the options of a command ask for JSON; the words after `--` are those of a program."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own or "--format=json" in own or ("--format", "json") in itertools.pairwise(own)


def _have_streams() -> None:
    """Open closed streams on os.devnull, and let every stream encode every character."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        while (
            descriptor := os.open(os.devnull, os.O_RDWR)
        ) <= 2:  # otherwise the next opened file would get the stream's descriptor
            pass
        os.close(descriptor)
        sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
        sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def end_at_once(answer: Callable[[], int]) -> NoReturn:
    """End the process from any thread with the exit code of `answer`, whatever other threads do.

    The streams are flushed if that takes only seconds; a stream that blocks is skipped.
    """
    ending = threading.Thread(target=lambda: os._exit(exit_code_of(answer)), name="end", daemon=True)
    ending.start()
    ending.join(_FLUSH_SECONDS)
    os._exit(ExitCode.NO)


def code_of(main: Callable[[], int]) -> int:
    """Run a command, or one step of the pipeline in a longer command, and return its exit code.

    An error is printed with its exit code, and does not end the process.
    """
    try:
        return main()
    except UsageExit as leaving:  # the parser has printed the error
        _note_error(leaving.message)
        return ExitCode.USAGE
    except SystemExit as leaving:
        return int(leaving.code or 0)  # argparse has printed the help
    except TrainyardError as error:
        _say(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        _say("Interrupted.\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _logger.debug("where the pipe broke:", exc_info=True)
        _say("Interrupted: the reader of the output has closed it (broken pipe).\n")
        return ExitCode.NO
    except Exception as error:  # the one top-level handler
        code, text = _explain(error)
        if code is not ExitCode.BUG:
            _logger.debug("where it happened:", exc_info=True)
        _say(text)
        return code


def _explain(error: Exception) -> tuple[ExitCode, str]:
    """Return the exit code of an error that nobody expected, and one line for the person or the traceback."""
    name = str(getattr(error, "filename", "") or "")[:300]
    if isinstance(error, OSError) and error.errno in (*_WRONG_NAMES, *_OF_THE_MACHINE):
        code = ExitCode.USAGE if error.errno in _WRONG_NAMES else ExitCode.NO
        return code, f"{name}: {error.strerror}\n" if name else f"The output could not be written: {error}\n"
    if isinstance(error, FileNotFoundError) and error.errno == errno.ENOENT:
        if error.filename is None:  # os.getcwd() names none
            return (
                ExitCode.USAGE,
                "The working directory was removed. Change to another one, and try again.\n",
            )
        folder = os.path.dirname(name)  # noqa: PTH120 - a name may be any text
        if not Path(folder).is_dir():
            return ExitCode.USAGE, f"{folder or '.'}: no such folder. Create it first, or name another one.\n"
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")):
        text = f"{error.name} is not installed. Add the extra `{extra}`: {install_command(extra)}\n"
        return ExitCode.USAGE, text
    return ExitCode.BUG, traceback.format_exc()


def _note_error(text: str) -> None:
    """Keep an error for the JSON object that is printed if the command prints nothing else."""
    if isinstance(sys.stdout, _JsonOutput):
        sys.stdout.error = text.strip()


def _say(text: str) -> None:
    """Write to stderr if it is still open; the exit code must not depend on it."""
    _note_error(text)
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(escape_controls(text))
        sys.stderr.flush()


def _flush(stream: TextIO | None) -> str | None:
    """Flush `stream`; return why that failed, None if its reader has just closed it."""
    if stream is None:
        return None
    try:
        stream.flush()
        return None
    except OSError as error:
        # The buffered text would fail again at interpreter exit, which would then set the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return None if isinstance(error, BrokenPipeError) else str(error)
