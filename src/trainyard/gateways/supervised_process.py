"""Run a training program under supervision: read its output, stop its process group, leave nothing behind.

    program, in a session of its own ──stdout and stderr──> log, terminal, `on_output`
    SIGINT, SIGTERM, SIGQUIT ──as they are──> its group ──grace──> SIGKILL
    SIGHUP, the deadline     ──SIGTERM──> its group ──grace──> SIGKILL
    SIGUSR1, SIGUSR2         ──as they are──> processes with a handler for it; if none has one, as SIGHUP
    a hang                   ──SIGABRT──> every Python, which writes its stacks ──> as SIGHUP

Launchers such as `accelerate launch` do not pass signals on, so the signal goes to the complete group, and
the program has ended only when the group is empty.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.gateways.process import (
    SAME_SIGNAL_SECONDS,
    USER_SIGNALS,
    SignalHandler,
    environment_without,
    wait_awake,
)
from trainyard.gateways.process_tree import Process, catchers, family, find_process, lives, processes, send

if TYPE_CHECKING:
    from trainyard.config.secret_filter import SecretFilter

_CHUNK = 1 << 16
"""Most bytes of output that are passed on at once; a longer line is passed on in pieces."""
# How long output is read after the end, and after how much silence then no longer.
_LAST_OUTPUT_SECONDS, _SILENCE_MILLISECONDS = 5.0, 500
_LEFTOVER_SECONDS = 10.0
"""How long processes that outlive the program have to end, before and after SIGTERM."""
# A program that handles SIGUSR1 and ends this soon was stopped by it; batch systems give minutes to save.
_HANDLED_SECONDS = 600.0
_PAUSE = 0.05
_STACK_SECONDS = 0.2
"""Seconds between the stacks of two processes, so that they do not mix in the log."""


@dataclass(frozen=True)
class ProgramExit:
    """End of a supervised program."""

    exit_code: int
    """128 + N for signal N; 127 when it could not be started."""
    stopped_by: str | None = None
    """A signal's name, that of the deadline or the reason of a poll; None if it ended by itself."""
    problem: str | None = None
    """Why it could not be started."""


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """Settings for watching and stopping a program; times are in seconds."""

    grace: float = 30.0
    """From the signal to SIGKILL."""
    deadline: float | None = None
    """From now until it has to stop."""
    deadline_name: str = "the deadline"
    on_start: Callable[[Process | None], None] = lambda _: None
    """Called with the program once it runs; None outside Linux."""
    on_signal: Callable[[str], None] = lambda _: None
    """Called with the name of each received signal."""
    on_stop: Callable[[str], None] = lambda _: None
    """Called with the reason before the program is stopped."""
    poll: Callable[[], str | None] = lambda: None
    """Called on another thread while it runs; it may return a reason to stop the program."""
    poll_seconds: float = 2.0
    hung: str = ""
    """The reason of `poll` for which every Python process first writes its stacks; empty for never."""


def run_supervised(
    command: Sequence[str],
    on_output: Callable[[str, float], None],
    *,
    log: Path,
    secrets: "SecretFilter",
    environment: Mapping[str, str],
    directory: Path | None = None,
    without: Collection[str] = (),
    supervision: Supervision,
) -> ProgramExit:
    """Run `command` in `directory`; show its output, append it to `log`, and pass it on to `on_output`.

    `on_output` gets text that ends where a line ends, at a line feed or a carriage return, and the time in
    Unix seconds at which it was read; the log and the terminal get it without its secrets. The program
    gets this process's environment with `environment` added, without the variables `without` and torchrun's
    own. A second Ctrl-C kills it at once.
    """
    with _Stop(supervision) as stop:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**environment_without(without), **environment},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL byte
            what = getattr(error, "strerror", None) or str(error)
            return ProgramExit(127, stop.reason, problem=f"{command[0]}: cannot be started ({what})")
        stop.watch(process, supervision)
        over, late = threading.Event(), threading.Event()
        reader = threading.Thread(
            target=lambda: _pass_output_on(process, over, late, on_output, log=log, secrets=secrets),
            daemon=True,
        )
        reader.start()
        poller = threading.Thread(target=_poll, args=(supervision, over, stop), daemon=True)
        poller.start()
        supervision.on_start(find_process(process.pid))
        code = wait_awake(process)
        stop.end_group()
        over.set()
        poller.join()
        reader.join(_LAST_OUTPUT_SECONDS)
        late.set()
        reader.join(_LAST_OUTPUT_SECONDS)
    return ProgramExit(128 - code if code < 0 else code, stop.cause)


class _Stop(SignalHandler):
    """Passes signals on to the program, stops it once, and kills it after its grace."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__()
        self.reason: str | None = None
        self._has_killed = False
        self._grace, self._hung = supervision.grace, supervision.hung
        self._on_stop, self._on_signal = supervision.on_stop, supervision.on_signal
        self._below: list[Process] = []
        self._killing = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._group: int | None = None
        self._number = signal.SIGTERM
        self._asked_at = 0.0
        self._handled: tuple[str, float] | None = None
        """The last signal that the program itself handles, and when it came."""
        self._timers: list[threading.Timer] = []

    def __exit__(self, error: object = None, *_: object) -> None:
        super().__exit__()
        for timer in self._timers:
            timer.cancel()
        if error is not None and self._process is not None:  # this process may live on
            self._kill()
            self._process.wait()

    @property
    def cause(self) -> str | None:
        """The cause of the program's end; None if it ended by itself."""
        if self.reason is None and self._handled is not None:
            name, moment = self._handled
            return name if time.monotonic() - moment < _HANDLED_SECONDS else None
        return self.reason

    def watch(self, process: "subprocess.Popen[bytes]", supervision: Supervision) -> None:
        """Stop `process` from now on; at once if a signal came before it was started."""
        self._process, self._group = process, process.pid
        if self.reason is not None:
            self._send(self._number)
            self._after(self._grace, self._kill)
        elif supervision.deadline is not None:
            self._after(max(0.0, supervision.deadline), lambda: self.ask(supervision.deadline_name))

    def end_group(self) -> None:
        """Wait until the group is empty and what was killed has ended; end what outlives the program."""
        if self.reason is None and self._is_gone(_LEFTOVER_SECONDS / 10):
            return
        if self.reason is None:  # nobody stopped them: a launcher that failed left its workers
            self._send(signal.SIGTERM)
            seconds = _LEFTOVER_SECONDS
        else:
            seconds = self._asked_at + self._grace - time.monotonic()
        until = time.monotonic() + _LEFTOVER_SECONDS / 2
        if not self._is_gone(seconds):
            self._kill()
            until = time.monotonic() + _LEFTOVER_SECONDS
            self._is_gone(_LEFTOVER_SECONDS)
        self._wait_for_killed(until)

    def take(self, number: int) -> None:
        name = signal.Signals(number).name
        self._on_signal(name)
        group = self._group if number in USER_SIGNALS else None
        if group is not None and send(catchers(group, number), number):
            self._handled = (name, time.monotonic())
        elif self.reason is None:
            is_sent_as_it_is = number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
            self._number = signal.Signals(number) if is_sent_as_it_is else signal.SIGTERM
            self.ask(name)
        elif number == signal.SIGINT and time.monotonic() - self._asked_at > SAME_SIGNAL_SECONDS:
            self._kill()

    def ask(self, reason: str) -> None:
        """Stop the group for this reason, unless a stop was requested before."""
        if self.reason is not None:
            return
        self.reason, self._asked_at = reason, time.monotonic()
        self._on_stop(reason)
        if self._group is not None:
            if reason == self._hung:
                self._write_stacks()
            self._send(self._number)
            self._after(self._grace, self._kill)

    def _write_stacks(self) -> None:
        """Let each Python process end by SIGABRT, at which faulthandler writes its stacks; parents last.

        A launcher ends all workers when one has ended, so it stands still until its turn. One that ends
        leaves its workers to nobody, so all are remembered until they are killed.
        """
        assert self._group is not None
        self._below = family(self._group)
        pythons = [
            process
            for process in reversed(self._below)
            if process.is_python() and process.environment().get("PYTHONFAULTHANDLER") == "1"
        ]
        send(pythons, signal.SIGSTOP)
        for process in pythons:
            for number in (signal.SIGABRT, signal.SIGCONT):
                send([process], number)
            time.sleep(_STACK_SECONDS)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _kill(self) -> None:
        # The group's end wakes the thread that waits for it: the lock lets this one first kill the workers.
        with self._killing:
            # torchrun starts each worker in a session of its own, out of the group.
            self._below += family(self._group) if self._group is not None else []
            self._has_killed |= self._send(signal.SIGKILL) | send(filter(lives, self._below), signal.SIGKILL)

    def _wait_for_killed(self, until: float) -> None:
        """Wait until the processes that `_kill` killed outside the group have ended."""
        with self._killing:
            while self._has_killed and any(map(lives, self._below)) and time.monotonic() < until:
                time.sleep(_PAUSE)

    def _send(self, number: int) -> bool:
        """Send a signal to the group, and return whether any process was there."""
        assert self._group is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, number)
            return True
        return False

    def _is_gone(self, seconds: float) -> bool:
        assert self._group is not None
        until = time.monotonic() + seconds
        while _has_members(self._group):
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSE)
        return True


def _has_members(group: int) -> bool:
    """Return whether a process of the group still runs. One that has ended and was not reaped does not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    every = processes()
    return not every or any(each.group == group for each in every)


def _poll(supervision: Supervision, over: threading.Event, stop: _Stop) -> None:
    while not over.wait(supervision.poll_seconds):
        if (reason := supervision.poll()) is not None:
            stop.ask(reason)


def _pass_output_on(
    process: "subprocess.Popen[bytes]",
    over: threading.Event,
    late: threading.Event,
    on_output: Callable[[str, float], None],
    *,
    log: Path,
    secrets: "SecretFilter",
) -> None:
    """Pass output on to its end; a daemon that the program leaves may hold the pipe open.

    Then it ends after a silence once the program is `over`, or when it is `late`: the run is stored next, and
    its log must not change any more.
    """
    assert process.stdout is not None
    pending, chunk = b"", b"-"
    with log.open("ab") as file, process.stdout as stream:
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        while chunk:
            was_over = over.is_set()  # what was printed while this thread waited is read, too
            is_last = late.is_set() or not poll.poll(_SILENCE_MILLISECONDS)
            if is_last and not was_over:
                continue
            chunk = b"" if is_last else os.read(stream.fileno(), _CHUNK)
            pending += chunk
            end = secrets.end_of_lines(pending) if chunk else len(pending)
            if not end and len(pending) > _CHUNK:
                end = pending.rfind(b" ") + 1 or len(pending)
            lines, pending = pending[:end], pending[end:]
            if not lines:
                continue
            # A full disk must not stop the reading, because the program would wait; nor a terminal that
            # nobody reads. Where stdout takes only text, as in a notebook, the log alone has it.
            masked = secrets.mask_bytes(lines)
            for target in filter(None, (file, getattr(sys.stdout, "buffer", None))):
                with contextlib.suppress(OSError):
                    target.write(masked)
                    target.flush()
            on_output(lines.decode(errors="replace"), time.time())
