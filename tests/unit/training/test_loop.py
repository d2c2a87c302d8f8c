"""The side effects of a step: how often it waits for the device, and when it draws its batch."""

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.lab import Lab
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.config.schema import Config
from trainyard.errors import StoppedError, TrainingFailedError
from trainyard.run.records import Row, read_rows
from trainyard.training.loop import Trainer
from trainyard.training.runtime.world import World

STEPS = {"training": {"max_steps": 3, "gradient_accumulation_steps": 2}}


class Readings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the reads of a tensor's value; for each of them the host would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default
        self.count += operation in reads
        return operation(*args, **kwargs or {})


def test_a_step_asks_for_values_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    readings, lists = Readings(), []
    run, read = Trainer.step, Tensor.tolist

    def count_step(step: Trainer) -> Row:
        with readings:
            return run(step)

    def list_values(tensor: Tensor) -> Any:
        lists.append(tensor)
        return read(tensor)

    monkeypatch.setattr(Trainer, "step", count_step)
    monkeypatch.setattr(Tensor, "tolist", list_values)
    lab.run(lab.config(**STEPS))
    assert readings.count == 0
    assert len(lists) == 3  # loss and gradient norm together, in each of three steps


def test_a_batch_that_was_prepared_ahead_is_the_same(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = lab.run(lab.config(**STEPS), "plain")
    used: list[bool] = []
    read, own = Trainer._read_figures, Trainer._own_batch

    def ahead(step: Trainer, *tensors: Tensor) -> tuple[float, float]:
        step._prefetch()  # as on a GPU
        return read(step, *tensors)

    def record_read(step: Trainer, number: int) -> Any:
        ready, batch = step._next, own(step, number)
        used.append(batch is ready)
        return batch

    monkeypatch.setattr(Trainer, "_read_figures", ahead)
    monkeypatch.setattr(Trainer, "_own_batch", record_read)
    prefetched = lab.run(lab.config(**STEPS), "prefetched")
    assert used == [False, True, True]
    assert prefetched["state_sha256"] == plain["state_sha256"]


def read_badly(monkeypatch: pytest.MonkeyPatch, bad: dict[int, tuple[float, float]]) -> None:
    """Let the loss and the gradient norm of some steps, counted from 1, be read as these values."""
    read = Trainer._read_figures

    def read_step(step: Trainer, *tensors: Tensor) -> tuple[float, float]:
        return bad.get(step._state.step + 1) or read(step, *tensors)

    monkeypatch.setattr(Trainer, "_read_figures", read_step)


NOT_FINITE = ((math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf))


@pytest.mark.parametrize(
    ("bad", "allowed"),
    [([1], 0), ([1], 1), ([2, 4], 1), ([2, 3], 1), ([3, 4, 5], 2), ([3, 4, 5], 3), ([6], 0)],
)
def test_so_many_bad_updates_in_a_row_are_skipped(
    lab: Lab, bad: list[int], allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_badly(monkeypatch, {step: NOT_FINITE[step % 4] for step in bad})
    config = lab.config(training={"max_steps": 6, "skip_bad_steps": allowed})
    fails_at = next((s for s in bad if all(s - back in bad for back in range(allowed + 1))), None)
    if fails_at is None:
        assert lab.run(config)["steps"] == 6
    else:
        with pytest.raises(TrainingFailedError, match=f"Step {fails_at}: .* is not finite in batch"):
            lab.run(config)
        assert all(saved < fails_at for saved in lab.directory().checkpoint_steps()), "nothing bad is saved"
    skipped = [step for step in bad if step < (fails_at or 7)]
    assert skips(lab.folder / "run") == skipped
    rows = lab.rows()
    assert [row["step"] for row in rows] == list(range(1, fails_at or 7))
    assert [row["step"] for row in rows if row.get("skipped")] == skipped
    for row in rows:
        loss, norm = NOT_FINITE[row["step"] % 4] if row["step"] in bad else (0.0, 0.0)
        assert ("loss" in row, "grad_norm" in row) == (math.isfinite(loss), math.isfinite(norm))


def skips(run: Path) -> list[int]:
    return [row["step"] for row in read_rows(run / "events.jsonl") if row["event"] == "step_skipped"]


def test_a_skipped_update_leaves_the_state_as_it_is(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    training = {"max_steps": 4, "skip_bad_steps": 1, "validation_steps": None}
    short = lab.run(lab.config(training=training | {"max_steps": 3, "lr_scheduler": "constant"}), "short")
    read_badly(monkeypatch, {4: (math.nan, math.nan)})
    skipped = lab.run(lab.config(training=training | {"lr_scheduler": "constant"}), "skipped")
    assert skipped["state_sha256"] == short["state_sha256"]


def test_a_process_skips_what_another_cannot_apply(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    votes: list[str | None] = []
    vote = World.first_reason

    def vote_with_another(world: World, reason: str | None) -> str | None:
        """Stand in for a second process, whose gradient is not finite in the third step."""
        if inspect.stack()[1].function != "_problem_of":
            return vote(world, reason)
        votes.append(reason)
        return "gradient norm nan is not finite" if len(votes) == 3 else reason

    monkeypatch.setattr(World, "first_reason", vote_with_another)
    lab.run(lab.config(training={"max_steps": 5, "skip_bad_steps": 1}))
    assert votes == [None] * 5
    assert skips(lab.folder / "run") == [3]


def test_a_spike_is_an_event_that_exact_resumes_may_skip(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    read_badly(monkeypatch, dict.fromkeys((20, 40, 41, 44), (1e4, 1.0)))

    def config(allowed: int) -> Config:
        training = {"max_steps": 46, "skip_bad_steps": allowed, "validation_steps": None}
        return lab.config(training=training, checkpointing={"save_steps": 100})

    lab.run(config(0), "shown")
    shown = [row for row in read_rows(lab.folder / "shown" / "events.jsonl") if row["event"] == "loss_spike"]
    assert [(row["step"], row["loss"]) for row in shown] == [(40, 1e4), (44, 1e4)]  # 20 is too early
    complete = lab.run(config(2), "complete")
    assert skips(lab.folder / "complete") == [40, 41, 44]
    for step in (35, 40, 41):
        with pytest.raises(StoppedError):
            lab.run(config(2), "pieces", **lab.stop_after(step))
    assert lab.run(config(2), "pieces")["state_sha256"] == complete["state_sha256"]
    assert skips(lab.folder / "pieces") == [40, 41, 44]
    above = r"Step 41: loss 1e.04 is far above the usual .* 1 in a row"
    with pytest.raises(TrainingFailedError, match=above):
        lab.run(config(1), "failed")
