"""GRPO runs: the run directory, resuming and endings of pretraining, on a model of a few thousand numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainyard.config.schema import Config
from trainyard.errors import ConfigError, IncompatibleCheckpointError, StoppedError, TrainingFailedError
from trainyard.run.checkpoint_manifest import verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Row, read_rows
from trainyard.training.export.export import plan_export, write_export
from trainyard.training.grpo.step_records import Steps
from trainyard.training.recipe import ready_data, rehearse
from trainyard.training.run.run_request import Request
from trainyard.training.runtime.stop_signals import StopRequest

MakeConfig = Callable[..., Config]
Train = Callable[..., dict[str, Any]]
PARTS = {f"{part}_seconds" for part in ("data", "forward", "backward", "optimizer")}
CLOCK = {
    "time",
    "step_seconds",
    "checkpoint_seconds",
    "tokens_per_second",
    "samples_per_second",
    "memory_peak_bytes",
} | PARTS


class Spy:
    """A listener that records rows and events, and acts after a step or at an event."""

    def __init__(self, acts: dict[int | str, Callable[[], None]] | None = None) -> None:
        self.events: list[str] = []
        self._acts = acts or {}

    def on_row(self, row: Row) -> None:
        self._acts.get(row["step"], lambda: None)()

    def on_event(self, event: str, _fields: dict[str, Any]) -> None:
        if event != "working":  # which is shown, and on no record
            self.events.append(event)
        self._acts.get(event, lambda: None)()


def crash() -> None:
    raise KeyboardInterrupt


def rows_of(run: Path) -> list[Row]:
    rows = read_rows(RunDirectory(run).metrics_file)
    return [{key: value for key, value in row.items() if key not in CLOCK} for row in rows]


def events_of(run: Path) -> list[str]:
    return [event["event"] for event in read_rows(RunDirectory(run).events_file)]


@pytest.fixture(scope="module")
def uninterrupted_run(
    grpo_config: MakeConfig, train_grpo: Train, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run from the start to the end, which no test changes."""
    path = tmp_path_factory.mktemp("grpo") / "straight"
    train_grpo(grpo_config(), path, listener=Spy())
    return path


def test_a_run_keeps_the_contract_of_the_run_directory(uninterrupted_run: Path) -> None:
    run = json.loads((uninterrupted_run / "run.json").read_text())
    assert run["recipe"] == "grpo"
    assert run["plan"]["steps"] == 10
    assert run["data"]["name"] == "arithmetic of depth 2"
    outcome = run["outcome"]
    assert (outcome["status"], outcome["steps"], outcome["exit_code"]) == ("succeeded", 10, 0)
    assert outcome["checkpoint"]["step"] == 10
    assert len(outcome["sample"].splitlines()) == 8
    rows = rows_of(uninterrupted_run)
    assert [row["step"] for row in rows] == list(range(1, 11))
    figures = {"loss", "grad_norm", "reward", "reward_std", "accuracy", "kl", "entropy", "completion_length"}
    position = {"step", "epoch", "learning_rate", "tokens", "samples"}
    assert all(row.keys() == figures | position for row in rows)
    for row in read_rows(RunDirectory(uninterrupted_run).metrics_file):
        assert row.keys() >= CLOCK
        assert 0 < sum(row[part] for part in PARTS) <= row["step_seconds"]
    assert outcome["first_reward"] == rows[0]["reward"]
    assert outcome["tokens"] == rows[-1]["tokens"] > 0
    assert [row["epoch"] for row in rows] == [1] * 8 + [2] * 2
    assert all(1 <= row["completion_length"] <= 4 for row in rows)
    directory = RunDirectory(uninterrupted_run)
    assert directory.checkpoint_steps() == [8, 10]
    assert [verify_checkpoint(directory.checkpoint(step)).step for step in (8, 10)] == [8, 10]
    assert events_of(uninterrupted_run)[:2] == ["started", "warm_started"]
    assert (uninterrupted_run / "config.yaml").read_text().startswith("recipe: grpo")


def test_a_run_that_was_killed_stopped_and_resumed_is_the_same_run(
    grpo_config: MakeConfig, train_grpo: Train, tmp_path: Path, uninterrupted_run: Path
) -> None:
    config, stop = grpo_config(checkpointing={"mode": "async"}), StopRequest()

    def ask() -> None:
        stop.reason = "requested by the test"

    with pytest.raises(StoppedError, match=r"Stopped at step 0 of 10.*step-00000000 is complete"):
        train_grpo(config, tmp_path / "cut", stop=stop, listener=Spy({"started": ask}))
    with pytest.raises(KeyboardInterrupt):
        train_grpo(config, tmp_path / "cut", listener=Spy({6: crash}))
    stop.reason = None
    with pytest.raises(StoppedError, match=r"Stopped at step 7 of 10.*step-00000007 is complete"):
        train_grpo(config, tmp_path / "cut", stop=stop, listener=Spy({7: ask}))
    resumed = train_grpo(config, tmp_path / "cut", listener=Spy())
    assert events_of(tmp_path / "cut").count("resumed") == 3
    assert rows_of(tmp_path / "cut") == rows_of(uninterrupted_run)
    uninterrupted = json.loads((uninterrupted_run / "run.json").read_text())["outcome"]
    assert resumed["state_sha256"] == uninterrupted["state_sha256"]
    assert resumed["sample"] == uninterrupted["sample"]
    again = Spy()
    assert train_grpo(config, tmp_path / "cut", listener=again) == resumed
    assert again.events == ["finished_before"]


def test_the_trained_policy_is_exported_and_started_from(
    uninterrupted_run: Path, grpo_config: MakeConfig, train_grpo: Train, tmp_path: Path
) -> None:
    """transformers loads it, and both a checkpoint and a folder start another run at its weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export = plan_export(RunDirectory(uninterrupted_run))
    write_export(export, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert all(torch.equal(export.weights.read(name), values) for name, values in model.named_parameters())
    assert AutoTokenizer.from_pretrained(tmp_path / "exported")("(1+2)=")["input_ids"] == list(b"(1+2)=")
    outcomes = []
    for number, path in enumerate((export.weights.path, tmp_path / "exported")):
        config = grpo_config(
            model={"path": str(path)},
            grpo={"kl_coefficient": 0.0, "warm_start_steps": 0},
            training={"max_steps": 2, "batch_size": 16},
        )
        outcomes.append(train_grpo(config, tmp_path / f"from-{number}", listener=Spy()))
    assert outcomes[0]["state_sha256"] == outcomes[1]["state_sha256"]
    assert "kl" not in rows_of(tmp_path / "from-0")[0]
    assert "warm_started" not in events_of(tmp_path / "from-0")


def test_a_checkpoint_of_another_task_is_refused(
    uninterrupted_run: Path, grpo_config: MakeConfig, train_grpo: Train, tmp_path: Path
) -> None:
    checkpoint = str(RunDirectory(uninterrupted_run).checkpoint(8))
    deeper = grpo_config(kernel_optimization={"rlvr_depth": 3}, data={"packing": "separate"})
    with pytest.raises(IncompatibleCheckpointError, match="data fingerprint: the checkpoint has") as refusal:
        train_grpo(deeper, tmp_path / "other", listener=Spy(), resume=checkpoint)
    assert "packing" not in str(refusal.value), "it has no effect on questions"


def test_gradients_that_are_not_finite_change_nothing(
    grpo_config: MakeConfig, train_grpo: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare_update = Steps.prepare_update

    def spoil_checkpoint(steps: Steps) -> None:
        if steps._state.step == 5:
            weights = next(steps._state.model.parameters())
            weights.grad = torch.full_like(weights, float("nan"))
        prepare_update(steps)

    monkeypatch.setattr(Steps, "prepare_update", spoil_checkpoint)
    with pytest.raises(
        TrainingFailedError, match=r"Step 6: the gradient of model.embed_tokens.weight is not"
    ):
        train_grpo(grpo_config(), tmp_path / "spoilt", listener=Spy())
    assert len(rows_of(tmp_path / "spoilt")) == 5
    assert RunDirectory(tmp_path / "spoilt").checkpoint_steps() == [4]


def test_a_rehearsal_describes_the_training_and_writes_nothing(
    grpo_config: MakeConfig, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "none")
    plan = rehearse(grpo_config(), lambda data: Request(grpo_config(), directory, data, "auto", "id", {}))
    assert (plan["plan"]["steps"], plan["plan"]["samples_per_step"], plan["resumes"]) == (10, 16, None)
    assert plan["data"] == ready_data(grpo_config()).to_json()
    assert not directory.path.exists()


def test_several_processes_and_traces_are_refused(
    grpo_config: MakeConfig, train_grpo: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, directory = grpo_config(), RunDirectory(tmp_path / "none")
    with pytest.raises(ConfigError, match="--profile traces pretraining only"):
        rehearse(config, lambda data: Request(config, directory, data, "auto", "id", {}, profile=range(1, 3)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"recipe: grpo trains in one process, not in \d+\."):
        train_grpo(config, tmp_path / "none", listener=Spy())


def test_rewards_are_judged_answer_by_answer_and_their_right_share_is_logged() -> None:
    from trainyard.training.grpo.trainer import reward  # takes seconds, which only this file's worker pays

    logged: dict[str, float] = {}
    rewards = reward(["(1+2)=", "(1+2)="], ["3", "x"], log_metric=logged.__setitem__, completions_ids=[])
    assert rewards == [1.0, 0.0]
    assert logged == {"accuracy": 0.5}
