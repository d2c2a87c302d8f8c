"""Run directories as the trainer leaves them: complete, running, killed, stopped, failed."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainyard.run.atomic_files import write_bytes_atomically, write_json_atomically
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run, write_identity, write_outcome
from trainyard.run.judged_records import digests_now
from trainyard.run.records import RecordWriter, append_event

ROOT = Path(__file__).resolve().parents[3]

START = 1_790_000_000.0
STEPS = 600
RUN_ID = "20261120-214501-7c1f"
HEX = "0123456789abcdef" * 4
SAMPLE = 'def _parse_args(self, args):\n    if not isinstance(name, str):\n        raise TypeError("`x`")'


@dataclass
class RecordedRun:
    """A run directory, with methods that train, end and prove the run."""

    layout: RunDirectory
    last_step: int = 0

    @property
    def path(self) -> Path:
        return self.layout.path

    def train(self, last_step: int = STEPS, *, gpu: bool = False) -> "RecordedRun":
        """Rows 1 … `last_step`, 0.18 s apart, validated at each 200th, saved at each 100th."""
        append_event(self.layout.events_file, "started", step=0, time=START)
        if gpu:
            hardware = {**provenance()["hardware"], "device": "cuda:0", "device_name": "NVIDIA L4"}
            record = read_run(self.layout.run_file) | {"hardware": hardware}
            write_json_atomically(self.layout.run_file, record)
        writer = RecordWriter(self.layout.metrics_file)
        for step in range(1, last_step + 1):
            writer.write(row(step) | (GPU if gpu else {}))
        writer.close()
        for step in range(100, last_step + 1, 100):
            self.save(step)
        self.last_step = last_step
        return self

    def save(self, step: int) -> None:
        path = self.layout.checkpoint(step)
        path.mkdir(parents=True)
        (path / "state.bin").write_bytes(bytes(43_100))
        moment = START + 0.18 * step
        write_manifest(path, CheckpointManifest(step, RUN_ID, moment, describe_files(path)))
        append_event(
            self.layout.events_file, "checkpoint_saved", step=step, bytes=43_100, seconds=0.011, time=moment
        )

    def end(self, status: str, exit_code: int, reason: str, **more: Any) -> "RecordedRun":
        finished = START + 0.18 * self.last_step + 1
        last = row(self.last_step)
        outcome = {
            "status": status,
            "exit_code": exit_code,
            "reason": reason,
            "steps": self.last_step,
            "first_loss": row(1)["loss"],
            "final_loss": last["loss"],
            "tokens": last["tokens"],
            "seconds": 0.18 * self.last_step,
            "finished": finished,
            **more,
        }
        write_outcome(self.layout.run_file, outcome)
        append_event(self.layout.events_file, "finished", step=self.last_step, status=status, time=finished)
        return self

    def succeed(self) -> "RecordedRun":
        digests = {"model": HEX, "optimizer": HEX}
        figures = {
            "validation_loss": 1.1853,
            "bits_per_byte": 1.71,
            "sample": SAMPLE,
            "state_sha256": digests,
        }
        return self.end("succeeded", 0, "all steps done", **figures)

    def prove(self, *, failing: str = "", after: float = 5.0) -> "RecordedRun":
        """A saved proof in which the part `failing` does not hold."""
        evidence = {
            "trained": "600 of 600 steps, every loss finite, no retries",
            "learned": "validation loss 5.56 → 1.19 (1.71 bits/byte)",
            "network": "one process: no network was used",
            "stored": "6 of 6 objects: SHA-256 equal on disk, in the store and in the manifest",
            "repeatable": "commit 0123456 (clean), lock 0123…, config 0123…, data 0123…, seed 42",
        }
        if failing:
            evidence[failing] = "5 of 6 objects verified; checkpoint-600/state.bin: SHA-256 differs"
        command = "trainyard store sync --run-dir runs/x --store file:///s --run-number 7 --once"
        parts = [
            {
                "name": name,
                "passed": name != failing,
                "evidence": text,
                "fix": command if name == failing else None,
            }
            for name, text in evidence.items()
        ]
        moment = START + 0.18 * self.last_step + after
        proof = {"proven": not failing, "parts": parts, "time": moment, "run_id": RUN_ID, "run_number": 7}
        outcome = read_run(self.layout.run_file).get("outcome", {})
        proof |= {"finished": outcome["finished"]} if outcome else {}
        proof["records"] = digests_now(self.layout)
        write_json_atomically(self.layout.report / "proof.json", proof)
        return self


GPU = {
    "gpu_memory_bytes": 22_100_000_000,
    "gpu_memory_total_bytes": 24_000_000_000,
    "gpu_memory_peak_bytes": 21_400_000_000,
    "gpu_utilization_percent": 94,
    "gpu_temperature_celsius": 72,
    "mfu": 0.583,
}


def row(step: int) -> dict[str, Any]:
    """The row that the trainer writes after `step`."""
    loss = 1.0 + 4.5565 * math.exp(-step / 90) + 0.02 * math.sin(step)
    result = {
        "step": step,
        "epoch": (step - 1) // 400 + 1,
        "loss": loss,
        "learning_rate": 3e-3 * min(1.0, step / 50) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS)),
        "grad_norm": 0.5 + 1 / step,
        "tokens": step * 4096,
        "samples": step * 16,
        "tokens_per_second": 22_755.6 + 900 * math.sin(step / 7),
        "samples_per_second": 88.89,
        "step_seconds": 0.18,
        "data_seconds": 0.0018,
        "forward_seconds": 0.054,
        "backward_seconds": 0.108,
        "optimizer_seconds": 0.0162,
        "checkpoint_seconds": 0.0,
        "time": START + 0.18 * step,
    }
    if step % 200 == 0:
        result |= {"val_loss": loss + 0.05, "val_bits_per_byte": (loss + 0.05) / math.log(2)}
    return result


@pytest.fixture
def new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], RecordedRun]:
    """Makes a run with only identity and configuration; paths in reports are relative, as in a clone."""
    return maker_of_runs(tmp_path, monkeypatch)


def maker_of_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], RecordedRun]:
    """Enter the folder, and return a function that makes runs there."""
    monkeypatch.chdir(folder)
    (folder / "scripts").symlink_to(ROOT / "scripts")

    def make() -> RecordedRun:
        layout = RunDirectory(Path("runs") / RUN_ID)
        layout.create()
        write_identity(layout.run_file, RUN_ID, provenance())
        write_bytes_atomically(layout.config_file, b"model:\n  name: smoke-llama\ntraining:\n  seed: 42\n")
        return RecordedRun(layout)

    return make


def provenance() -> dict[str, Any]:
    return {
        "created": START - 2,
        "version": "0.1.0",
        "config_file": "configs/smoke.yaml",
        "config_sha256": HEX,
        "lock_sha256": HEX,
        "seed": 42,
        "git": {"commit": HEX[:40], "dirty": False, "branch": "main"},
        "data": {
            "name": "Python 3.11 standard library",
            "fingerprint": HEX,
            "train_tokens": 24_900_000,
            "train_files": 1614,
        },
        "hardware": {
            "device": "cpu",
            "device_name": "cpu",
            "python": "3.11.7",
            "torch": "2.13.0",
            "world_size": 1,
        },
        "plan": {"steps": STEPS, "epochs": 1.5, "steps_per_epoch": 400, "parameters": 1_100_000},
    }


GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "report"


def compare_golden(name: str, text: str) -> None:
    """Compare a text with a file in tests/golden/report; TRAINYARD_WRITE_GOLDEN=1 writes it instead."""
    path = GOLDEN / name
    if os.environ.get("TRAINYARD_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
