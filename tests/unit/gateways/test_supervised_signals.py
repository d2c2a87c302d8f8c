"""Each signal to a command that supervises a program: what the program gets, and how its end is reported.

They start processes because a signal acts on a complete process. Each signal is sent twice, as by a terminal
and by a parent that passes it on.
"""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_for

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
