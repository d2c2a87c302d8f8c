"""The changes suggested after a failure are allowed settings, and they fix the failure."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.lab import Lab

from trainyard.config.schema import Config
from trainyard.errors import TrainingFailedError
from trainyard.run.directory import RunDirectory
from trainyard.run.failure import FailureKind, read_failure
from trainyard.run.records import RecordWriter
from trainyard.training.checkpoint.failure_advice import (
    build_error,
    explain_memory_errors,
    memory_kind,
    not_finite_failure,
    out_of_memory_failure,
)

TinyConfig = Callable[..., Config]
CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 1310720000 bytes. Error code 12 (Cannot allocate memory)"
)


def with_changes(config: Config, changes: Any) -> Config:
    """The configuration with `changes`; raises where one of them is not allowed."""
    values = config.model_dump(mode="json")
    for key, value in changes.items():
        section, _, name = key.partition(".")
        assert name in values[section]
        values[section][name] = value
    return Config.model_validate(values)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    layout = RunDirectory(tmp_path / "run")
    layout.create()
    return layout


def save_steps(directory: RunDirectory, step: int, *losses: float) -> None:
    folder = directory.checkpoint(step)
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    writer = RecordWriter(directory.metrics_file)
    for number, loss in enumerate(losses, start=1):
        writer.write({"step": number, "loss": loss})
    writer.close()


def test_the_learning_rate_that_is_proposed_is_lower_and_never_absurd(
    tiny_config: TinyConfig, directory: RunDirectory
) -> None:
    for rate in (1e9, 1.0, 3e-3, 5e-5, 1e-12):
        config = tiny_config(training={"learning_rate": rate})
        lower = with_changes(config, not_finite_failure(2, config, directory).changes).training.learning_rate
        assert 0 < lower <= min(rate / 5, 1e-3)


def test_only_a_limit_that_is_set_is_to_be_lowered(tiny_config: TinyConfig, directory: RunDirectory) -> None:
    for limit in (None, 1.0, 0.25):
        config = tiny_config(training={"max_grad_norm": limit})
        failure = not_finite_failure(2, config, directory)
        assert ("training.max_grad_norm" in failure.fix) == (limit is not None)
        changed = with_changes(config, failure.changes)
        assert changed.training.max_grad_norm == (limit or 1.0), "where there is no limit, one is proposed"


@pytest.mark.parametrize(("losses", "begins"), [((5.0, 3.0), 4), ((5.0, 9.0), None), ((5.0,), 4)])
def test_a_changed_run_begins_from_weights_that_were_not_spoilt_yet(
    losses: tuple[float, ...], begins: int | None, tiny_config: TinyConfig, directory: RunDirectory
) -> None:
    save_steps(directory, 4, *losses)
    failure = not_finite_failure(7, tiny_config(), directory)
    assert failure.from_step == begins
    error = build_error(TrainingFailedError, "It failed.", failure, directory)
    assert ("--resume" in str(error)) == (begins is not None)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 9, 16, 35])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_less_memory_is_taken_with_the_same_global_batch(
    size: int, accumulated: int, tiny_config: TinyConfig, directory: RunDirectory
) -> None:
    config = tiny_config(training={"batch_size": size, "gradient_accumulation_steps": accumulated})
    save_steps(directory, 4)
    failure = out_of_memory_failure(FailureKind.GPU_MEMORY, 5, config, directory)
    changed = with_changes(config, failure.changes).training
    assert changed.batch_size <= size / 2
    assert changed.batch_size * changed.gradient_accumulation_steps == size * accumulated
    assert failure.from_step == 4, "the checkpoint fits: its global batch is the same"


def test_one_sequence_keeps_fewer_activations_and_then_becomes_shorter(
    tiny_config: TinyConfig, directory: RunDirectory
) -> None:
    save_steps(directory, 4)
    config = tiny_config(training={"batch_size": 1})
    first = out_of_memory_failure(FailureKind.GPU_MEMORY, 5, config, directory)
    config = with_changes(config, first.changes)
    assert (config.compute.activation_checkpointing, first.from_step) == ("full", 4)
    second = out_of_memory_failure(FailureKind.GPU_MEMORY, 5, config, directory)
    assert with_changes(config, second.changes).data.sequence_length == config.data.sequence_length // 2
    assert second.from_step is None, "no checkpoint fits other sequences"


def test_a_lack_of_memory_is_distinguished_from_other_errors() -> None:
    for error, kind in (
        (torch.OutOfMemoryError("CUDA out of memory"), FailureKind.GPU_MEMORY),
        (MemoryError(), FailureKind.HOST_MEMORY),
        (RuntimeError(CPU_MESSAGE), FailureKind.HOST_MEMORY),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("not enough memory"), None),
    ):
        assert memory_kind(error) == kind


def test_torch_still_says_it_so_where_main_memory_runs_out() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert memory_kind(raised.value) == FailureKind.HOST_MEMORY


def test_a_model_that_does_not_fit_is_no_bug(tiny_config: TinyConfig, directory: RunDirectory) -> None:
    with (
        pytest.raises(TrainingFailedError, match=r"main memory.*1\.3 GB(?s:.)*training.batch_size=2"),
        explain_memory_errors(tiny_config(), directory),
    ):
        raise RuntimeError(CPU_MESSAGE)
    with pytest.raises(RuntimeError, match="other"), explain_memory_errors(tiny_config(), directory):
        raise RuntimeError("other")


def test_a_run_that_blows_up_records_its_class_its_step_and_what_to_change(lab: Lab) -> None:
    with pytest.raises(TrainingFailedError) as raised:
        lab.run(lab.config(training={"learning_rate": 1e9, "warmup_steps": 0}))
    outcome = lab.outcome()
    failure = read_failure(outcome)
    assert failure is not None
    assert (failure.kind, failure.step) == (FailureKind.NOT_FINITE, outcome["steps"] + 1)
    assert failure.changes == {"training.learning_rate": 1e-3}
    assert "--set training.learning_rate=0.001" in str(raised.value)
    assert "--resume auto" not in str(raised.value)


def test_a_step_that_finds_no_memory_is_recorded_as_such(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> float:
        raise RuntimeError(CPU_MESSAGE)

    monkeypatch.setattr("trainyard.training.loop.Trainer._forward_backward", full)
    with pytest.raises(TrainingFailedError, match="Step 1: out of main memory with 4 x 16 tokens"):
        lab.run()
    failure = read_failure(lab.outcome())
    assert failure is not None
    assert (failure.kind, failure.step) == (FailureKind.HOST_MEMORY, 1)
    assert math.prod(failure.changes.values()) == 4
