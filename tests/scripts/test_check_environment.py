"""The check of the environment as a program, with a stand-in `nvidia-smi` first on PATH."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm_start

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_environment.py"
SMOKE = str(ROOT / "configs" / "smoke.yaml")
CRASHED = "echo 'ERR!, 580.65.06, ERR!, ERR!'"


def check(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    environment.pop("GITHUB_STEP_SUMMARY", None)  # a refusal here is none of the job that runs the tests
    line = [sys.executable, str(SCRIPT), *arguments]
    return warm_start.run(line, timeout=120, env=environment, cwd=ROOT)


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A folder whose `nvidia-smi` finds no driver, so that these tests mean the same on a GPU machine."""
    return say(
        tmp_path, "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9"
    )


def say(folder: Path, body: str) -> Path:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return folder


def test_this_environment_is_fit_to_train_on_the_cpu(driver: Path, tmp_path: Path) -> None:
    done = check(
        "--config", SMOKE, "--set", "model.device=cpu", "--run-dir", str(tmp_path / "run"), path=driver
    )
    assert done.returncode == 0, done.stderr
    assert "environment: Python 3." in done.stderr
    assert "no GPU (training on CPU)" in done.stderr
    assert done.stderr.rstrip().endswith("[ok]")
    assert done.stdout == ""
    assert not (tmp_path / "run").exists()


def test_json_gives_every_finding_on_stdout(driver: Path) -> None:
    done = check("--config", SMOKE, "--set", "model.device=cpu", "--json", path=driver)
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "ok"
    checks = [f["check"] for f in answer["findings"]]
    assert list(dict.fromkeys(checks)) == ["python", "packages", "torch", "gpu", "memory", "disk"]
    assert {f["verdict"] for f in answer["findings"]} == {"ok"}


def test_a_dead_driver_is_refused_when_a_gpu_is_asked_for(driver: Path) -> None:
    done = check("--config", SMOKE, "--set", "model.device=cuda:0", path=driver)
    assert done.returncode == 1
    assert "gpu: nvidia-smi failed (exit code 9): NVIDIA-SMI has failed" in done.stderr
    assert "  fix: " in done.stderr
    assert "1 check failed. Nothing was started." in done.stderr
    assert "Traceback" not in done.stderr


def test_in_a_workflow_a_refusal_is_the_job_summary(driver: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    environment = {
        **os.environ,
        "PATH": f"{driver}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    line = [sys.executable, str(SCRIPT), "--config", SMOKE, "--set", "model.device=cuda:0"]
    assert warm_start.run(line, env=environment, timeout=120, cwd=ROOT).returncode == 1
    assert summary.read_text().startswith("### ❌ Not started: gpu\n")


def test_a_crashed_gpu_is_refused_though_nvidia_smi_exits_with_zero(tmp_path: Path) -> None:
    done = check("--config", SMOKE, "--set", "model.device=cuda:0", path=say(tmp_path, CRASHED))
    assert done.returncode == 1
    assert "ERR!" in done.stderr


def test_with_auto_a_crashed_gpu_is_said_and_the_cpu_trains(tmp_path: Path) -> None:
    done = check("--config", SMOKE, "--json", path=say(tmp_path, CRASHED))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "degraded"
    assert "[degraded]" in done.stderr


def test_everything_that_is_wrong_is_said_in_one_go(driver: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("torch==2.1.0\nno-such-package==1.0\n")
    wide = ("--set", "checkpointing.keep_last=1000000000", "--set", "model.device=cuda:0")
    done = check("--config", SMOKE, *wide, "--lock", str(lock), path=driver)
    assert done.returncode == 1
    assert "no-such-package 1.0 missing" in done.stderr
    assert "instead of 2.1.0" in done.stderr
    assert "gpu: " in done.stderr
    assert "disk: " in done.stderr
    assert "3 checks failed" in done.stderr


def test_a_batch_that_no_machine_holds_is_refused_with_the_largest_that_fits(driver: Path) -> None:
    line = ("--config", SMOKE, "--set", "model.device=cpu")
    done = check(*line, "--set", "training.batch_size=1000000", path=driver)
    assert done.returncode == 1
    assert re.search(
        r"^memory: \S+ GB of main memory available .* but 1\d,\d{3} GB are needed", done.stderr, re.M
    )
    (size,) = re.findall(r"--set training\.batch_size=(\d+) is the largest that fits", done.stderr)
    fits = check(*line, "--set", f"training.batch_size={int(size) // 2}", path=driver)
    assert fits.returncode == 0, fits.stderr


def test_the_copy_in_a_store_that_is_a_folder_needs_room_too(driver: Path, tmp_path: Path) -> None:
    """Of a file system of 1 MB, where that may be mounted; the checkpoints of the smoke run take 2 × 9 MB."""
    disk = tmp_path / "small disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, timeout=20).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        run = tmp_path / "run"
        line = ["--config", SMOKE, "--set", "model.device=cpu", "--run-dir", str(run)]
        line += ["--store", f"{disk.as_uri()}/store"]
        done = check(*line, path=driver)
        assert done.returncode == 1
        assert re.search(
            rf"^disk: 1.0 MB free at {disk}/store, but \d\d MB are needed \(the stored", done.stderr, re.M
        )
        # Of a run that was begun some may be stored already: nothing is refused.
        run.mkdir()
        (run / "run.json").write_text("{}")
        assert check(*line, path=driver).returncode == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=20)


def test_a_lock_that_is_not_there_is_a_usage_error(driver: Path) -> None:
    done = check("--config", SMOKE, "--lock", "/no/such/lock.txt", path=driver)
    assert done.returncode == 2
    assert "/no/such/lock.txt" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_configuration_is_a_usage_error(driver: Path) -> None:
    done = check("--config", SMOKE, "--set", "training.max_step=5", path=driver)
    assert done.returncode == 2
    assert "max_steps" in done.stderr
    assert "Traceback" not in done.stderr
