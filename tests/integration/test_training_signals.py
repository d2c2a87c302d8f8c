"""A training process that is killed, stopped or runs out of time resumes equal to the bit."""

import os
import random
import signal
import time

import pytest
from tests.integration.trainer_runs import TrainerRuns
from tests.waiting import wait_for

SETTINGS = (
    *("training.max_steps=40", "training.validation_steps=7"),
    *("checkpointing.save_steps=3", "checkpointing.keep_last=2"),
)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> TrainerRuns:
    result = TrainerRuns(tmp_path_factory.mktemp("training"), *SETTINGS)
    code, errors = result.finish("whole")
    assert code == 0, errors
    return result


@pytest.mark.slow
def test_a_run_killed_at_random_moments_and_resumed_is_bitwise_equal(training: TrainerRuns) -> None:
    moments = random.Random(20261120)
    deaths = 0
    for number in range(10):
        mode = ("async", "sync")[number % 2]
        process = training.start("killed", f"checkpointing.mode={mode}", more=("--resume", "auto"))
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
    numbers = [
        [(row["step"], row["loss"], row["grad_norm"], row.get("val_loss")) for row in training.rows(name)]
        for name in ("killed", "whole")
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.slow
def test_a_signal_ends_the_step_and_saves(training: TrainerRuns) -> None:
    """A signal reaches the group twice, as from a terminal and a parent; after Ctrl-C the code is 130."""
    failures: list[tuple[object, ...]] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # the others have the handler of SIGTERM
        name, code = number.name, 130 if number == signal.SIGINT else 75
        mode = "async" if number == signal.SIGTERM else "sync"
        process = training.start(name, f"checkpointing.mode={mode}")
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
def test_a_signal_before_the_first_step_still_leaves_a_checkpoint(training: TrainerRuns) -> None:
    process = training.start("early")
    # The signal handlers are in place once the log's first line, or the run directory, can be seen.
    wait_for((training.folder / "early" / "run.json").exists, "the run directory", within=240)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert list((training.folder / "early" / "checkpoints").glob("step-*/manifest.json"))


@pytest.mark.slow
def test_the_deadline_counts_from_the_start_of_the_job_and_the_workflow_is_told(
    training: TrainerRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = training.folder / "output"
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    monkeypatch.setenv("TRAINYARD_JOB_STARTED", str(int(time.time()) - 3600))
    code, errors = training.finish("job", more=("--deadline", "1h"))
    assert code == 75, errors
    assert "the deadline is near" in errors
    assert training.outcome("job")["steps"] == 1
    assert output.read_text().splitlines()[0].startswith("exit_code<<")
    assert output.read_text().splitlines()[1:2] == ["75"]
    assert training.finish("job", more=("--deadline", "2h"))[0] == 0
    assert output.read_text().splitlines()[-2] == "0"
    assert training.outcome("job")["state_sha256"] == training.outcome("whole")["state_sha256"]
