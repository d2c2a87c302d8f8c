"""Runs on one and several processes: same numbers, resumes equal to the bit, stops and deaths. CPU, gloo."""

import os
import random
import re
import shutil
import signal
import socket
import time

import pytest
from tests.integration.trainer_runs import TrainerRuns, end_of
from tests.waiting import wait_for
from tests.warm_start import descendants, environment_of

pytestmark = pytest.mark.slow
STEPS = 12
SETTINGS = (
    *(f"training.max_steps={STEPS}", "training.validation_steps=5", "training.validation_batches=3"),
    *("checkpointing.save_steps=4", "checkpointing.keep_last=3"),
)
ALONE = ("training.gradient_accumulation_steps=2",)
KINDS = {
    "ddp": ("compute.strategy=ddp",),
    "fsdp": ("compute.strategy=fsdp",),
    "hsdp": ("compute.strategy=hsdp", "compute.replicas=2"),
    "ddp-small": ("compute.strategy=ddp", "training.batch_size=1", "training.gradient_accumulation_steps=4"),
}


class Runs(TrainerRuns):
    def finish_on_two_machines(self, name: str, *settings: str) -> tuple[int, str]:
        """One process of each of two torchruns, which meet at a port of this machine."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            meeting = f"127.0.0.1:{free.getsockname()[1]}"
        launcher = (
            *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=test"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={meeting}", "--local-addr=127.0.0.1"),
        )
        machines = [self.start(name, *settings, launcher=launcher) for _ in range(2)]
        ends = [end_of(machine) for machine in machines]
        return max(code for code, _ in ends), "".join(errors for _, errors in ends)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    result = Runs(tmp_path_factory.mktemp("runs"), *SETTINGS)
    result.succeed("alone", *ALONE)
    return result


def assert_same_numbers(runs: Runs, name: str) -> None:
    for one, other in zip(runs.rows("alone"), runs.rows(name), strict=True):
        assert one["step"] == other["step"]
        for key in ("loss", "grad_norm", "val_loss"):
            assert other.get(key) == (pytest.approx(one[key], rel=2e-5) if key in one else None)


@pytest.mark.parametrize("kind", ["hsdp", "ddp-small"])  # other tests compare the others
def test_two_processes_give_the_numbers_of_one_step_by_step(runs: Runs, kind: str) -> None:
    if kind == "hsdp":  # a copy of the model per machine
        code, errors = runs.finish_on_two_machines(kind, *KINDS[kind])
    else:
        code, errors = runs.finish(kind, *KINDS[kind], processes=2)
    assert code == 0, errors
    assert_same_numbers(runs, kind)
    run = runs.record(kind)
    assert run["hardware"]["world_size"] == 2
    assert run["hardware"]["local_world_size"] == (1 if kind == "hsdp" else 2)  # two torchruns
    assert run["plan"]["samples_per_step"] == 8
    assert runs.outcome(kind)["sample"] == runs.outcome("alone")["sample"]


def test_a_sharded_world_of_one_is_bitwise_the_plain_one(runs: Runs) -> None:
    runs.succeed("fsdp-alone", *ALONE, "compute.strategy=fsdp", processes=1)
    assert runs.outcome("fsdp-alone")["state_sha256"] == runs.outcome("alone")["state_sha256"]


def test_a_run_goes_from_two_processes_to_one_and_back(runs: Runs) -> None:
    two, one = KINDS["fsdp"], (*ALONE, "compute.strategy=single")
    for settings, processes, steps in ((two, 2, 4), (one, 1, 8), (two, 2, STEPS)):
        limit = f"training.max_steps={steps}"
        # A shorter run has another schedule: keep the rate constant.
        constant = ("training.lr_scheduler=constant", "training.validation_steps=null", limit)
        runs.succeed("resharded", *settings, *constant, processes=processes)
    runs.succeed("constant", *ALONE, "training.lr_scheduler=constant", processes=1)
    for one_row, other in zip(runs.rows("constant"), runs.rows("resharded"), strict=True):
        assert other["loss"] == pytest.approx(one_row["loss"], rel=2e-5)


def test_compressed_gradients_resume_bitwise(runs: Runs) -> None:
    compressed = (
        *KINDS["ddp"],
        "compute.gradient_compression=powersgd",
        "kernel_optimization.compression_ratio=4",
        "training.lr_scheduler=constant",
        "training.validation_steps=null",
    )
    for name, steps in (("powersgd-whole", 8), ("powersgd", 4), ("powersgd", 8)):
        runs.succeed(name, *compressed, f"training.max_steps={steps}", processes=2)
    whole, resumed = runs.rows("powersgd-whole"), runs.rows("powersgd")
    for key in ("loss", "grad_norm"):
        assert [row[key] for row in resumed] == [row[key] for row in whole]
    assert runs.outcome("powersgd")["state_sha256"] == runs.outcome("powersgd-whole")["state_sha256"]
    # The first loss is that of the same weights; the gradients exchanged after it differ.
    plain = runs.rows("alone")
    assert whole[0]["loss"] == pytest.approx(plain[0]["loss"], rel=2e-5)
    assert whole[0]["grad_norm"] < 0.999 * plain[0]["grad_norm"]
    assert whole[-1]["loss"] < whole[0]["loss"] - 0.2
    sent = runs.record("powersgd")["plan"]["gradient_compression"]
    assert sent["ratio"] >= 4
    assert sent["rank"] > 1


def test_three_copies_that_go_on_add_gradients_in_the_order_of_those_left_alone(runs: Runs) -> None:
    wide = ("model.architecture.hidden_size=256", "training.max_steps=6", "training.validation_steps=null")
    runs.succeed("three", *KINDS["ddp"], *wide, processes=3)
    whole = [(row["loss"], row["grad_norm"]) for row in runs.rows("three")], runs.outcome("three")
    last = runs.folder / "three" / "checkpoints" / "step-00000006"
    shutil.rmtree(last)
    runs.succeed("three", *KINDS["ddp"], *wide, processes=3)
    assert last.is_dir()
    assert [(row["loss"], row["grad_norm"]) for row in runs.rows("three")] == whole[0]
    assert runs.outcome("three")["state_sha256"] == whole[1]["state_sha256"]


def test_a_signal_to_the_launcher_saves_on_all_processes_and_resumes_bitwise(runs: Runs) -> None:
    # A schedule that does not depend on the number of steps, which the signal decides.
    more = (*KINDS["fsdp"], "training.lr_scheduler=constant", "training.validation_steps=null")
    often = ("training.max_steps=100000", "checkpointing.save_steps=5", "checkpointing.mode=async")
    process = runs.start("sharded", *more, *often, processes=2)
    runs.wait_for_row("sharded", process)
    process.send_signal(signal.SIGTERM)
    code, errors = end_of(process)
    assert code == 75, errors
    assert runs.outcome("sharded")["status"] == "stopped"
    limit = f"training.max_steps={runs.outcome('sharded')['steps'] + 3}"
    for name in ("sharded", "sharded-whole"):
        runs.succeed(name, *more, limit, processes=2)
    assert runs.outcome("sharded")["state_sha256"] == runs.outcome("sharded-whole")["state_sha256"]


def test_a_dead_process_ends_the_others_with_a_message_in_time(runs: Runs) -> None:
    process = runs.start("dead", *KINDS["ddp"], "training.max_steps=100000", processes=2)
    runs.wait_for_row("dead", process)
    ranks = {pid: environment_of(pid).get("RANK") for pid in descendants(process.pid)}
    (victim,) = (pid for pid, rank in ranks.items() if rank == "1")
    os.kill(victim, signal.SIGKILL)
    code, errors = end_of(process)
    assert code == 1, errors
    assert re.search(r"lost another process of this run", errors), errors
    assert f"Rank 1 (pid {victim}) was killed by SIGKILL." in errors
    assert "Traceback" not in errors
    assert runs.outcome("dead")["status"] == "failed"


def test_several_processes_for_a_strategy_of_one_are_refused(runs: Runs) -> None:
    code, errors = runs.finish("refused", processes=2)
    assert code == 2, errors
    assert errors.count("compute.strategy is single") == 1, "it is said once, and not by each"
    assert not (runs.folder / "refused").exists()


OFTEN_SAVED = (
    *("training.max_steps=40", "training.validation_steps=7"),
    *("checkpointing.save_steps=3", "checkpointing.keep_last=2"),
)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> TrainerRuns:
    result = TrainerRuns(tmp_path_factory.mktemp("training"), *OFTEN_SAVED)
    result.succeed("whole")
    return result


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


def test_a_signal_before_the_first_step_still_leaves_a_checkpoint(training: TrainerRuns) -> None:
    process = training.start("early")
    # The signal handlers are in place once the log's first line, or the run directory, can be seen.
    wait_for((training.folder / "early" / "run.json").exists, "the run directory", within=240)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert list((training.folder / "early" / "checkpoints").glob("step-*/manifest.json"))


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
