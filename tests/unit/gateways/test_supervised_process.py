"""A supervised program: its end, its output, and each signal to the command that supervises it."""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_for

from trainyard.config.secret_filter import SecretFilter
from trainyard.gateways.process_tree import NODE_VARIABLE, RUN_VARIABLE, Process, files_being_written, lives
from trainyard.gateways.supervised_process import ProgramExit, Supervision, run_supervised

SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda number, frame: save(number, frame))
def save(number, frame):
    time.sleep(0.3)
    open("saved-" + sys.argv[1], "w").write(str(os.getpid()))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
for _ in range(600):  # Python may miss a signal right before a sleep, until it ends
    time.sleep(0.1)
"""
IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


class Supervisor:
    """Runs programs in a folder, and sends signals to this process once a program has printed `ready`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output: list[str] = []
        self.moments: list[float] = []
        self._ready = threading.Event()
        self.group: int | None = None

    def run(
        self, *command: str, send: tuple[int, ...] = (), pause: float = 2.5, **options: Any
    ) -> ProgramExit:
        sender = threading.Thread(target=self._send, args=(send, pause), daemon=True)
        sender.start()
        return run_supervised(
            command,
            self._read,
            log=self.folder / "log",
            directory=self.folder,
            secrets=SecretFilter(),
            environment={},
            supervision=Supervision(**{"grace": 5.0, **options}),
        )

    def python(self, code: str, *words: str, **options: Any) -> ProgramExit:
        return self.run(sys.executable, "-c", code, *words, **options)

    def _read(self, text: str, moment: float) -> None:
        self.output.append(text)
        self.moments.append(moment)
        if "ready" in text:
            self._ready.set()

    def _send(self, numbers: tuple[int, ...], pause: float) -> None:
        for number in numbers if self._ready.wait(30) else ():  # --quick may have skipped the start
            os.kill(os.getpid(), number)
            time.sleep(pause)


def _runs(process: str) -> bool:
    """Return whether a process runs; one that has ended and was not reaped does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path)


def test_the_exit_code_is_that_of_the_program(supervisor: Supervisor) -> None:
    assert supervisor.python("raise SystemExit(75)") == ProgramExit(75)


def test_a_program_that_cannot_be_started_has_a_reason(supervisor: Supervisor) -> None:
    ended = supervisor.run("no-such-program")

    assert (ended.exit_code, ended.problem) == (
        127,
        "no-such-program: cannot be started (No such file or directory)",
    )


def test_output_ends_where_lines_end(supervisor: Supervisor) -> None:
    words = "import sys; [(sys.stdout.write(c), sys.stdout.flush()) for c in ('a', 'b\\rü', 'c\\n', 'rest')]"

    supervisor.python(words)

    assert "".join(supervisor.output) == "ab\rüc\nrest"
    assert all(text.endswith(("\r", "\n")) for text in supervisor.output[:-1])
    assert (supervisor.folder / "log").read_text() == "ab\rüc\nrest".replace("\r", "\n")


def test_output_comes_with_the_time_at_which_it_was_written(supervisor: Supervisor) -> None:
    """Linux 6.15 and later keep no time of writing to a pipe."""
    supervisor.python("import time\nfor n in range(2): print(n, flush=True); time.sleep(1)")
    assert supervisor.moments[-1] - supervisor.moments[0] > 0.5 and supervisor.moments[-1] <= time.time()


@pytest.mark.process
def test_what_is_printed_while_the_reader_gets_no_processor_is_read(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found silence, and goes on after the program has printed and ended."""
    wait, pollers = select.poll, queue.SimpleQueue[threading.Thread]()

    class Poll:
        def __init__(self) -> None:
            self._poll, self._is_late = wait(), False
            self.register = self._poll.register

        def poll(self, milliseconds: int) -> list[tuple[int, int]]:
            if self._is_late:
                return self._poll.poll(milliseconds)
            self._is_late, poller = True, pollers.get()
            (supervisor.folder / "silent").touch()
            poller.join()  # it ends with the program
            return []

    monkeypatch.setattr(select, "poll", Poll)
    code = "import os, time\nwhile not os.path.exists('silent'): time.sleep(0.01)\nprint('the last row')"
    ended = supervisor.python(code, poll_seconds=0.01, poll=lambda: pollers.put(threading.current_thread()))
    assert (ended, supervisor.output) == (ProgramExit(0), ["the last row\n"])


def test_a_signal_reaches_the_complete_group(supervisor: Supervisor) -> None:
    # The launcher dies of the signal at once, as `accelerate launch` does; its worker saves.
    launcher = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {SAVES!r}, 'worker'])\ntime.sleep(60)"
    )

    ended = supervisor.python(launcher, send=(signal.SIGTERM,))

    assert (ended.exit_code, ended.stopped_by) == (143, "SIGTERM")
    assert (supervisor.folder / "saved-worker").exists()


@pytest.mark.process
def test_workers_in_sessions_of_their_own_are_killed_with_their_launcher(supervisor: Supervisor) -> None:
    launcher = (
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(40):\n"
        "    print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )

    supervisor.python(launcher, send=(signal.SIGTERM,), grace=0.5)

    workers = "".join(supervisor.output).split()[:-1]
    assert len(workers) == 40
    assert [worker for worker in workers if _runs(worker)] == []


@pytest.mark.process
def test_a_second_ctrl_c_kills_at_once(supervisor: Supervisor) -> None:
    ended = supervisor.python(IGNORES, send=(signal.SIGINT, signal.SIGINT), grace=60.0)

    assert ended == ProgramExit(137, "SIGINT")


def test_the_deadline_stops_it(supervisor: Supervisor) -> None:
    reasons: list[str] = []

    ended = supervisor.python(SAVES, "here", deadline=3.0, on_stop=reasons.append)

    assert ended == ProgramExit(0, "the deadline")
    assert reasons == ["the deadline"]


def test_processes_that_a_program_leaves_are_ended(supervisor: Supervisor) -> None:
    leaves = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid)"

    ended = supervisor.python(leaves)

    assert ended.exit_code == 0
    assert not _runs("".join(supervisor.output).strip())


def test_a_daemon_that_holds_the_output_open_is_not_waited_for(supervisor: Supervisor) -> None:
    """This process lives on: its files, threads and handlers are as before."""
    leaves = (
        "import subprocess\nprint(subprocess.Popen({!r}, start_new_session=True).pid, end=' ', flush=True)"
    )
    prints = ["bash", "-c", "while sleep 0.1; do echo x; done"]

    def held() -> tuple[int, set[str], object]:
        names = {each.name for each in threading.enumerate() if "_send" not in each.name}
        return len(list(Path("/proc/self/fd").iterdir())), names, signal.getsignal(signal.SIGTERM)

    before = held()
    for daemon in (["sleep", "60"], prints):
        supervisor.output.clear()
        assert supervisor.python(leaves.format(daemon)).exit_code == 0 and held() == before
        with contextlib.suppress(ProcessLookupError):  # the one that prints has no reader
            os.kill(int("".join(supervisor.output).split()[0]), signal.SIGKILL)


def test_an_error_of_ours_leaves_no_program_behind(supervisor: Supervisor) -> None:
    def fail(program: Process | None) -> None:
        assert program is not None
        started.append(program)
        raise OSError("the disk is full")

    started: list[Process] = []
    with pytest.raises(OSError, match="full"):
        supervisor.python(IGNORES, on_start=fail)
    assert not lives(started[0])


@pytest.mark.process
def test_files_that_a_process_of_the_run_has_open_for_writing_are_seen(tmp_path: Path) -> None:
    """Another process must have them open."""
    code = "import sys; a = open('a.pt', 'wb'); b = open('b.pt', 'rb'); print(flush=True); sys.stdin.read()"
    (tmp_path / "b.pt").touch()
    own = {**os.environ, RUN_VARIABLE: str(tmp_path), NODE_VARIABLE: "0"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=own, **pipes) as program:
        assert program.stdout is not None
        program.stdout.readline()
        found = files_being_written(tmp_path)
        inodes = {
            name: ((tmp_path / name).stat().st_dev, (tmp_path / name).stat().st_ino)
            for name in ("a.pt", "b.pt")
        }
        program.communicate(timeout=60)
    assert found is not None and inodes["a.pt"] in found and inodes["b.pt"] not in found
    assert inodes["a.pt"] not in (files_being_written(tmp_path) or ())


# The tests of signals start processes because a signal acts on a complete process. Each signal is sent twice,
# as by a terminal and by a parent that passes it on.
OF_USERS = (signal.SIGUSR1, signal.SIGUSR2)
ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, *OF_USERS)
MODES = ("catches", "does not", "ignores")
# A second signal that arrives after the end of the program is of no matter to this command.
COMMAND = """
import dataclasses, json, signal, sys
from pathlib import Path
from trainyard.config.secret_filter import SecretFilter
from trainyard.gateways.supervised_process import Supervision, run_supervised
folder = Path(sys.argv[1])
received = []
for number in ("INT", "TERM", "QUIT", "HUP", "USR1", "USR2"):
    if signal.getsignal(signal.Signals["SIG" + number]) is not signal.SIG_IGN:
        signal.signal(signal.Signals["SIG" + number], lambda *_: None)
ended = run_supervised(
    sys.argv[2:], lambda text, moment: None, log=folder / "log", environment={}, directory=folder,
    secrets=SecretFilter(),
    supervision=Supervision(
        grace=float((folder / "grace").read_text()),
        on_signal=received.append,
        poll=(folder / "polled").touch,
        poll_seconds=0.05,
    ),
)
(folder / "end.json").write_text(json.dumps({**dataclasses.asdict(ended), "received": received}))
"""
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
number, mode = int(sys.argv[1]), sys.argv[2]
def note(got, frame):
    with open("got", "a") as file:
        file.write(signal.Signals(got).name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, note)
signal.signal(number, {"catches": note, "does not": signal.SIG_DFL, "ignores": signal.SIG_IGN}[mode])
if (number, mode) == (signal.SIGINT, "does not"):
    signal.signal(number, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
Path("pid").write_text(str(os.getpid()))
while True:
    Path("beat").touch()
    time.sleep(0.02)
"""


class Case:
    """A command and its program in a folder of their own."""

    def __init__(self, folder: Path, number: int, mode: str, *, nohup: bool = False) -> None:
        folder.mkdir()
        self.folder, self.number = folder, number
        # Only a program that gets the signal and ignores it needs to be killed soon.
        (folder / "grace").write_text("1.0" if mode == "ignores" else "60.0")
        program = (sys.executable, "-c", PROGRAM, str(int(number)), mode)
        command = [sys.executable, "-c", COMMAND, str(folder), *program]
        shell = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"] if nohup else []
        self.process = subprocess.Popen([*shell, *command], stdin=subprocess.DEVNULL, start_new_session=True)
        # A signal before the program is watched is a request to stop, whatever the program handles.
        for mark in ("pid", "polled"):
            wait_for(lambda: (folder / mark).exists() or self.process.poll() is not None, mark)  # noqa: B023
            assert self.process.poll() is None
        self.pid = int((folder / "pid").read_text() or "0") or self._pid()

    def _pid(self) -> int:
        wait_for(lambda: (self.folder / "pid").read_text(), "its id is complete")
        return int((self.folder / "pid").read_text())

    def send(self, number: int) -> None:
        for _ in range(2):
            os.kill(self.process.pid, number)

    def beats(self) -> bool:
        """Return whether the program goes on."""
        before = (self.folder / "beat").stat().st_mtime_ns
        wait_for(lambda: (self.folder / "beat").stat().st_mtime_ns != before, "the program goes on")
        return True

    def end(self) -> tuple[int, str | None, list[str], list[str]]:
        """Return the program's exit code, the cause of the end, what the program got, and the signals."""
        assert self.process.wait(90) == 0
        found: dict[str, Any] = json.loads((self.folder / "end.json").read_text())
        got = self.folder / "got"
        lines = got.read_text().split() if got.exists() else []
        return found["exit_code"], found["stopped_by"], lines, found["received"]


def expected(number: signal.Signals, mode: str) -> tuple[int, str | None, list[str], list[str]]:
    """The rule: who gets which signal, and what follows from it."""
    is_of_users = number in OF_USERS
    has_a_meaning = mode == "catches" if is_of_users else number != signal.SIGHUP
    sent = number if has_a_meaning else signal.SIGTERM
    if sent == number and mode != "catches":
        return (128 + (signal.SIGKILL if mode == "ignores" else number)), number.name, [], [number.name]
    return 0, number.name, [sent.name], [number.name]


@pytest.mark.process
def test_each_signal_reaches_each_program_and_is_the_cause_of_its_end(tmp_path: Path) -> None:
    def play(number: signal.Signals, mode: str) -> str:
        case = Case(tmp_path / f"{number.name} {mode}", number, mode)
        case.send(number)
        found, right = case.end(), expected(number, mode)
        return "" if found == right else f"{number.name}, a program that {mode} it: {found}, not {right}"

    with ThreadPoolExecutor(4) as pool:
        failures = [pool.submit(play, number, mode) for number in ASKED for mode in MODES]
    assert [text for each in failures if (text := each.result())] == []


@pytest.mark.process
def test_a_hangup_that_is_ignored_at_the_start_ends_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path / "nohup", signal.SIGHUP, "does not", nohup=True)
    case.send(signal.SIGHUP)
    os.kill(case.pid, 0)
    assert case.beats()
    case.send(signal.SIGTERM)
    assert case.end() == (0, "SIGTERM", ["SIGTERM"], ["SIGTERM"])
