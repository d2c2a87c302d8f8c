import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.training.lab import Lab

from trainyard.config.load import config_sha256, load_config
from trainyard.config.schema import Config
from trainyard.errors import (
    CheckpointError,
    ConfigError,
    CostLimitError,
    IncompatibleCheckpointError,
    RecordError,
    StoppedError,
    TrainingFailedError,
)
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_retention import complete_steps
from trainyard.run.records import read_rows
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.runtime.stop_signals import StopRequest


def test_a_run_writes_the_files_of_the_contract(lab: Lab) -> None:
    config = lab.config()
    outcome = lab.run(config)
    run = lab.record()
    assert run["outcome"] == outcome
    assert (outcome["status"], outcome["exit_code"], outcome["steps"]) == ("succeeded", 0, 12)
    assert outcome["final_loss"] < outcome["first_loss"] - 0.5
    assert outcome["bits_per_byte"] == pytest.approx(outcome["validation_loss"] / math.log(2))
    assert len(outcome["sample"]) > 0
    assert {len(digest) for digest in outcome["state_sha256"].values()} == {64}
    assert run["run_id"] == "id-of-run"
    saved = lab.events("run", "checkpoint_saved")
    manifest = lab.folder / "run" / "checkpoints" / "step-00000012" / "manifest.json"
    assert outcome["checkpoint"] == {"step": 12, "manifest_sha256": sha256_of_file(manifest)}
    assert saved[-1]["manifest_sha256"] == outcome["checkpoint"]["manifest_sha256"]
    assert run["plan"]["steps"] == 12
    assert run["plan"]["tokens_per_step"] == 4 * 16
    assert run["config_sha256"] == config_sha256(config)
    assert run["data"]["train_files"] == 6
    assert load_config(lab.folder / "run" / "config.yaml").config == config
    assert lab.steps() == list(range(1, 13))
    assert [row["step"] for row in lab.rows() if "val_loss" in row] == [5, 10, 12]
    for line in lab.directory().metrics_file.read_text().splitlines():
        row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert (row["tokens"], row["samples"]) == (row["step"] * 64, row["step"] * 4)
        assert row["tokens_per_second"] == pytest.approx(64 / row["step_seconds"])
        assert row["memory_peak_bytes"] > 1_000_000
        assert not {"gpu_memory_bytes", "mfu", "gpu_utilization_percent"} & row.keys()
    assert complete_steps(lab.directory()) == [8, 12]
    events = [row["event"] for row in read_rows(lab.directory().events_file)]
    assert events == ["started", *["checkpoint_saved"] * 3, "checkpoint_removed", "finished"]


def test_only_logged_steps_have_rows_and_the_last_one_always(lab: Lab) -> None:
    lab.run(lab.config(monitoring={"log_steps": 5}, training={"validation_steps": None}))
    assert lab.steps() == [5, 10, 12]


@pytest.mark.parametrize(("dtype", "accumulation"), [("float32", 4), ("bfloat16", 1)])
def test_stopping_and_resuming_at_each_step_is_bitwise_equal(lab: Lab, dtype: str, accumulation: int) -> None:
    config = lab.config(
        model={"dtype": dtype},
        training={"batch_size": 8 // accumulation, "gradient_accumulation_steps": accumulation},
    )
    uninterrupted = lab.run(config, "uninterrupted")
    for step in range(1, 12) if accumulation > 1 else (1, 4, 5, 11):  # it saves at 4 and validates at 5
        with pytest.raises(StoppedError, match=f"Stopped at step {step} of 12"):
            lab.run(config, "pieces", **lab.stop_after(step))
    pieces = lab.run(config, "pieces")
    assert pieces["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.numbers("pieces") == lab.numbers("uninterrupted")
    assert pieces["sample"] == uninterrupted["sample"]


def test_a_signal_while_the_processes_agree_is_not_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, calls = StopRequest(), 0

    def agree(_world: object, reason: str | None) -> str | None:
        nonlocal calls
        calls += 1
        if calls == 3:
            stop.reason = "SIGTERM received"
        return reason

    monkeypatch.setattr("trainyard.training.runtime.world.World.first_reason", agree)
    with pytest.raises(StoppedError, match="Stopped at step 3 of 12: SIGTERM received"):
        lab.run(lab.config(training={"validation_steps": None}), stop=stop)


def test_a_stop_during_validation_saves_at_once_and_the_resume_validates(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainyard.training.model import loss
    from trainyard.training.run import validation

    uninterrupted = lab.once("uninterrupted")
    stop = StopRequest()
    original = loss.summed_loss

    def stop_while_running(*args: Any) -> Any:
        stop.reason = "SIGTERM received"
        return original(*args)

    monkeypatch.setattr(validation, "summed_loss", stop_while_running)
    with pytest.raises(StoppedError, match="step 5 of 12"):
        lab.run(lab.config(), "pieces", stop=stop)
    monkeypatch.undo()
    assert lab.steps("pieces") == [1, 2, 3, 4]
    assert lab.run(lab.config(), "pieces")["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.numbers("pieces") == lab.numbers("uninterrupted")


def test_rows_written_after_the_checkpoint_are_written_once(lab: Lab) -> None:
    """A SIGKILL between two saves leaves the rows, but no checkpoint of their steps."""
    uninterrupted = lab.once("uninterrupted")
    with pytest.raises(StoppedError):
        lab.run(lab.config(), "killed", **lab.stop_after(7))
    directory = lab.directory("killed")
    (directory.checkpoint(7) / "manifest.json").unlink()
    with directory.metrics_file.open("a") as file:
        file.write('{"step": 8, "loss": 1.')
    assert lab.run(lab.config(), "killed")["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.numbers("killed") == lab.numbers("uninterrupted")
    rows = read_rows(directory.events_file)
    assert [r["step"] for r in rows if r["event"] == "checkpoint_rejected"] == [7]
    assert [(r["step"], r["dropped_rows"]) for r in rows if r["event"] == "resumed"] == [(4, 3)]


def _stop_request() -> StopRequest:
    stop = StopRequest()
    stop.reason = "before the first step"
    return stop


def test_a_process_that_is_gone_when_the_digests_are_made_is_the_outcome(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_lost(_state: TrainingState, **_: bool) -> dict[str, str]:
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1")

    outcomes: list[Any] = []
    monkeypatch.setattr(TrainingState, "digests", raise_lost)
    with pytest.raises(TrainingFailedError, match="lost another process of this run"):
        lab.run(lab.config(training={"max_steps": 2}), on_outcome=outcomes.append)
    outcome = lab.outcome()
    assert outcomes == [outcome]
    assert (outcome["status"], outcome["exit_code"]) == ("failed", 1)


def test_a_signal_from_before_the_run_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.training.runtime.stop_signals.signal.signal", lambda *_: None)
    stop = StopRequest()
    stop.listen(lambda: None)
    assert stop.reason is None
    assert stop.seconds_left() == math.inf
    stop.listen(lambda: "SIGTERM")
    assert stop.reason == "SIGTERM received"


def test_the_grace_period_counts_from_the_first_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not there was another reason to stop already."""
    now = [100.0]
    monkeypatch.setattr("trainyard.training.runtime.stop_signals.time.monotonic", lambda: now[0])
    for reason in (None, "the deadline is near"):
        stop = StopRequest(grace=30)
        stop.reason = reason
        assert stop.seconds_left() == math.inf
        for passed, number in ((0.0, signal.SIGTERM), (12.0, signal.SIGINT)):
            now[0] = 100.0 + passed
            stop._on_signal(number, None)
            assert stop.seconds_left() == 30 - passed
        now[0] = 140.0
        assert stop.seconds_left() == -10


def test_the_signal_of_another_process_counts_unless_this_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.training.runtime.stop_signals.time.monotonic", lambda: 100.0)
    stop = StopRequest(grace=30)
    assert stop.since_signal() is None
    for seconds in (12.0, 20.0):
        stop.adopt_signal(seconds)
        assert (stop.since_signal(), stop.seconds_left()) == (12.0, 18.0)


@each_case(
    ("stop", "kind", "message", "code"),
    [
        (StopRequest(deadline=0.0), StoppedError, "the deadline is near", 75),
        (
            StopRequest.after(None, gone=0, grace=30, paid_seconds=0.0),
            CostLimitError,
            r"limits\.cost_usd is reached.*\nTo resume: raise the limit",
            1,
        ),
    ],
)
def test_a_deadline_and_a_limit_of_the_cost_stop_with_a_checkpoint(
    lab: Lab, stop: StopRequest, kind: type[StoppedError], message: str, code: int
) -> None:
    with pytest.raises(kind, match=message) as stopped:
        lab.run(lab.config(), f"run-{code}", stop=stop)
    outcome = lab.outcome(f"run-{code}")
    assert (outcome["status"], outcome["exit_code"], outcome["steps"]) == ("stopped", code, 1)
    assert stopped.value.exit_code == code
    assert complete_steps(lab.directory(f"run-{code}")) == [1]


def test_a_finished_run_is_trained_again_only_for_more_steps(lab: Lab) -> None:
    outcome = lab.run()
    created = lab.record()["created"]
    files = [path for path in (lab.folder / "run").rglob("*") if path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert lab.run() == outcome
    with pytest.raises(ConfigError, match=r"learning_rate: 0\.01, now 0\.001"):
        lab.run(lab.config(training={"learning_rate": 1e-3}))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert lab.run(lab.config(training={"max_steps": 15}))["steps"] == 15
    run = lab.record()
    assert (run["created"], run["plan"]["steps"]) == (created, 15)


@pytest.mark.parametrize(("mode", "scheduler"), [("keep", "linear"), ("stretch", "cosine")])
def test_an_extended_run_follows_its_schedule_through_resumes(lab: Lab, mode: str, scheduler: str) -> None:
    def rates(name: str = "run") -> list[float]:
        return [row["learning_rate"] for row in lab.rows(name)]

    def config(steps: int) -> Config:
        training = {"schedule_on_extension": mode, "lr_scheduler": scheduler, "max_steps": steps}
        return lab.config(training=training)

    lab.run(config(8), "short")
    short = rates("short")
    lab.run(config(14), "long")
    long = rates("long")
    with pytest.raises(StoppedError):
        lab.run(config(8), **lab.stop_after(5))
    with pytest.raises(StoppedError):
        lab.run(config(14), **lab.stop_after(10))
    lab.run(config(14))
    later = [short[-1]] * 6 if mode == "keep" else long[8:]
    assert rates() == short[:5] + (short[5:] if mode == "keep" else long[5:8]) + later


def test_epochs_end_a_run_before_max_steps(lab: Lab) -> None:
    outcome = lab.run(lab.config(training={"epochs": 1, "max_steps": 10**6, "batch_size": 128}))
    run = lab.record()
    assert outcome["steps"] == run["plan"]["steps_per_epoch"] == run["plan"]["steps"] > 1
    assert {row["epoch"] for row in lab.rows()} == {1}


def test_resume_none_refuses_a_directory_that_holds_a_run(lab: Lab) -> None:
    lab.run(lab.config(), resume="none")
    before = (lab.folder / "run" / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="holds a run already"):
        lab.run(lab.config(), resume="none")
    assert (lab.folder / "run" / "run.json").read_bytes() == before


def test_a_run_from_another_runs_checkpoint_keeps_it_as_its_parent(lab: Lab) -> None:
    uninterrupted = lab.once("uninterrupted")
    lab.once("used")
    parent = lab.folder / "uninterrupted" / "checkpoints" / "step-00000008"
    manifest = parent / "manifest.json"
    with pytest.raises(ConfigError, match="holds a run already"):
        lab.run(lab.config(), "used", resume=str(parent))
    with pytest.raises(StoppedError):
        lab.run(lab.config(), "child", resume=str(parent), **lab.stop_after(10))
    assert lab.run(lab.config(), "child", resume=str(parent))["state_sha256"] == uninterrupted["state_sha256"]
    recorded = {"checkpoint": str(parent), "manifest_sha256": sha256_of_file(manifest)}
    # A run that is killed before its first save starts from its parent again, which must be unchanged.
    shutil.rmtree(lab.folder / "child" / "checkpoints")
    assert lab.run(lab.config(), "child")["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.record("child")["parent"] == recorded
    assert lab.steps("child") == [9, 10, 11, 12]
    shutil.rmtree(lab.folder / "child" / "checkpoints")
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(CheckpointError, match="which has been replaced since"):
        lab.run(lab.config(), "child")
    shutil.rmtree(parent)
    with pytest.raises(ConfigError, match="no such directory"):
        lab.run(lab.config(), "child")


def test_a_named_checkpoint_that_does_not_verify_is_refused(lab: Lab) -> None:
    lab.once("uninterrupted")
    checkpoint = lab.folder / "uninterrupted" / "checkpoints" / "step-00000008"
    (checkpoint / "trainer_state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="does not verify"):
        lab.run(lab.config(), "child", resume=str(checkpoint))
    with pytest.raises(ConfigError, match="no such directory"):
        lab.run(lab.config(), "child", resume=str(lab.folder / "nowhere"))
    assert not (lab.folder / "child" / "run.json").exists()


def test_each_change_that_a_checkpoint_cannot_bear_is_named(lab: Lab, corpus: Path) -> None:
    lab.run()
    before = (lab.folder / "run" / "run.json").read_bytes()
    (corpus / "train" / "new.txt").write_text("other data\n" * 50)
    changed = lab.config(
        model={"architecture": {"hidden_size": 64}},
        training={"max_steps": 20, "batch_size": 2, "seed": 1},
        data={"sequence_length": 32},
    )
    with pytest.raises(IncompatibleCheckpointError) as failure:
        lab.run(changed)
    for name in (
        "model.architecture.hidden_size: the checkpoint has 32, this run has 64",
        "data fingerprint",
        "data.sequence_length: the checkpoint has 16, this run has 32",
        "gradient_accumulation_steps × processes): the checkpoint has 4, this run has 2",
        "training.seed: the checkpoint has 42, this run has 1",
    ):
        assert name in str(failure.value)
    assert "max_steps" not in str(failure.value)
    assert (lab.folder / "run" / "run.json").read_bytes() == before


def test_a_bug_is_recorded_as_one(lab: Lab) -> None:
    class BrokenListener:
        def on_row(self, row: dict[str, Any]) -> None:
            raise ZeroDivisionError("a bug in a listener")

        def on_event(self, event: str, fields: dict[str, Any]) -> None: ...

    with pytest.raises(ZeroDivisionError):
        lab.run(lab.config(), listener=BrokenListener())
    found = [lab.outcome()[key] for key in ("status", "exit_code", "reason")]
    assert found == ["failed", 3, "a bug in a listener"]


def test_a_missing_gpu_is_named_with_the_fix(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"model.device: cuda:63 was requested.*model.device=auto"):
        lab.run(lab.config(model={"device": "cuda:63"}))


def test_a_finished_run_whose_last_checkpoint_broke_makes_it_again(lab: Lab) -> None:
    outcome = lab.run()
    directory = lab.directory()
    broken = directory.checkpoint(12) / "__0_0.distcp"
    content = bytearray(broken.read_bytes())
    content[1000] ^= 1
    broken.write_bytes(content)
    again = lab.run()
    assert again["state_sha256"] == outcome["state_sha256"]
    rejected = lab.events("run", "checkpoint_rejected")
    assert [(r["step"], "__0_0.distcp" in r["reason"]) for r in rejected] == [(12, True)]


def test_a_change_of_configuration_on_the_way_is_on_record(lab: Lab) -> None:
    with pytest.raises(StoppedError):
        lab.run(lab.config(), **lab.stop_after(4))
    lab.run(lab.config(training={"learning_rate": 1e-3}))
    run = lab.record()
    assert [(segment["until"], segment["config_sha256"]) for segment in run["history"]] == [
        (4, config_sha256(lab.config()))
    ]


def test_going_back_to_an_earlier_checkpoint_leaves_the_later_ones_out(lab: Lab) -> None:
    config = lab.config(checkpointing={"keep_last": 9})
    uninterrupted = lab.run(config)
    directory = lab.directory()
    with pytest.raises(StoppedError):
        lab.run(config, resume=str(directory.checkpoint(4)), stop=_stop_request())
    assert complete_steps(directory) == [4]
    assert (directory.checkpoints / ".set-aside-step-00000012" / "manifest.json").is_file()
    assert lab.run(config)["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.steps() == list(range(1, 13))


def test_a_checkpoint_beyond_the_requested_steps_is_refused(lab: Lab) -> None:
    with pytest.raises(StoppedError):
        lab.run(lab.config(), **lab.stop_after(6))
    with pytest.raises(ConfigError, match="beyond the requested 5 steps"):
        lab.run(lab.config(training={"max_steps": 5}))


def test_weights_that_are_not_finite_never_replace_a_checkpoint(lab: Lab) -> None:
    with pytest.raises(StoppedError):
        lab.run(lab.config(checkpointing={"keep_last": 1}), **lab.stop_after(4))
    # One step with this rate overflows the weights, and no later loss would show it: it is the last step.
    last = {"max_steps": 5, "validation_steps": None}
    poison = last | {"learning_rate": 3e38, "lr_scheduler": "constant"}
    with pytest.raises(TrainingFailedError, match="not finite"):
        lab.run(lab.config(training=poison, checkpointing={"keep_last": 1}))
    assert complete_steps(lab.directory()) == [4]
    assert lab.outcome()["exit_code"] == 1


def test_a_record_that_cannot_be_written_is_named(lab: Lab) -> None:
    class Spoiler:
        """Puts a folder where the events belong."""

        def on_row(self, row: dict[str, Any]) -> None:
            (lab.folder / "run" / "events.jsonl").unlink()
            (lab.folder / "run" / "events.jsonl").mkdir()

        def on_event(self, event: str, fields: dict[str, Any]) -> None: ...

    with pytest.raises(RecordError, match=r"events\.jsonl: cannot be written"):
        lab.run(lab.config(checkpointing={"save_steps": 1}), listener=Spoiler())


@pytest.mark.parametrize("path", ["/proc/nope", "a-file"])
def test_a_run_directory_that_cannot_be_used_is_named(lab: Lab, path: str) -> None:
    (lab.folder / "a-file").write_text("")
    with pytest.raises(ConfigError, match=r"--run-dir .* cannot be used"):
        lab.run(lab.config(), path)
