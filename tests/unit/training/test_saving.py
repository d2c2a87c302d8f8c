"""Saves at once, behind training and in a process of their own: the same checkpoints, whatever interrupts."""

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import pickle
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, StoppedError, TrainingFailedError
from trainyard.run import digests
from trainyard.run.checkpoints import describe_files, verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.files import sha256_of_file
from trainyard.run.identity import read_run
from trainyard.run.records import read_rows
from trainyard.training import checkpoint, engines, pending_save, priority, saving, staging, step
from trainyard.training.checkpoint import SaveOrigin
from trainyard.training.engines import Behind
from trainyard.training.file_layout import FileLayout
from trainyard.training.retention import whole_steps
from trainyard.training.shards import Written, live, share_out
from trainyard.training.state import TrainingState
from trainyard.training.world import ALONE, World
from trainyard.training.writer_process import WriterProcess

Build = Callable[..., Config]
Run = Callable[..., dict[str, Any]]
Stop = Callable[[int], dict[str, Any]]
MODES = ("sync", "async", "async_process")
EXACT = ("step", "loss", "grad_norm", "val_loss")
DEATH, BUG = 99, 98


def numbers(run: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.get(key) for key in EXACT) for row in read_rows(run / "metrics.jsonl")]


def events(run: Path, name: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(run / "events.jsonl") if row["event"] == name]


class Listener:
    """Calls `act` with the number of each step that has its row."""

    def __init__(self, act: Callable[[int], Any]) -> None:
        self.act = act
        self.saved: list[tuple[int, int]] = []
        """Step saved, and the step after which it was whole."""
        self._at = 0

    def on_row(self, row: dict[str, Any]) -> None:
        self._at = row["step"]
        self.act(self._at)

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "checkpoint_saved":
            self.saved.append((fields["step"], self._at))


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_saves_when_it_is_due_and_stays_out_of_the_numbers(
    tiny_config: Build, run_training: Run, tmp_path: Path, mode: str, stop_after: Stop
) -> None:
    whole = run_training(tiny_config(), "whole")
    config = tiny_config(checkpointing={"mode": mode, "save_steps": 2, "keep_every": 4})
    with pytest.raises(StoppedError, match="Stopped at step 5"):
        run_training(config, mode, **stop_after(5))
    assert run_training(config, mode)["state_sha256"] == whole["state_sha256"]
    assert numbers(tmp_path / mode) == numbers(tmp_path / "whole")
    directory = RunDirectory(tmp_path / mode)
    assert whole_steps(directory) == [4, 8, 10, 12]
    saved = {event["step"]: event for event in events(tmp_path / mode, "checkpoint_saved")}
    assert list(saved) == [2, 4, 5, 6, 8, 10, 12]
    for at in whole_steps(directory):
        verify_checkpoint(directory.checkpoint(at), run_id=f"id-of-{mode}")
        manifest = directory.checkpoint(at) / "manifest.json"
        assert saved[at]["manifest_sha256"] == sha256_of_file(manifest)
    assert not list(directory.checkpoints.glob(".*"))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.parametrize("mode", ["sync", "async"])  # the writing process of the third takes no patch
def test_a_large_file_is_described_part_by_part_as_it_is_written(
    tiny_config: Build, run_training: Run, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "PART_BYTES", 3_000)
    run_training(tiny_config(checkpointing={"mode": mode}), "run")
    checkpoint = RunDirectory(tmp_path / "run").checkpoint(12)
    manifest = verify_checkpoint(checkpoint)
    assert manifest.files == describe_files(checkpoint)
    assert "__0_0.distcp" in [file.path for file in manifest.files if file.parts]


@pytest.mark.parametrize("mode", MODES)
def test_a_save_is_of_its_step_however_late_it_is_whole(
    tiny_config: Build, run_training: Run, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(checkpointing={"keep_last": 9}, training={"validation_steps": None})
    run_training(config, "at-once", listener=Listener(lambda _step: torch.rand(3)))
    listener = Listener(lambda _step: torch.rand(3))
    original = Behind.write

    class HeldBack:
        """Not done until the run has gone three steps further."""

        def __init__(self, outcome: Any) -> None:
            self.result = outcome.result

        def done(self) -> bool:
            return listener._at % 4 == 3

    monkeypatch.setattr(Behind, "run", lambda self, work: HeldBack(self._writer.submit(work)))
    assert Behind.write is original
    late = tiny_config(checkpointing={"keep_last": 9, "mode": mode}, training={"validation_steps": None})
    run_training(late, mode, listener=listener)
    assert listener.saved == ([(4, 4), (8, 8), (12, 12)] if mode == "sync" else [(4, 7), (8, 11), (12, 12)])
    for at in (4, 8, 12):
        one, other = (RunDirectory(tmp_path / name).checkpoint(at) for name in ("at-once", mode))
        assert sha256_of_file(one / "__0_0.distcp") == sha256_of_file(other / "__0_0.distcp")
        records = [json.loads((path / "trainer_state.json").read_text()) for path in (one, other)]
        assert {record["step"] for record in records} == {at}
        assert records[0]["generators"] == records[1]["generators"]
        assert (
            records[1]["seconds"] < read_run(tmp_path / mode / "run.json")["outcome"]["seconds"] or at == 12
        )


# Where a run dies: the function that it reaches, and on which call.
POINTS: dict[str, tuple[Any, str, int]] = {
    "step": (step, "set_learning_rate", 3),
    "staging": (staging, "_copy", 70),
    "write": (hashlib, "sha256", 40),
    "index": (checkpoint, "write_index", 2),
    "record": (checkpoint, "write_json_atomically", 2),
    "before the rename": (checkpoint, "remove_checkpoint", 2),
    "after the rename": (checkpoint, "write_manifest", 2),
    "after the manifest": (saving.Saver, "_conclude", 2),
    "purge": (shutil, "rmtree", 4),
}
# A process starts for each death, and what it writes is its own: the points that differ are enough.
POINTS_OF = {
    "sync": [point for point in POINTS if point != "staging"],
    "async": list(POINTS),
    "async_process": ["staging", "index", "purge"],
}


def in_a_child(work: Callable[[], Any]) -> int:
    """The exit status of a fork of this process that does `work`."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.ExitStack() as last:
        last.callback(os._exit, BUG)
        try:
            work()
        finally:
            traceback.print_exc()
    raise AssertionError("not reached")


def die_at(point: str) -> None:
    owner, name, calls = POINTS[point]
    original, count = getattr(owner, name), itertools.count(1)

    def until_then(*args: Any, **kwargs: Any) -> Any:
        if next(count) >= calls:
            os._exit(DEATH)
        return original(*args, **kwargs)

    setattr(owner, name, until_then)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_dies_at_each_point_of_a_save_ends_bitwise_equal(
    tiny_config: Build, run_training: Run, tmp_path: Path, mode: str
) -> None:
    whole = run_training(tiny_config(training={"max_steps": 20}), "whole")
    config = tiny_config(training={"max_steps": 20}, checkpointing={"mode": mode, "save_steps": 1})
    directory = RunDirectory(tmp_path / mode)

    def train_until(point: str) -> None:
        die_at(point)
        run_training(config, mode)

    for point in POINTS_OF[mode]:
        assert in_a_child(lambda point=point: train_until(point)) == DEATH, point  # type: ignore[misc]
        for at in whole_steps(directory):
            verify_checkpoint(directory.checkpoint(at))
    assert whole_steps(directory)
    assert run_training(config, mode)["state_sha256"] == whole["state_sha256"]
    assert numbers(tmp_path / mode) == numbers(tmp_path / "whole")
    assert whole_steps(directory) == [19, 20]
    assert not list(directory.checkpoints.glob(".*"))


@pytest.mark.parametrize("mode", MODES)
def test_a_save_that_fails_ends_the_run_and_leaves_the_checkpoints_before_it(
    tiny_config: Build, run_training: Run, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_training(tiny_config(), "whole")
    config = tiny_config(checkpointing={"mode": mode})
    made = itertools.count(1)
    original = checkpoint.make_empty
    monkeypatch.setattr(pending_save, "make_empty", lambda path: next(made) == 2 or original(path))
    with pytest.raises(CheckpointError, match="Step 8 was not saved; step 4 is whole"):
        run_training(config, mode)
    monkeypatch.undo()
    (failure,) = events(tmp_path / mode, "checkpoint_failed")
    assert failure["step"] == 8
    assert "No such file" in failure["reason"]
    outcome = read_run(tmp_path / mode / "run.json")["outcome"]
    assert (outcome["status"], outcome["exit_code"]) == ("failed", 1)
    assert [path.name for path in RunDirectory(tmp_path / mode).checkpoints.iterdir()] == ["step-00000004"]
    assert run_training(config, mode)["state_sha256"] == whole["state_sha256"]


def test_the_death_of_the_process_that_writes_is_a_failure_to_save(
    tiny_config: Build, run_training: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(self: WriterProcess, *_args: Any) -> Any:
        self._process.kill()
        return original(self, *_args)

    original = WriterProcess.write
    monkeypatch.setattr(WriterProcess, "write", dying)
    with pytest.raises(CheckpointError, match="was ended by SIGKILL, as Linux does when memory") as failure:
        run_training(tiny_config(checkpointing={"mode": "async_process"}))
    assert "Once that is mended: " in str(failure.value)
    assert "Free space" not in str(failure.value)
    assert not whole_steps(RunDirectory(tmp_path / "run"))


def test_on_a_full_disk_the_message_says_how_full(
    tiny_config: Build, run_training: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any, **_kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(engines, "write_files", full)
    with pytest.raises(
        CheckpointError, match=r"No space left on .* free, a checkpoint needs .*\nFree space in"
    ):
        run_training(tiny_config(checkpointing={"mode": "async"}))


def test_a_record_that_cannot_be_written_hides_no_failure_of_the_run(
    tiny_config: Build, run_training: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(at: int) -> None:
        if at == 5:
            (tmp_path / "run" / "events.jsonl").unlink()
            (tmp_path / "run" / "events.jsonl").mkdir()
            raise ValueError("the test")

    monkeypatch.setattr(Behind, "run", lambda self, work: NeverDone(self._writer.submit(work)))
    with pytest.raises(ValueError, match="the test"):
        run_training(tiny_config(checkpointing={"mode": "async"}), listener=Listener(fail))
    assert whole_steps(RunDirectory(tmp_path / "run")) == [4]


def test_weights_that_are_not_finite_are_not_written_behind_training_either(
    tiny_config: Build, run_training: Run, tmp_path: Path
) -> None:
    poison = tiny_config(
        training={"learning_rate": 3e38, "warmup_steps": 0, "validation_steps": None},
        checkpointing={"mode": "async", "save_steps": 1},
    )
    with pytest.raises(TrainingFailedError, match=r"--set training\.learning_rate=0\.001"):
        run_training(poison)
    assert not list(RunDirectory(tmp_path / "run").checkpoints.iterdir())


def odd_tensors() -> dict[str, dict[str, torch.Tensor]]:
    """Of all kinds that a state may have, one of them larger than the others together."""
    kinds = {
        "cut": torch.randn(64, 32).t(),
        "one": torch.tensor(3.0),
        "none": torch.empty(0, 4),
        "half": torch.randn(99).bfloat16(),
        "count": torch.arange(7),
        "large": torch.randn(300, 1000),
    }
    return {"model": {f"part{i}": torch.randn(57, 13) for i in range(20)} | kinds}


@pytest.mark.parametrize("threads", [1, 5])
def test_whatever_copies_every_tensor_is_copied_each_time(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    tensors, copied_by = odd_tensors(), set[str]()
    plan, copy = share_out(tensors, ALONE).own, staging._copy

    def noted(buffer: torch.Tensor, source: torch.Tensor) -> None:
        copied_by.add(threading.current_thread().name)
        copy(buffer, source)

    monkeypatch.setattr(staging, "_copy", noted)
    engine = Behind(None)
    for _ in range(3):
        for tensor in tensors["model"].values():
            tensor.add_(1)
        engine.stage(plan, live(tensors)).result()
        assert engine._buffers is not None
        for item in plan.items:
            live_one = tensors["model"][item.index.fqn.removeprefix("model.")]
            assert torch.equal(engine._buffers.tensor_of(item), live_one), item.index
    engine.close()
    assert 1 <= len(copied_by) <= threads


def test_a_copy_that_fails_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(buffer: torch.Tensor, _source: torch.Tensor) -> None:
        if buffer.shape == (300, 1000):
            raise MemoryError("the test")

    monkeypatch.setattr(staging, "_copy", fail)
    tensors, engine = odd_tensors(), Behind(None)
    staged = engine.stage(share_out(tensors, ALONE).own, live(tensors))
    with pytest.raises(MemoryError, match="the test"):
        staged.result()
    engine.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_moment_that_is_not_finite_is_noticed_though_no_loss_tells(tmp_path: Path, mode: Any) -> None:
    state = TrainingState(model := torch.nn.Linear(40, 40), torch.optim.AdamW(model.parameters()))
    model(torch.ones(40)).sum().backward()
    state.optimizer.step()
    state.optimizer.state[model.weight]["exp_avg_sq"][39, 39] = math.inf
    directory = RunDirectory(tmp_path)
    directory.create()
    engine = engines.open_engine(mode)
    job = pending_save.SaveJob(directory, SaveOrigin("one", {}), engine)
    save = pending_save.PendingSave(job, state, share_out(state.tensors(), ALONE))
    save.staged()
    with pytest.raises(TrainingFailedError, match=r"Step 0: .*exp_avg_sq is not finite"):
        while save.advance(wait=False) is None:
            time.sleep(0.01)
    engine.close()
    assert not list(directory.checkpoints.iterdir())


def test_a_save_that_is_abandoned_is_not_looked_at_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, begun = itertools.count(), threading.Event()

    def slow(_tensor: torch.Tensor) -> bool:
        next(looked)
        begun.set()
        time.sleep(0.02)
        return True

    monkeypatch.setattr(staging, "is_finite", slow)
    tensors, engine = {"model": {f"part{i}": torch.zeros(1) for i in range(500)}}, Behind(None)
    engine.stage(share_out(tensors, ALONE).own, live(tensors)).result()
    engine.write(tmp_path)
    begun.wait()
    engine.close(at_once=True)
    assert next(looked) < 500
    assert not list(tmp_path.iterdir())


def test_what_is_not_finite_in_another_process_is_written_by_none(tmp_path: Path) -> None:
    """By a world of two, of which the other one's answer came through a pickle, as between processes."""
    other = pickle.loads(pickle.dumps(staging.NotFiniteError("model.of_another")))

    class TwoOf(World):
        def gather(self, value: Any) -> list[Any]:
            return [value, other] if isinstance(value, Written) else [value, value]

        def on_main(self, work: Callable[[], Any]) -> Any:
            return work()

    state = TrainingState(model := torch.nn.Linear(2, 2), torch.optim.AdamW(model.parameters()))
    directory = RunDirectory(tmp_path)
    directory.create()
    job = pending_save.SaveJob(directory, SaveOrigin("one", {}), engines.AtOnce(), TwoOf(0, 2, 0, None))
    save = pending_save.PendingSave(job, state, share_out(state.tensors(), ALONE))
    with pytest.raises(TrainingFailedError, match=r"Step 0: model\.of_another is not finite"):
        save.advance(wait=True)
    assert not list(directory.checkpoints.iterdir())


def test_a_run_that_fails_first_waits_for_the_save_under_way(
    tiny_config: Build, run_training: Run, tmp_path: Path
) -> None:
    def fail(at: int) -> None:
        if at == 5:
            raise ValueError("the test")

    with pytest.raises(ValueError, match="the test"):
        run_training(tiny_config(checkpointing={"mode": "async"}), listener=Listener(fail))
    assert [event["step"] for event in events(tmp_path / "run", "checkpoint_saved")] == [4]
    assert whole_steps(RunDirectory(tmp_path / "run")) == [4]


def test_a_second_interrupt_waits_for_no_save(
    tiny_config: Build, run_training: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write goes on for ever, so that whoever waited for it would wait until the tests' time limit."""

    def interrupt(at: int) -> None:
        if at == 5:
            raise KeyboardInterrupt

    def endless(*_args: Any, goes_on: Callable[[], bool]) -> Iterator[None]:
        while goes_on():
            yield

    monkeypatch.setattr(engines, "write_files", endless)
    with pytest.raises(KeyboardInterrupt):
        run_training(tiny_config(checkpointing={"mode": "async"}), listener=Listener(interrupt))
    assert not whole_steps(RunDirectory(tmp_path / "run"))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


def test_what_is_reserved_before_a_deadline_is_the_save_under_way_and_one_more(
    tiny_config: Build, run_training: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: dict[int, tuple[bool, float]] = {}

    def note(self: saving.Saver) -> None:
        original(self)
        reserved[self._state.step] = (self._pending is not None, self.seconds)

    original = saving.Saver.poll
    monkeypatch.setattr(saving.Saver, "poll", note)
    monkeypatch.setattr(Behind, "run", lambda self, work: NeverDone(self._writer.submit(work)))
    run_training(tiny_config(checkpointing={"mode": "async"}))
    assert reserved[4] == (False, 5.0)  # a guess, until the first one was measured
    assert reserved[5] == (True, 10.0)
    assert reserved[9][0]
    assert 0.2 <= reserved[9][1] < 10.0


def test_what_is_reserved_does_not_count_how_long_a_save_gave_way(
    tiny_config: Build, run_training: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = itertools.count(step=100)
    monkeypatch.setattr(priority, "seconds_given_way", lambda: next(waited))
    reserved: list[float] = []

    def note(self: saving.Saver, *args: Any) -> None:
        original(self, *args)
        reserved.append(self.seconds)

    original = saving.Saver._conclude
    monkeypatch.setattr(saving.Saver, "_conclude", note)
    run_training(tiny_config(checkpointing={"mode": "async"}))
    assert 0.1 in reserved  # the least that is reserved: less than a hundred seconds were not waited for


def test_what_is_reserved_counts_the_copy_and_what_comes_after_the_write(tmp_path: Path) -> None:
    """By a clock that the work moves on: 3 s to prepare, 20 to copy, 7 to look at it, 100 to write."""
    clock = Clock()

    def prepared(plan: Any) -> FileLayout:
        clock.work(3)
        return FileLayout(plan, (), {}, (), [])

    with pytest.MonkeyPatch.context() as patch:
        for module in (engines, priority):
            patch.setattr(module, "time", clock)
        patch.setattr(engines, "Buffers", lambda layout, _descriptor: FakeBuffers(clock, layout))
        patch.setattr(engines, "record", prepared)
        patch.setattr(engines, "write_files", lambda *_, **__: priority.in_one_piece(lambda: clock.work(100)))
        engine = Behind(None)
        try:
            plan: Any = SimpleNamespace(items=["one"])
            assert engine.save_seconds is None
            engine.stage(plan, lambda _item: torch.zeros(1)).result()
            engine.write(tmp_path).result()
            engine.run(lambda: clock.work(1000)).result()
            assert engine.save_seconds == pytest.approx(1130, abs=5)  # less what it waited for a processor
            engine.stage(plan, lambda _item: torch.zeros(1)).result()
            assert engine.save_seconds == pytest.approx(127, abs=5)
        finally:
            engine.close()


class Clock:
    """Stands for `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


class FakeBuffers:
    memory = None

    def __init__(self, clock: Clock, layout: FileLayout) -> None:
        self.layout = layout
        self._clock = clock

    def shares(self, _count: int) -> list[list[Any]]:
        return [[]]

    def fill(self, items: list[Any], _tensor_of: Any) -> None:
        self._clock.work(20)

    def tensor_of(self, _item: Any) -> torch.Tensor:
        self._clock.work(7)
        return torch.zeros(1)


def six_pieces(threads: list[tuple[str, int, int]]) -> Generator[None, None, str]:
    """Work that notes which threads did it, with their niceness and scheduling policy."""
    for _ in range(6):
        niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        threads.append((threading.current_thread().name, niceness, os.sched_getscheduler(0)))
        yield
    return "done"


IDLE = ("checkpoint-idle_0", 19, os.SCHED_IDLE)
BEHIND = ("checkpoint-behind_0", 19, os.SCHED_OTHER)


@pytest.mark.parametrize("hurried_at", [0, 3, 9])
def test_work_that_is_waited_for_is_ended_by_a_thread_that_did_not_step_back(
    hurried_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "seconds_given_way", lambda: 0.0)
    threads: list[tuple[str, int, int]] = []
    own = ("MainThread", os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.SCHED_OTHER)
    way = priority.GivesWay(lambda: len(threads) >= hurried_at)
    assert way.run(six_pieces(threads)) == "done"
    way.close()
    behind = min(hurried_at, 6)
    assert threads == [IDLE] * behind + [own] * (6 - behind)


def test_work_that_finds_no_idle_time_goes_on_with_the_lowest_share(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[tuple[str, int, int]] = []
    monkeypatch.setattr(priority, "seconds_given_way", lambda: 0.6 * priority._PATIENCE * len(threads))
    way = priority.GivesWay(lambda: False)
    assert way.run(six_pieces(threads)) == "done"
    way.close()
    assert threads == [IDLE] * 2 + [BEHIND] * 4
    assert way.seconds == 0.0


def test_the_process_that_writes_is_told_that_it_is_waited_for() -> None:
    writer = WriterProcess()
    try:
        writer.hurry(True)
        assert writer._awaited[0] == 1
        writer.hurry(False)
        assert writer._awaited[0] == 0
    finally:
        writer.close()


class NeverDone:
    def __init__(self, outcome: Any) -> None:
        self.result = outcome.result

    def done(self) -> bool:
        return False
