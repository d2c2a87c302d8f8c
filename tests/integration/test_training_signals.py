"""A training process that is killed, stopped or runs out of time resumes equal to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
STEPS = 40
CONFIG = f"""
extends: {REPOSITORY_ROOT}/configs/smoke.yaml
model:
  device: cpu
  architecture: {{hidden_size: 32, intermediate_size: 48, num_layers: 2, max_position_embeddings: 32}}
training: {{batch_size: 4, max_steps: {STEPS}, warmup_steps: 3, validation_steps: 7, validation_batches: 2}}
compute: {{threads: 1}}
data: {{sequence_length: 16}}
checkpointing: {{save_steps: 3, keep_last: 2}}
monitoring: {{tensorboard: false}}
"""


class Training:
    """Runs `trainyard train` in processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        text = "".join(f"line {i} of a text with {i % 13} patterns\n" for i in range(2000))
        (folder / "train.txt").write_text(text)
        (folder / "validation.txt").write_text(text[:3000])
        self.config = folder / "config.yaml"
        self.config.write_text(CONFIG)

    def start(
        self, name: str, *arguments: str, popen: type[subprocess.Popen[str]] = warm_start.Popen
    ) -> "subprocess.Popen[str]":
        overrides = [
            f"data.train_path={self.folder}/train.txt",
            f"data.validation_path={self.folder}/validation.txt",
            f"data.prepared_directory={self.folder}/prepared",
        ]
        command = [
            sys.executable,
            str(REPOSITORY_ROOT / "scripts" / "train.py"),
            "--config",
            str(self.config),
        ]
        command += [word for override in overrides for word in ("--set", override)]
        command += ["--run-dir", str(self.folder / name), *arguments]
        environment = {**os.environ, "CI": "true"}
        # A session of its own, so that a signal to its group reaches nothing else.
        return popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY_ROOT,
            env=environment,
            start_new_session=True,
        )

    def finish(self, name: str, *arguments: str) -> tuple[int, str]:
        return self.end_of(self.start(name, *arguments))

    def end_of(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        _, errors = process.communicate(timeout=240)
        return process.returncode, errors

    def outcome(self, name: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / name / "run.json").read_text())["outcome"]
        return result

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def numbers(self, name: str) -> list[tuple[Any, ...]]:
        return [(row["step"], row["loss"], row["grad_norm"], row.get("val_loss")) for row in self.rows(name)]

    def wait_for_row(self, name: str, process: "subprocess.Popen[str]") -> None:
        """Wait until the process writes its first row, or ends."""
        path = self.folder / name / "metrics.jsonl"
        before = path.stat().st_mtime_ns if path.exists() else 0
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if path.exists() and path.stat().st_size and path.stat().st_mtime_ns != before:
                return
            time.sleep(0.005)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    result = Training(tmp_path_factory.mktemp("training"))
    # Only this run starts Python and torch cold; all others are compared with it.
    code, errors = result.end_of(result.start("whole", popen=subprocess.Popen))
    assert code == 0, errors
    return result


@pytest.mark.slow
def test_a_run_killed_at_random_moments_and_resumed_is_bitwise_equal(training: Training) -> None:
    moments = random.Random(20261120)
    deaths = 0
    for number in range(10):
        mode = ("async", "sync")[number % 2]
        process = training.start("killed", "--resume", "auto", "--set", f"checkpointing.mode={mode}")
        if deaths < 2:
            training.wait_for_row("killed", process)
            time.sleep(moments.uniform(0, 0.25))
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=240)
        deaths += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
    assert deaths >= 1
    assert training.outcome("killed")["state_sha256"] == training.outcome("whole")["state_sha256"]
    assert training.numbers("killed") == training.numbers("whole")


@pytest.mark.slow
def test_a_signal_ends_the_step_and_saves(training: Training) -> None:
    """A signal reaches the group twice, as from a terminal and a parent; after Ctrl-C the code is 130."""
    failures: list[tuple[object, ...]] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # the others have the handler of SIGTERM
        name, code = number.name, 130 if number == signal.SIGINT else 75
        mode = "async" if number == signal.SIGTERM else "sync"
        process = training.start(name, "--set", f"checkpointing.mode={mode}")
        training.wait_for_row(name, process)
        for _ in range(2):
            os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=120)
        outcome = training.outcome(name)
        shown = (
            all(text in errors for text in ("Stopped at step", "--resume auto")) and "Traceback" not in errors
        )
        on_record = (outcome["status"], outcome["exit_code"], number.name in outcome["reason"])
        if (process.returncode, shown, on_record) != (code, True, ("stopped", code, True)):
            failures.append((name, process.returncode, outcome, errors))
        elif training.finish(name)[0]:
            failures.append((name, "does not resume"))
        elif training.outcome(name)["state_sha256"] != training.outcome("whole")["state_sha256"]:
            failures.append((name, "other weights"))
    assert failures == []


@pytest.mark.slow
def test_a_signal_before_the_first_step_still_leaves_a_checkpoint(training: Training) -> None:
    process = training.start("early")
    deadline = time.monotonic() + 240
    # The signal handlers are in place once the log's first line, or the run directory, can be seen.
    while not (training.folder / "early" / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert list((training.folder / "early" / "checkpoints").glob("step-*/manifest.json"))


@pytest.mark.slow
def test_the_deadline_counts_from_the_start_of_the_job_and_the_workflow_is_told(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = training.folder / "output"
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    monkeypatch.setenv("TRAINYARD_JOB_STARTED", str(int(time.time()) - 3600))
    code, errors = training.finish("job", "--deadline", "1h")
    assert code == 75, errors
    assert "the deadline is near" in errors
    assert training.outcome("job")["steps"] == 1
    assert output.read_text().splitlines()[0].startswith("exit_code<<")
    assert output.read_text().splitlines()[1:2] == ["75"]
    assert training.finish("job", "--deadline", "2h")[0] == 0
    assert output.read_text().splitlines()[-2] == "0"
    assert training.outcome("job")["state_sha256"] == training.outcome("whole")["state_sha256"]


@pytest.mark.slow
def test_what_a_named_checkpoint_began_goes_on_with_its_own_by_the_same_command(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB_STARTED", str(int(time.time()) - 3600))
    assert training.finish("parent", "--deadline", "1h")[0] == 75
    command = ("child", "--resume", str(training.folder / "parent" / "checkpoints" / "step-00000001"))
    assert training.finish(*command, "--deadline", "1h")[0] == 75
    code, errors = training.finish(*command)
    assert code == 0, errors
    events = (training.folder / "child" / "events.jsonl").read_text().splitlines()
    resumed = [event["step"] for event in map(json.loads, events) if event["event"] == "resumed"]
    assert resumed == [1, 2]
    assert training.outcome("child")["state_sha256"] == training.outcome("whole")["state_sha256"]
