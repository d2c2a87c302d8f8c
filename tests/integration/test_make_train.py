"""`make train` as a newcomer runs it: one command on a clone, and the same command again after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
ENVIRONMENT = Path(sys.executable).parent.parent
SETTINGS = (
    "training.max_steps=20 training.batch_size=4 training.validation_steps=10 training.validation_batches=2 "
    "checkpointing.save_steps=5 data.sequence_length=64 compute.threads=1"
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git knows of this tree, in a repository of its own with one commit."""
    folder = tmp_path_factory.mktemp("clone") / "trainyard"
    folder.mkdir()
    command = ["git", "-C", str(HOUSE), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(lambda name: name and (HOUSE / name).is_file(), listed):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((HOUSE / name).read_bytes())
        (folder / name).chmod((HOUSE / name).stat().st_mode)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "Clone"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def make(clone: Path, target: str, **variables: str) -> "subprocess.Popen[str]":
    """Start `make TARGET` with the environment that runs these tests taken as installed."""
    installed = ENVIRONMENT / "training.stamp"
    if not installed.exists():
        # Make would bring this environment to the training lock, without the tools of the tests.
        pytest.skip(f"{ENVIRONMENT} was not made by make install-dev, and make train would change it")
    words = ["make", target, f"VENV={ENVIRONMENT}", "-o", str(installed), f"SET={SETTINGS}"]
    words += [f"{name}={value}" for name, value in variables.items()]
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "GITHUB_ACTIONS", "TRAINYARD_RUN_ID"}
    environment = {key: value for key, value in os.environ.items() if key not in outer}
    environment |= {"PYTHONPATH": str(clone / "src"), "NO_COLOR": "1"}
    return subprocess.Popen(
        words, cwd=clone, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def output_of(process: "subprocess.Popen[str]") -> str:
    text, _ = process.communicate(timeout=300)
    return text


@pytest.mark.slow
def test_one_command_trains_stores_and_proves_a_model(clone: Path) -> None:
    process = make(clone, "train")
    text = output_of(process)
    assert process.returncode == 0, text
    for line in (
        "environment:",
        "data:",
        "20 steps",
        "artifacts:",
        "trained: 20 of 20 steps",
        "stored:",
        "(clean)",
    ):
        assert line in text
    (run,) = (clone / "runs").iterdir()
    assert json.loads((run / "report" / "proof.json").read_text())["proven"] is True
    assert (run / "report" / "index.html").is_file()
    assert (clone / "trainyard-store" / "manifests" / "run-1-manifest.json").is_file()
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""


@pytest.mark.slow
def test_a_killed_make_train_goes_on_with_make_resume_to_the_same_weights(
    clone: Path, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/store"
    whole = make(clone, "train", RUNS=f"{tmp_path}/whole", STORE=store)
    text = output_of(whole)
    assert whole.returncode == 0, text
    killed = make(clone, "train", RUNS=f"{tmp_path}/killed", STORE=store)
    deadline = time.monotonic() + 120
    while (
        not list(tmp_path.glob("killed/*/checkpoints/step-*/manifest.json")) and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    output_of(killed)
    resumed = make(clone, "resume", RUNS=f"{tmp_path}/killed", STORE=store)
    text = output_of(resumed)
    assert resumed.returncode == 0, text
    outcomes = []
    for name in ("whole", "killed"):
        (path,) = tmp_path.glob(f"{name}/*/run.json")
        outcomes.append(json.loads(path.read_text())["outcome"])
    assert outcomes[0]["state_sha256"] == outcomes[1]["state_sha256"]
    assert "run-2" in text
