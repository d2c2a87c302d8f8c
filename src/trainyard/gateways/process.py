"""Run other programs, with a time limit unless a person attends to them."""

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from trainyard.errors import ConfigError
from trainyard.gateways.process_tree import catchers, find_process, send

USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals, some of batch systems before a time limit, that mean something to a program that handles them."""
SAME_SIGNAL_SECONDS = 2.0
"""A terminal's Ctrl-C and the same signal passed on by a parent arrive together and count as one."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, *USER_SIGNALS)
_WAKE_SECONDS = 1.0
_HANGUP_MILLISECONDS = 500
"""How long the reader of a pipe, which gets SIGHUP too, has to end."""
_TORCHRUN_PREFIX = "PET_"
"""torchrun takes a variable of this prefix for an option that its command line omits."""
_END_SECONDS = 5.0
"""Seconds that a program may take to end after the request."""
# Variables, set by git's hooks, that make git answer for another repository than the one around a folder.
_OF_ONE_REPOSITORY = frozenset(
    (
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE"),
        *("GIT_PREFIX", "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
        *("GIT_GRAFT_FILE", "GIT_SHALLOW_FILE", "GIT_REPLACE_REF_BASE"),
    )
)

_PROGRAM_ENV = "PROGRAM_ENV"
"""The variable with the variables of the program alone, a NAME=VALUE a line."""
_OF_PIPELINE = frozenset(
    (
        _PROGRAM_ENV,
        *("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL", "TRAINYARD_SIGNING_KEY", "TRAINYARD_SIGNING_KEY_PASSWORD"),
        *("ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "TRAINYARD_AWS_ROLE"),
    )
)


@dataclass(frozen=True)
class Finished:
    """The end of a program."""

    exit_code: int | None
    """None when it could not be started or did not end in time."""
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def run_program(
    command: Sequence[str],
    *,
    seconds: float,
    cwd: Path | None = None,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run `command` for at most `seconds`; a missing program gives a result and raises no error.

    The program inherits this process's stdin and environment where `stdin` or `environment` is None.
    """
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            cwd=cwd,
            check=False,
            input=stdin,
            env=None if environment is None else dict(environment),
        )
    except FileNotFoundError:
        return Finished(None, "", f"{command[0]}: not found")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finished(None, "", f"{command[0]}: {error}")
    return Finished(done.returncode, done.stdout, done.stderr)


def run_git(directory: Path, *arguments: str, seconds: float) -> Finished:
    """Run git on the repository around the directory, whatever repository the environment names.

    A job of GitHub trusts its workspace: in a container it belongs to another user, and git would refuse it.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ONE_REPOSITORY}
    workspace = os.environ.get("GITHUB_WORKSPACE", "")
    is_of_job = workspace and os.path.realpath(directory).startswith(os.path.realpath(workspace))
    trust = ("-c", "safe.directory=*") if is_of_job else ()
    return run_program(["git", *trust, "-C", str(directory), *arguments], seconds=seconds, environment=kept)


def run_streamed(command: Sequence[str], *, seconds: float, on_line: Callable[[str], None]) -> int | None:
    """Run `command` and pass on each line of its stdout and stderr as it arrives.

    Returns its exit code; None when it could not be started or did not end in time. The program and its
    children are ended when this process is interrupted.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        on_line(f"{command[0]}: {error.strerror}")
        return None
    assert process.stdout is not None
    late = threading.Event()

    def end_late() -> None:
        late.set()
        _signal_group(process, signal.SIGKILL)

    timer = threading.Timer(seconds, end_late)
    timer.start()
    try:
        with process.stdout:
            for line in process.stdout:
                on_line(line.decode(errors="replace").rstrip("\r\n"))
        code = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:  # we were interrupted
            _signal_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            _signal_group(process, signal.SIGKILL)
    return None if late.is_set() else code


def _signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def wait_awake(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of a process. A wait without a time limit may miss one of two signals at once.

    Another thread may take it, which does not wake this one to call the handler.
    """
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_WAKE_SECONDS)


class SignalHandler:
    """Calls `take` on signals that would end this process inside its `with` block; restores the handlers.

    A signal that was ignored at the start stays ignored, as SIGHUP is under nohup; but not SIGINT, which a
    shell ignores for its background jobs. SIGTSTP (Ctrl-Z) is not passed on: it stops this process only.
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def __enter__(self) -> Self:
        kept = (signal.SIGTERM, signal.SIGINT)
        numbers = [
            number for number in _ENDING if number in kept or signal.getsignal(number) is not signal.SIG_IGN
        ]
        self._before = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take(self, number: int) -> None:
        """Handle a signal that would end this process."""
        raise NotImplementedError

    def _receive(self, number: int, _frame: object) -> None:
        now = time.monotonic()
        if now - self._last.get(number, -SAME_SIGNAL_SECONDS) < SAME_SIGNAL_SECONDS:
            return
        self._last[number] = now
        try:
            self.take(number)
        finally:
            if number == signal.SIGHUP:
                leave_terminal()


class SignalForwarder(SignalHandler):
    """Passes signals on to a process: as they are if it handles them, else as SIGTERM.

    Enter it before the process starts: otherwise a signal in between ends this process and not the new one.
    """

    def __init__(self, *, launches: bool = False) -> None:
        """`launches`: the process starts workers, which may handle signals, in sessions of their own."""
        super().__init__()
        self.passed: list[int] = []
        self._launches = launches
        self._process: subprocess.Popen[bytes] | None = None

    def run_process(
        self,
        command: Sequence[str],
        *,
        stdout: IO[Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run `command`, pass signals on to it, and return its exit code; 128 + N for signal N.

        It inherits everything but a given `stdout` or `environment`, and has no time limit.
        """
        process = subprocess.Popen(list(command), stdout=stdout, env=environment)
        self.pass_to(process)
        code = wait_awake(process)
        self._process = None
        return 128 - code if code < 0 else code

    def pass_to(self, process: "subprocess.Popen[bytes]") -> None:
        """Pass signals on to `process`, including one that arrived before it started."""
        self._process = process
        if self.passed:
            self._send(self.passed[-1])

    def take(self, number: int) -> None:
        self.passed.append(number)
        self._send(number)

    def _send(self, number: int) -> None:
        if self._process is None:
            return
        own = find_process(self._process.pid)
        if number in (signal.SIGTERM, signal.SIGINT) or (own is not None and own.catches(number)):
            self._process.send_signal(number)
        elif not (self._launches and send(catchers(self._process.pid, number), number)):
            self._process.send_signal(signal.SIGTERM)


def leave_terminal() -> None:
    """Let stdout and stderr go nowhere if their terminal, or the reader of their pipe, is gone.

    After SIGHUP, writing to them fails, which must not end what still has to be saved and stored.
    """
    for descriptor in (1, 2):
        poll = select.poll()
        poll.register(descriptor, 0)
        if poll.poll(_HANGUP_MILLISECONDS):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)


def passed_names(environment: Mapping[str, str]) -> set[str]:
    """Return the variables that TRAINYARD_PASS names, separated by blanks or commas."""
    return set(environment.get("TRAINYARD_PASS", "").replace(",", " ").split())


def withheld_names(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the pipeline's own secrets, which its program does not get if TRAINYARD_PASS is set, even empty.

    The action and the steps of a workflow set it. Other variables, such as the machine's own AWS keys, stay.
    """
    # Only a job of train.yml has GitHub's token for the pipeline; elsewhere it is the user's own.
    token = frozenset({"GITHUB_TOKEN"} if environment.get("TRAINYARD_PLAN") else ())
    names = (_OF_PIPELINE | token) - passed_names(environment)
    return names if "TRAINYARD_PASS" in environment else frozenset()


def program_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in PROGRAM_ENV, such as HF_TOKEN, that the program gets and no other process.

    Raises ConfigError for a line that is not NAME=VALUE; the line may be a secret, and is not shown.
    """
    found = {}
    for number, line in enumerate(environment.get(_PROGRAM_ENV, "").splitlines(), 1):
        name, equals, value = line.strip().partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ConfigError(f"{_PROGRAM_ENV}: line {number} is not NAME=VALUE, such as HF_TOKEN=hf_...")
        found[name] = value
    return found


def environment_without(names: Collection[str], *, keeps_torchrun: bool = False) -> dict[str, str]:
    """The environment of a program: this process's without the variables `names`.

    torchrun's own, which tell our trainer its node, are left out too, unless it `keeps_torchrun`. Those of
    PROGRAM_ENV are added. Raises ConfigError as `program_variables`.
    """
    left_out = () if keeps_torchrun else (_TORCHRUN_PREFIX,)
    kept = (name for name in os.environ if name not in names and not name.startswith(left_out))
    return {name: os.environ[name] for name in kept} | program_variables(os.environ)
