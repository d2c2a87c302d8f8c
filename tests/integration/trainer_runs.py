"""Runs of the shipped trainer in processes of their own, and what they wrote. CPU, gloo."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import warm_start

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
CONFIG = f"""
extends: {REPOSITORY_ROOT}/configs/smoke.yaml
model:
  device: cpu
  architecture: {{hidden_size: 32, intermediate_size: 48, num_layers: 2, vocab_size: 257}}
training: {{batch_size: 4, warmup_steps: 3, validation_batches: 2}}
compute: {{threads: 1}}
data: {{sequence_length: 16}}
monitoring: {{tensorboard: false}}
"""


class TrainerRuns:
    """Starts the trainer on a small text; `settings` are those of all runs."""

    def __init__(self, folder: Path, *settings: str, config: str = CONFIG) -> None:
        self.folder = folder
        text = "".join(f"line {i} of a text with {i % 13} patterns\n" for i in range(2000))
        (folder / "train.txt").write_text(text)
        (folder / "validation.txt").write_text(text[:3000])
        (folder / "config.yaml").write_text(config)
        names = {"train_path": "train.txt", "validation_path": "validation.txt"}
        names["prepared_directory"] = "prepared"
        self._settings = (*(f"data.{key}={folder / name}" for key, name in names.items()), *settings)

    def start(
        self,
        name: str,
        *settings: str,
        processes: int = 1,
        more: tuple[str, ...] = (),
        launcher: tuple[str, ...] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> "subprocess.Popen[str]":
        """Train in `processes` processes of the script's launcher, or in the one that `launcher` starts."""
        command = [sys.executable, *launcher, str(REPOSITORY_ROOT / "scripts" / "train.py")]
        command += ["--config", str(self.folder / "config.yaml"), "--run-dir", str(self.folder / name), *more]
        command += [word for each in (*self._settings, *settings) for word in ("--set", each)]
        command += ["--nproc-per-node", str(processes)] if processes > 1 else []
        # A session of its own, so that a signal to its group reaches nothing else.
        apart: dict[str, Any] = {"cwd": REPOSITORY_ROOT, "start_new_session": True}
        return warm_start.start(command, env={**environment, "CI": "true"}, **apart)

    def finish(
        self, name: str, *settings: str, processes: int = 1, more: tuple[str, ...] = ()
    ) -> tuple[int, str]:
        """Return the exit code and the errors."""
        return end_of(self.start(name, *settings, processes=processes, more=more))

    def succeed(self, name: str, *settings: str, processes: int = 1) -> None:
        """Train to the end, which must be exit code 0."""
        code, errors = self.finish(name, *settings, processes=processes)
        assert code == 0, errors

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self._lines(name, "metrics.jsonl")

    def events(self, name: str) -> list[dict[str, Any]]:
        return self._lines(name, "events.jsonl")

    def _lines(self, name: str, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name / file).read_text().splitlines()]

    def record(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / name / "run.json").read_text())
        return found

    def outcome(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.record(name)["outcome"]
        return found

    def wait_for_row(self, name: str, process: "subprocess.Popen[str]") -> None:
        """Wait until the process writes its first row, or ends."""
        path = self.folder / name / "metrics.jsonl"
        before = path.stat().st_mtime_ns if path.exists() else 0
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if path.exists() and path.stat().st_size and path.stat().st_mtime_ns != before:
                return
            time.sleep(0.005)


def end_of(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for the process, and return its exit code and its errors."""
    _, errors = process.communicate(timeout=240)
    return process.returncode, errors
