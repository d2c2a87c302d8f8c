"""Sweeps that really train: one that is killed and resumed, failures, pruning, and a workflow's matrix."""

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.command_lines.grounds import CONFIG

from trainyard.commands import run_command
from trainyard.errors import ConfigError
from trainyard.run.run_lock import is_locked, last_holder

if importlib.util.find_spec("optuna") is None:
    pytest.skip("optuna is not installed (requirements-development.txt has it)", allow_module_level=True)

PATIENCE_SECONDS = 120
PROGRAM = """
import sys, time
import trainyard
rate = float(sys.argv[1])
trainyard.begin(0, 6)
for step in range(1, 7):
    trainyard.log(step=step, loss=rate / step, val_loss=rate / step)
    if rate == 50 and step == 3:
        time.sleep(60)  # until it is stopped as worse than the others
if rate == 1 or rate > 99:
    sys.exit("this rate is never good")
"""
"""A training program of somebody else, with a setting in its command line."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a sweep, with the configuration of a tiny training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    for name in ("a", "b"):
        (tmp_path / "corpus" / f"{name}.txt").write_text(f"the {name} sat on the mat.\n" * 50)
    (tmp_path / "config.yaml").write_text(
        CONFIG + "checkpointing: {save_steps: 4}\nmonitoring: {log_steps: 1}\n"
    )
    (tmp_path / "program.py").write_text(PROGRAM)
    words = json.dumps([sys.executable, "program.py", "{training.seed}"])
    program = f"{{command: {words}, data: []}}"
    (tmp_path / "program.yaml").write_text(f"recipe: command\nprogram: {program}\n")
    return tmp_path


def facts(words: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Run `trainyard sweep … --json`; return its exit code and what it prints."""
    code = run_command(["sweep", *shlex.split(words), "--json"])
    return code, json.loads(capfd.readouterr().out)


def events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.slow
def test_a_sweep_that_is_killed_in_its_second_training_resumes_there(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    space = ["--space", "training.learning_rate=log:1e-4..1e-2", "--space", "training.batch_size=2,4"]
    words = ["sweep", "swept", "--config", "config.yaml", *space, "--trials", "3"]
    # Long enough that the second training is killed before its end.
    words += ["--set", "training.max_steps=400", "--set", "checkpointing.save_steps=20"]
    sweep = subprocess.Popen([sys.executable, "-m", "trainyard", *words], stderr=subprocess.DEVNULL)
    second = folder / "swept" / "trial-0001"
    wait_until(lambda: any((second / "checkpoints").glob("step-*/manifest.json")))
    trainer = last_holder(second)
    assert trainer is not None
    for process in (sweep.pid, trainer.pid):
        os.kill(process, signal.SIGKILL)
    sweep.wait()
    wait_until(lambda: not is_locked(second))
    first = (folder / "swept" / "trial-0000" / "run.json").read_bytes()

    code, found = facts("swept", capfd)
    assert code == 0
    assert [trial["state"] for trial in found["trials"]] == ["done"] * 3
    assert (folder / "swept" / "trial-0000" / "run.json").read_bytes() == first, "it was not trained again"
    assert "resumed" in events(second)
    values = [trial["value"] for trial in found["trials"]]
    assert values == sorted(values)
    assert found["best"] == found["trials"][0]["trial"]
    page = (folder / "swept" / "report.html").read_text()
    assert all(f"swept-000{number}" in page for number in range(3))

    # More trials of the same sweep; the ones that ended stay.
    code, more = facts("swept --trials 4", capfd)
    assert (code, len(more["trials"])) == (0, 4)
    assert [trial for trial in more["trials"] if trial["trial"] != 3] == found["trials"]


def test_failed_and_worse_trainings_are_no_best_ones(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "swept --config program.yaml --space training.seed=2,3,4,5,1,50 --sampler grid --prune"
    code, found = facts(words, capfd)
    states = {trial["settings"]["training.seed"]: trial["state"] for trial in found["trials"]}
    assert code == 0
    assert states == {"2": "done", "3": "done", "4": "done", "5": "done", "1": "failed", "50": "pruned"}
    assert found["trials"][0]["value"] == pytest.approx(2 / 6)
    (failed,) = [trial for trial in found["trials"] if trial["state"] == "failed"]
    assert "exit code 1" in failed["reason"] or "this rate is never good" in failed["reason"]
    assert found["next"].endswith("--set training.seed=2")


def test_a_sweep_in_which_everything_fails_ends_early(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = "swept --config program.yaml --space training.seed=101,102,103,104,105,106 --sampler grid"
    assert run_command(["sweep", *shlex.split(words), "--json"]) == 1
    printed = capfd.readouterr()
    assert "every trial failed, so no further one was started" in printed.err
    found = json.loads(printed.out)
    assert [trial["state"] for trial in found["trials"]] == ["failed"] * 3 + ["waiting"] * 3
    assert "best" not in found


def test_a_deadline_stops_the_sweep_with_75(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "swept --config program.yaml --space training.seed=50 --sampler grid --deadline 4s"
    started = time.monotonic()
    code, found = facts(words, capfd)
    assert code == 75
    assert [trial["state"] for trial in found["trials"]] == ["running"]
    assert time.monotonic() - started < 50


def test_a_matrix_is_trained_elsewhere_and_collected(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "swept --config program.yaml --space training.seed=1..9 --trials 2 --seed 4"
    assert run_command(["sweep", *shlex.split(words), "--matrix"]) == 0
    matrix = json.loads(capfd.readouterr().out)
    assert run_command(["sweep", "swept", "--matrix"]) == 0
    assert json.loads(capfd.readouterr().out) == matrix, "nothing is drawn twice"
    rows = matrix["include"]
    assert [row["trial"] for row in rows] == [0, 1]

    code, found = facts("swept --collect", capfd)
    assert (code, [trial["state"] for trial in found["trials"]]) == (1, ["running"] * 2)
    for row in rows:
        changes = [word for each in shlex.split(row["settings"]) for word in ("--set", each)]
        line = ["train", "--config", "swept/config.yaml", *changes, "--run-dir", row["run_dir"]]
        subprocess.run([sys.executable, "-m", "trainyard", *line], check=True, capture_output=True)
    code, found = facts("swept --collect", capfd)
    assert (code, [trial["state"] for trial in found["trials"]]) == (0, ["done"] * 2)


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split("swept --config config.yaml --space training.batch_size=2,4 --dry-run")
    assert run_command(["sweep", *words]) == 0
    assert "training.batch_size=2,4" in capfd.readouterr().out
    assert not (folder / "swept").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("swept", "holds no sweep yet"),
        ("swept --config config.yaml", "holds no sweep yet"),
        ("swept --config config.yaml --space training.batch_sise=2,4", "batch_sise"),
        ("swept --config config.yaml --space training.batch_size=2,none", "training.batch_size"),
        ("swept --config config.yaml --space training.batch_size=2..9 --sampler grid", "not ranges"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_starts(
    words: str, message: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_command(["sweep", *shlex.split(words)])
    assert not (folder / "swept").exists()


def test_another_sweep_in_the_same_folder_is_refused(folder: Path) -> None:
    words = shlex.split("swept --config program.yaml --space training.seed=1,2")
    assert run_command(["sweep", *words, "--matrix"]) == 0
    for other in (
        "swept --space training.seed=1,3",
        "swept --sampler random",
        "swept --maximize",
        "swept --config config.yaml",
        "swept --config program.yaml --set training.seed=5",
    ):
        with pytest.raises(ConfigError, match="is a sweep"):
            run_command(["sweep", *shlex.split(other)])
    assert run_command(["sweep", *words, "--dry-run"]) == 0
