"""A command is started again while it trains, or after it was killed: the second start finds what trains.

Real processes: the command lives, or was killed, and its program lives, is dead or has left a daemon. Another
host is a namespace of process ids and host names.
"""

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import warm_start
from tests.waiting import wait_for

from trainyard.gateways.process_tree import Process, find_process, processes_of_run

PROGRAM = """
import json, os, subprocess, sys, time
from pathlib import Path
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)  # as trackers start their service
Path("daemon.new").write_text(str(daemon.pid))
Path("daemon.new").rename("daemon")
Path("program.new").write_text(str(os.getpid()))
Path("program.new").rename("program")
for step in range(1, 6001):
    with open("log.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    time.sleep(0.1)
"""
SECOND = """
import sys
from pathlib import Path
from trainyard.command.handler import exit_code_of
from trainyard.command.output import configure_logging
from trainyard.program_training import require_idle, take_over
def main():
    configure_logging(None)
    if "--takeover" in sys.argv:
        take_over(Path("run"))
    require_idle(Path("run"))
    return 0
sys.exit(exit_code_of(main))
"""
UNSHARED = ("unshare", "--pid", "--fork", "--mount-proc", "--uts")
ELSEWHERE = (*UNSHARED, "sh", "-c", 'hostname other; exec "$@"', "sh")


def process_of(pid: int) -> Process:
    found = find_process(pid)
    assert found is not None
    return found


def runs(pid: int) -> bool:
    return find_process(pid) is not None


class FirstStart:
    """A run whose command is killed, in a folder of its own."""

    def __init__(self, folder: Path, command: str = "train") -> None:
        folder.mkdir()
        self.folder, self.lock = folder, folder / "run" / ".lock"
        (folder / "program.py").write_text(PROGRAM)
        (folder / "second.py").write_text(SECOND)
        (folder / "trainyard.yaml").write_text(
            # With -u the program starts cold, so that the kernel shows its environment.
            f"recipe: command\nprogram: {{command: [{sys.executable}, -u, program.py]}}\n"
        )
        words = ("-m", "trainyard", command, "--config", "trainyard.yaml", "--run-dir", "run")
        with (folder / "output").open("w") as output:
            self.command = warm_start.Popen(
                [sys.executable, *words], cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
        wait_for(lambda: self._is_ready() or self.command.poll() is not None, "the program starts")
        assert self.command.poll() is None, (folder / "output").read_text()
        self.program, self.daemon = (int((folder / name).read_text()) for name in ("program", "daemon"))

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.lock.read_text())
            return bool(found["session"] == int((self.folder / "program").read_text()))
        return False

    def kill(self, left: str) -> None:
        """Kill the command alone, as the kernel does where memory is short, and what is not `left`."""
        self.command.kill()
        self.command.wait()
        if left != "the program":
            os.killpg(self.program, signal.SIGKILL)
            wait_for(lambda: not runs(self.program), "the program ends")
        if left == "nothing":
            os.kill(self.daemon, signal.SIGKILL)

    def start_again(self, *options: str, elsewhere: bool = False) -> "subprocess.CompletedProcess[str]":
        place = ELSEWHERE if elsewhere else ()
        command = [*place, sys.executable, str(self.folder / "second.py"), *options]
        return warm_start.run(command, cwd=self.folder, timeout=120)

    def end(self) -> None:
        for pid in (self.command.pid, self.program, self.daemon):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.command.wait()


def faults_of(first: FirstStart, left: str, *, is_killed: bool, has_hosts: bool) -> Iterator[str]:
    """Yield where the second starts differ from the rule."""
    if is_killed:
        first.kill(left)
    trains = left == "the program"
    named = f"process {first.program if is_killed else first.command.pid}"
    done = first.start_again()
    is_named = f"{named} " in done.stderr and " since 20" in done.stderr
    if (done.returncode, is_named) != (2 * trains, trains):
        yield f"plain: {done}"
    if (f"has left process {first.daemon} " in done.stderr) != (left == "a daemon"):
        yield f"the daemon: {done}"
    if has_hosts:  # the lock shows a command on every host, a program only on its own
        for options in (("--takeover",),) if is_killed else ((), ("--takeover",)):
            done = first.start_again(*options, elsewhere=True)
            if (done.returncode, "on " in done.stderr) != (2 * (not is_killed), not is_killed):
                yield f"on another host {options}: {done}"
    if runs(first.program) is not trains:
        yield "the program was stopped unasked"
    done = first.start_again("--takeover")
    if done.returncode or runs(first.program) or (trains and "stopping process" not in done.stderr):
        yield f"takeover: {done}"
    if runs(first.daemon) is not (left != "nothing"):
        yield "a daemon was stopped"


@pytest.mark.slow
def test_a_second_start_says_what_trains_and_stops_it_only_when_asked(tmp_path: Path) -> None:
    has_hosts = subprocess.run([*ELSEWHERE, "true"], capture_output=True, check=False).returncode == 0
    cases = (("the program", False), ("the program", True), ("nothing", True), ("a daemon", True))

    def play(left: str, is_killed: bool) -> list[str]:
        first = FirstStart(tmp_path / f"{is_killed}-{left}".replace(" ", "-"))
        try:
            found = faults_of(first, left, is_killed=is_killed, has_hosts=has_hosts)
            return [f"{left} left, killed {is_killed}: {each}" for each in found]
        finally:
            first.end()

    with ThreadPoolExecutor(2) as pool:
        assert [fault for each in pool.map(lambda case: play(*case), cases) for fault in each] == []


@pytest.mark.slow
def test_the_pipeline_stops_what_trains_and_resumes(tmp_path: Path) -> None:
    """Nothing but a claim is stored of a run without checkpoints whose command was killed.

    The pipeline, the supervisor and the holder of the lock are one process: the program outlives all three.
    """
    first = FirstStart(tmp_path / "first", "run")
    run, store = first.folder / "run", first.folder / "trainyard-store"
    try:
        first.kill("the program")
        words = [sys.executable, "-m", "trainyard", "run", "--run-dir", "run"]
        refused = warm_start.run(words, cwd=first.folder, timeout=120)
        assert (refused.returncode, runs(first.program)) == (2, True), refused.stderr
        assert "--takeover" in refused.stderr
        assert "outcome" not in json.loads((run / "run.json").read_text())
        assert [each.name for each in (store / "run-1").iterdir()] == ["identity.json"], "its claim alone"
        (first.folder / "program.py").write_text("print('step 1: loss 1.0')\n")
        warm_start.run([*words, "--takeover"], cwd=first.folder, timeout=120)
        assert not runs(first.program)
        assert json.loads((run / "run.json").read_text())["outcome"]["status"] == "succeeded"
    finally:
        first.end()


HOLDS = """
import mmap, os, sys, time
kind = sys.argv[1]
if kind == "torch":
    file = open("libtorch_cpu.so", "r+b")
    held = mmap.mmap(file.fileno(), 0)
elif kind != "nothing":
    file = open("run.log" if kind == "logs" else "step-10.pt", "rb" if kind == "reads" else "ab")
open(f"ready-{sys.argv[2]}", "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_only_what_may_train_counts_as_the_program(tmp_path: Path) -> None:
    """Each process of a run, inside and outside the session of a living or dead leader."""
    (tmp_path / "libtorch_cpu.so").write_bytes(b"\0" * mmap.PAGESIZE)
    (tmp_path / "step-10.pt").touch()
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, name: str, **options: object) -> int:
        environment = {**os.environ, "TRAINYARD_RUN_DIR": str(tmp_path), "TRAINYARD_RUN_NODE": "1"}
        words = [sys.executable, "-c", HOLDS, kind, name]
        started.append(subprocess.Popen(words, cwd=tmp_path, env=environment, **options))  # type: ignore[call-overload]
        wait_for((tmp_path / f"ready-{name}").exists, "it starts")
        return started[-1].pid

    try:
        leader = start("nothing", "leader", start_new_session=True)
        kinds = ("torch", "writes", "reads", "logs", "nothing")
        outside = {start(kind, kind, start_new_session=True): kind for kind in kinds}
        found_leader = process_of(leader)
        head = (leader, found_leader.start)
        training = {pid for pid, kind in outside.items() if kind in ("torch", "writes")}
        for node, given, expected in (
            (1, head, {leader, *training}),
            (1, None, training),
            (1, (leader, found_leader.start + 1), training),
            (0, None, set()),
        ):
            found = processes_of_run(tmp_path, node, given)
            assert {each.pid for each in found.training} == expected
            left = set() if not node else {leader, *outside} - expected
            assert {each.pid for each in found.left} == left
        shell = ["sh", "-c", f'"{sys.executable}" -c "$0" nothing member & wait', HOLDS]
        environment = {**os.environ, "TRAINYARD_RUN_DIR": str(tmp_path), "TRAINYARD_RUN_NODE": "1"}
        started.append(subprocess.Popen(shell, cwd=tmp_path, env=environment, start_new_session=True))
        wait_for((tmp_path / "ready-member").exists, "it starts")
        found_leader = process_of(started[-1].pid)
        started[-1].kill()
        started[-1].wait()
        found = processes_of_run(tmp_path, 1, (found_leader.pid, found_leader.start))
        member = next(each for each in found.training if each.pid not in training)
        assert member.session == found_leader.pid, "a program lives although the process that led it is dead"
        os.kill(member.pid, signal.SIGKILL)
        words = ["python", "-c", "import time; time.sleep(600)", "--api-key", "8f9a7b6c5d"]
        started.append(subprocess.Popen(words, executable=sys.executable))
        wait_for(lambda: process_of(started[-1].pid).words == "python -c", "only the beginning is shown")
    finally:
        for process in started:
            process.kill()
            process.wait()
