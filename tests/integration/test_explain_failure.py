"""trainyard explain on the output of processes that really fail, and its command line."""

import json
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
from tests import warm_start

from trainyard.watch.failure_logs.failure_explanation import explain_logs
from trainyard.watch.failure_logs.log_text import log_of

BEGIN = "import time\nfor n in range(5): print('step', f'{n}/600 loss 2.5', flush=True)\n"
FAILING = {
    "raises": ("user-code", "raise KeyError('labels')"),
    "fills a disk": ("disk-full", "f = open('/dev/full', 'w'); f.write('x' * 100000); f.flush()"),
    "wants too much memory": ("oom-host", "bytearray(10 ** 17)"),
    "takes a port that is taken": (
        "port-in-use",
        "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); socket.socket().bind(a.getsockname())",
    ),
    "lacks a module": ("configuration", "import a_module_that_nobody_has"),
    "has a wrong flag": (
        "configuration",
        "import argparse; argparse.ArgumentParser().parse_args(['--fast'])",
    ),
    "is interrupted": (  # a shell's background jobs ignore SIGINT
        "cancelled",
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    ),
    "kills itself": ("unknown", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "is terminated": ("unknown", "import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"),
    "crashes": ("unknown", "import ctypes; ctypes.string_at(0)"),
    "ends with a code": ("unknown", "raise SystemExit(3)"),
    "waits for a thread that is stuck": (
        "unknown",
        "import faulthandler; faulthandler.dump_traceback_later(1, exit=True); time.sleep(30)",
    ),
    "meets a refused port": (
        "network",
        "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); place = a.getsockname(); a.close()\n"
        "socket.create_connection(place)",
    ),
    "prints a failure that it survives": (
        "unknown",
        "print('OSError: [Errno 28] No space left on device')\n"
        "for n in range(5, 10): print(f'step {n}/600 loss 2.5', flush=True)\nraise SystemExit(1)",
    ),
}


def explain(*words: str | Path, stdin: str | None = None, code: int = 0) -> str:
    line = [sys.executable, "-m", "trainyard", "explain", *words]
    done = warm_start.run(line, timeout=120, input_text=stdin)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize(("klass", "program"), FAILING.values(), ids=FAILING)
def test_a_process_that_fails_is_explained(klass: str, program: str, tmp_path: Path) -> None:
    assert_explained(klass, [sys.executable, "-c", BEGIN + program], tmp_path)


OF_TORCH = {
    "a gradient is not finite": (
        "nan",
        "import torch; torch.autograd.set_detect_anomaly(True)\n"
        "x = torch.zeros(1, requires_grad=True); (x.sqrt() * 0).backward()",
    ),
    "a worker of the loader is killed": (
        "data-loader",
        "import os, signal; from torch.utils.data import DataLoader\n"
        "class Data:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, n): os.kill(os.getpid(), signal.SIGKILL)\n"
        "list(DataLoader(Data(), num_workers=1))",
    ),
    "a tensor that no memory holds": ("oom-host", "import torch; torch.empty(10 ** 15)"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("klass", "program"), OF_TORCH.values(), ids=OF_TORCH)
def test_a_process_that_fails_in_torch_is_explained(klass: str, program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BEGIN + program)
    assert_explained(klass, [sys.executable, "program.py"], tmp_path)


def assert_explained(klass: str, command: list[str], folder: Path) -> None:
    log = folder / "the log"
    with log.open("w") as file, warm_start.Popen(command, stdout=file, stderr=file, cwd=folder) as ended:
        ended.wait(240)
    assert ended.returncode != 0
    found = json.loads(explain("--log", log, "--exit-code", str(ended.returncode), "--json"))
    assert found["class"] == klass, (found, log.read_text())
    assert found["evidence"] and isinstance(found["retryable"], bool)
    assert_never_another_class(klass, log.read_text(), ended.returncode)


def assert_never_another_class(klass: str, text: str, code: int) -> None:
    """Require the class behind prefixes, in colour, mixed with another rank's lines; if cut, it or none."""
    lines = text.splitlines()
    steps = [f"[rank1]: step {n}/600 loss 2.5" for n in range(5)]
    pairs = zip_longest((f"[rank0]: {line}" for line in lines), steps)
    mixed = [line for pair in pairs for line in pair if line]
    for prefix in ("[pod/llama-0/pytorch] ", "2026-11-20T12:00:00.1234567Z ", "trainer-1  | ", "[rank0]: "):
        assert explained([prefix + line for line in lines], code) == klass, prefix
    assert explained([f"\x1b[31m{line}\x1b[0m" for line in lines], code) == klass
    assert explained(mixed, code) == klass
    for cut in (lines[len(lines) // 2 :], lines[: len(lines) // 2], lines[-1:]):
        assert explained(cut, code) in (klass, "unknown"), cut


def explained(lines: list[str], code: int) -> str:
    return str(explain_logs([log_of("log", "\n".join(lines))], code).klass)


PARALLEL = """
import os, sys, time, datetime, torch, torch.distributed as dist
mode, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo")
group = dist.new_group(timeout=datetime.timedelta(seconds=4 if mode == "hangs" else 200))
for step in range(3):
    dist.all_reduce(torch.ones(1), group=group); print(f"step {step} loss 2.5", flush=True)
if rank == 1:
    if mode == "raises": raise IndexError("token 50257 is out of range")
    if mode == "hangs": time.sleep(20)
dist.all_reduce(torch.ones(1), group=group)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "klass"), [("raises", "user-code"), ("hangs", "hang")])
def test_one_rank_of_a_parallel_training_fails(mode: str, klass: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PARALLEL)
    log = tmp_path / "both.log"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    with (
        log.open("w") as file,
        warm_start.Popen([*launch, str(program), mode], stdout=file, stderr=file) as ended,
    ):
        ended.wait(120)
    assert ended.returncode != 0
    found = json.loads(explain("--log", log, "--exit-code", str(ended.returncode), "--json"))
    assert found["class"] == klass, (found, log.read_text()[-6000:])


def test_what_people_read_begins_with_the_class_and_shows_the_line(tmp_path: Path) -> None:
    log = tmp_path / "rank 1.log"
    log.write_text("step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    first, *others = explain("--log", log).splitlines()
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert first == f"oom-gpu: {error}"
    assert others[0].startswith("  fix")
    assert others[1] == "  retry: no; it would fail again in the same way (from the log)"
    assert others[2] == f"  {log}:2: {error}"


@pytest.mark.slow
def test_a_red_run_of_any_program_has_its_root_error_wherever_people_look(tmp_path: Path) -> None:
    """The job summary, Slack's message, the terminal and `explain` show the root error, once each."""
    from trainyard.commands.explain import explanation_lines, failed_run
    from trainyard.report.dashboard.markdown import markdown_report
    from trainyard.report.dashboard.text import text_report
    from trainyard.report.facts.run_facts import read_facts
    from trainyard.report.slack.slack_events import FAILED
    from trainyard.report.slack.slack_message import Surroundings, slack_message

    klass, body = FAILING["fills a disk"]
    (tmp_path / "train.py").write_text(f'print(\'{{"step": 1, "loss": 1.0}}\', flush=True)\n{body}\n')
    command = json.dumps([sys.executable, "train.py"])
    (tmp_path / "own.yaml").write_text(f"recipe: command\nprogram: {{command: {command}, data: []}}\n")
    words = ["--config", "own.yaml", "--run-dir", "runs/one"]
    done = warm_start.run([sys.executable, "-m", "trainyard", "train", *words], cwd=tmp_path, timeout=120)
    assert done.returncode == 1, done.stderr
    run = tmp_path / "runs" / "one"
    found, facts = failed_run(run).explain(), read_facts(run)
    assert found.klass == klass
    slack = json.dumps(slack_message(FAILED, facts, Surroundings("one")).blocks, ensure_ascii=False)
    report = text_report(facts)
    assert report.count("; then: ") <= 2, "what to do, once for each thing"
    for text in (markdown_report(facts), slack, done.stderr, report, "\n".join(explanation_lines(found))):
        plain = text.replace("\\", "")
        assert found.root.partition(" (")[0] in plain, text
        assert text is done.stderr or plain.count(found.root.partition(" (")[0]) <= 2, text
