"""Saves in the foreground and in the background write the same checkpoints, whatever interrupts."""

import errno
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.cases import each_case
from tests.unit.training.lab import Lab

from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, StoppedError, TrainingFailedError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import verify_checkpoint
from trainyard.run.checkpoint_retention import complete_steps
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import grace_needed
from trainyard.training import loop
from trainyard.training.checkpoint import checkpoint, shards, writer_process
from trainyard.training.checkpoint.shards import WrittenFiles, share_out
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.checkpoint.writer_process import BackgroundEngine
from trainyard.training.data.training_data import ready_data
from trainyard.training.run import checkpoint_scheduler
from trainyard.training.run.run_context import Request
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.runtime.world import ALONE, World

MODES = ("sync", "async")
DEATH = 99
CONFIG = Config.model_validate({"model": {"name": "m"}, "training": {"max_steps": 9}})


def context_of(directory: RunDirectory, state: TrainingState, world: World = ALONE) -> Any:
    """What a save reads of the context of a run."""
    return SimpleNamespace(
        directory=directory, run_id="one", fits={}, state=state, world=world, config=CONFIG
    )


class Listener:
    """Calls `act` with the step of each row."""

    def __init__(self, act: Callable[[int], Any]) -> None:
        self.act = act
        self.saved: list[tuple[int, int]] = []
        """Step saved, and the step after which it was complete."""
        self._at = 0

    def on_row(self, row: dict[str, Any]) -> None:
        self._at = row["step"]
        self.act(self._at)

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "checkpoint_saved":
            self.saved.append((fields["step"], self._at))


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_saves_when_it_is_due_and_stays_out_of_the_numbers(lab: Lab, mode: str) -> None:
    uninterrupted = lab.once("uninterrupted")
    config = lab.config(checkpointing={"mode": mode, "save_steps": 2, "keep_every": 4})
    with pytest.raises(StoppedError, match="Stopped at step 5"):
        lab.run(config, mode, **lab.stop_after(5))
    assert lab.run(config, mode)["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.numbers(mode) == lab.numbers("uninterrupted")
    directory = lab.directory(mode)
    assert complete_steps(directory) == [4, 8, 10, 12]
    saved = {event["step"]: event for event in lab.events(mode, "checkpoint_saved")}
    assert list(saved) == [2, 4, 5, 6, 8, 10, 12]
    for at in complete_steps(directory):
        verify_checkpoint(directory.checkpoint(at), run_id=f"id-of-{mode}")
        manifest = directory.checkpoint(at) / "manifest.json"
        assert saved[at]["manifest_sha256"] == sha256_of_file(manifest)
    assert not list(directory.checkpoints.glob(".*"))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


def test_a_save_is_of_its_step_however_late_it_is_complete(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    config = lab.config(checkpointing={"keep_last": 9}, training={"validation_steps": None})
    lab.run(config, "at-once", listener=Listener(lambda _step: torch.rand(3)))
    listener = Listener(lambda _step: torch.rand(3))

    delay_saves(monkeypatch, lambda: listener._at % 4 == 3)  # until the run has gone three steps further
    late = lab.config(checkpointing={"keep_last": 9, "mode": "async"}, training={"validation_steps": None})
    lab.run(late, "late", listener=listener)
    assert listener.saved == [(4, 7), (8, 11), (12, 12)]
    for at in (4, 8, 12):
        one, other = (lab.directory(name).checkpoint(at) for name in ("at-once", "late"))
        assert sha256_of_file(one / "__0_0.distcp") == sha256_of_file(other / "__0_0.distcp")
        records = [json.loads((path / "trainer_state.json").read_text()) for path in (one, other)]
        assert {record["step"] for record in records} == {at}
        assert records[0]["generators"] == records[1]["generators"]
        assert records[1]["seconds"] <= lab.outcome("late")["seconds"] or at == 12


# Points at which a run dies: a function, and the number of the call that ends the run.
POINTS: dict[str, tuple[Any, str, int]] = {
    "step": (loop, "clip_gradients", 3),
    "staging": (shards.Copies, "tensor_of", 70),
    "write": (hashlib, "sha256", 40),
    "index": (checkpoint, "write_checkpoint_index", 2),
    "record": (checkpoint, "write_json_atomically", 2),
    "before the rename": (checkpoint, "remove_checkpoint", 2),
    "after the rename": (checkpoint, "write_manifest", 2),
    "after the manifest": (checkpoint_scheduler.Saver, "_conclude", 2),
    "purge": (shutil, "rmtree", 4),
}
# A patch does not reach a writer process, which ends with its trainer; tests/integration kills at random.
POINTS_OF = {
    "sync": [point for point in POINTS if point != "staging"],
    "async": ["step", "staging"],  # each death costs a writer process, which imports torch
}


def train_until(config: Config, run: Path, point: str) -> None:
    """Train, and end this process with the code DEATH at `point`."""
    owner, name, calls = POINTS[point]
    original, count = getattr(owner, name), itertools.count(1)

    def die_in_time(*args: Any, **kwargs: Any) -> Any:
        if next(count) >= calls:
            os._exit(DEATH)
        return original(*args, **kwargs)

    setattr(owner, name, die_in_time)
    data = ready_data(config.data, config.model)
    request = Request(config, RunDirectory(run), data, "auto", f"id-of-{run.name}", {"version": "test"})
    loop.train(request, stop=StopRequest(), listener=Listener(lambda _: None))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_dies_at_each_point_of_a_save_ends_bitwise_equal(lab: Lab, mode: str) -> None:
    """Each death is that of a fork of a server that has imported torch, and never of this process.

    A fork of a process that has run autograd may be unable to run it.
    """
    uninterrupted = lab.run(lab.config(training={"max_steps": 20}), "uninterrupted")
    config = lab.config(training={"max_steps": 20}, checkpointing={"mode": mode, "save_steps": 1})
    directory = lab.directory(mode)
    context = multiprocessing.get_context("forkserver")
    for point in POINTS_OF[mode]:
        process = context.Process(target=train_until, args=(config, directory.path, point))
        process.start()
        process.join()
        assert process.exitcode == DEATH, point
        for at in complete_steps(directory):
            verify_checkpoint(directory.checkpoint(at))
    assert complete_steps(directory)
    assert lab.run(config, mode)["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.numbers(mode) == lab.numbers("uninterrupted")
    assert complete_steps(directory) == [19, 20]
    assert not list(directory.checkpoints.glob(".*"))


@pytest.mark.parametrize("mode", MODES)
def test_a_save_that_fails_ends_the_run_and_leaves_the_checkpoints_before_it(
    lab: Lab, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = lab.once("uninterrupted")
    config = lab.config(checkpointing={"mode": mode})
    made = itertools.count(1)
    original = checkpoint.make_empty
    monkeypatch.setattr(checkpoint, "make_empty", lambda path: next(made) == 2 or original(path))
    with pytest.raises(CheckpointError, match="Step 8 was not saved; step 4 is complete"):
        lab.run(config, mode)
    monkeypatch.undo()
    (failure,) = lab.events(mode, "checkpoint_failed")
    assert failure["step"] == 8
    assert "No such file" in failure["reason"]
    outcome = lab.outcome(mode)
    assert (outcome["status"], outcome["exit_code"]) == ("failed", 1)
    assert [path.name for path in lab.directory(mode).checkpoints.iterdir()] == ["step-00000004"]
    assert lab.run(config, mode)["state_sha256"] == uninterrupted["state_sha256"]


def test_the_death_of_the_process_that_writes_is_a_failure_to_save(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: BackgroundEngine, path: Path) -> Any:
        self._process.kill()
        return original(self, path)

    original = BackgroundEngine.write
    monkeypatch.setattr(BackgroundEngine, "write", die)
    with pytest.raises(CheckpointError, match="was ended by SIGKILL, as Linux does when memory") as failure:
        lab.run(lab.config(checkpointing={"mode": "async"}))
    assert "Once that is fixed: " in str(failure.value)
    assert "Free space" not in str(failure.value)
    assert not complete_steps(lab.directory())


@each_case(
    ("owner", "name", "number", "message"),
    [
        (
            BackgroundEngine,
            "write",
            errno.ENOSPC,
            r"No space left on .* free, a checkpoint needs .*\nFree space in",
        ),
        (writer_process, "Copies", errno.ENOMEM, r"Cannot allocate memory\. Step 4 was not saved"),
    ],
)
def test_room_that_a_save_lacks_is_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, message: str
) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(CheckpointError, match=message):
        lab.run(lab.config(checkpointing={"mode": "async"}), f"without-{number}")
    assert not list(lab.directory(f"without-{number}").checkpoints.iterdir())


def test_a_record_that_is_not_written_hides_no_failure(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(at: int) -> None:
        if at == 5:
            (lab.folder / "run" / "events.jsonl").unlink()
            (lab.folder / "run" / "events.jsonl").mkdir()
            raise ValueError("the test")

    delay_saves(monkeypatch)
    with pytest.raises(ValueError, match="the test"):
        lab.run(lab.config(checkpointing={"mode": "async"}), listener=Listener(fail))
    assert complete_steps(lab.directory()) == [4]


@pytest.mark.parametrize("mode", MODES)
def test_a_moment_that_is_not_finite_is_noticed_though_no_loss_tells(tmp_path: Path, mode: Any) -> None:
    state = TrainingState(model := torch.nn.Linear(40, 40), torch.optim.AdamW(model.parameters()))
    model(torch.ones(40)).sum().backward()
    state.optimizer.step()
    state.optimizer.state[model.weight]["exp_avg_sq"][39, 39] = math.inf
    directory = RunDirectory(tmp_path)
    directory.create()
    engine = writer_process.open_engine(mode)
    context = context_of(directory, state)
    save = checkpoint.PendingSave(context, share_out(state.tensors(), ALONE), engine)
    save.wait_until_staged()
    with pytest.raises(TrainingFailedError, match=r"Step 0: .*exp_avg_sq is not finite"):
        while save.advance(wait=False) is None:
            time.sleep(0.01)
    engine.close()
    assert not list(directory.checkpoints.iterdir())


def test_a_state_that_is_not_finite_in_another_process_is_written_by_none(tmp_path: Path) -> None:
    """The answer of the other process went through a pickle, as it does between processes."""
    other = pickle.loads(pickle.dumps(shards.NotFiniteError("model.of_another")))

    class WorldOfTwo(World):
        def gather(self, value: Any) -> list[Any]:
            is_of_writing = isinstance(value, tuple) and isinstance(value[1], WrittenFiles)
            return [value, (other, None)] if is_of_writing else [value, value]

        def run_on_main(self, work: Callable[[], Any]) -> Any:
            return work()

    state = TrainingState(model := torch.nn.Linear(2, 2), torch.optim.AdamW(model.parameters()))
    directory = RunDirectory(tmp_path)
    directory.create()
    engine, world = writer_process.Engine(), WorldOfTwo(0, 2, 0, None)
    context = context_of(directory, state, world)
    save = checkpoint.PendingSave(context, share_out(state.tensors(), ALONE), engine)
    with pytest.raises(TrainingFailedError, match=r"Step 0: model\.of_another is not finite"):
        save.advance(wait=True)
    assert not list(directory.checkpoints.iterdir())


def test_a_second_interrupt_waits_for_no_save(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer process is stopped: waiting for it would last until the time limit of the tests."""

    def interrupt(at: int) -> None:
        if at == 5:
            raise KeyboardInterrupt

    def stopped(self: BackgroundEngine, path: Path) -> Any:
        os.kill(self._process._process.pid, signal.SIGSTOP)
        return original(self, path)

    original = BackgroundEngine.write
    monkeypatch.setattr(BackgroundEngine, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        lab.run(lab.config(checkpointing={"mode": "async"}), listener=Listener(interrupt))
    assert not complete_steps(lab.directory())
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


def test_time_for_the_save_under_way_and_one_more_is_reserved_before_a_deadline(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each save seems to have started a thousand seconds ago, in which the run was not held up."""
    reserved: dict[int, tuple[bool, float]] = {}

    def note(self: checkpoint_scheduler.Saver) -> None:
        original(self)
        reserved[self._state.step] = (self._pending is not None, self.seconds)

    def long_ago(self: checkpoint.PendingSave, *args: Any) -> None:
        start(self, *args)
        self._start -= 1000

    original, start = checkpoint_scheduler.Saver.poll, checkpoint.PendingSave.__init__
    monkeypatch.setattr(checkpoint_scheduler.Saver, "poll", note)
    monkeypatch.setattr(checkpoint.PendingSave, "__init__", long_ago)
    delay_saves(monkeypatch)
    lab.run(lab.config(checkpointing={"mode": "async"}))
    assert reserved[4] == (False, 5.0)  # a guess until the first save is measured
    assert reserved[5] == (True, 10.0)
    assert reserved[9][0]
    assert 0.2 <= reserved[9][1] < 120 and reserved[9][1] != 10.0  # as measured


@pytest.mark.parametrize(
    ("mode", "at", "left", "last"),
    [("async", 5, 9.9, 4), ("async", 5, math.inf, 5), ("sync", 6, 4.9, 4), ("sync", 6, 5.1, 6)],
)
def test_a_stop_saves_once_more_only_where_the_grace_period_has_time_for_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, mode: str, at: int, left: float, last: int
) -> None:
    """Each save seems to take five seconds; one in the background must end before the last one starts."""
    conclude = checkpoint_scheduler.Saver._conclude

    def slow(self: checkpoint_scheduler.Saver, *args: Any) -> None:
        conclude(self, *args)
        self._seconds = 5.0

    config = lab.config(checkpointing={"mode": mode}, training={"validation_steps": None})
    uninterrupted = lab.run(config, "uninterrupted")
    stop_arguments = lab.stop_after(at)
    monkeypatch.setattr(stop_arguments["stop"], "seconds_left", lambda: left)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_scheduler.Saver, "_conclude", slow)
        delay_saves(patch)
        with pytest.raises(StoppedError, match=f"Stopped at step {last} of 12") as stopped:
            lab.run(config, **stop_arguments)
    not_saved = f"The grace period had no time left to save step {at}{' too' * (mode == 'async')}."
    assert (not_saved in str(stopped.value)) is (last == 4)
    directory = lab.directory()
    outcome = lab.outcome()
    manifest = sha256_of_file(directory.checkpoint(last) / "manifest.json")
    assert complete_steps(directory) == sorted({4, last})
    assert (outcome["steps"], outcome["checkpoint"]) == (last, {"step": last, "manifest_sha256": manifest})
    assert ("state_sha256" in outcome) is (last == at), "the tensors in memory are those of the stop"
    assert lab.run(config)["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.numbers() == lab.numbers("uninterrupted")


def test_the_duration_of_a_stop_is_measured_recorded_and_compared_with_the_grace_period(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    long, short = StopRequest(grace=3600.0), StopRequest(grace=0.5)
    for name, stop in (("long", long), ("short", short)):
        outcome = lab.run(lab.config(), name, stop=stop)
        assert stop.needed is not None
        assert 2.0 <= stop.needed < 60
        assert outcome["grace_seconds_needed"] == round(stop.needed, 1)
        assert "seconds_since_signal" not in outcome
        assert grace_needed(lab.folder / name) == outcome["grace_seconds_needed"]
        assert len(lab.events(name, "grace_too_short")) == (name == "short"), "it is reported once"
    assert "Set --grace, and terminationGracePeriodSeconds of the pod, to " in caplog.text
    assert grace_needed(lab.folder / "nothing") == grace_needed(None) == 0.0


def test_the_duration_of_a_stop_is_not_reported_before_a_usual_step_was_measured(lab: Lab) -> None:
    """The first step of a segment compiles, and without a usual step the estimate would be too short."""
    for steps, known in ((1, False), (2, True)):
        stop_arguments = lab.stop_after(steps)
        with pytest.raises(StoppedError):
            lab.run(lab.config(checkpointing={"save_steps": 1}), f"after-{steps}", **stop_arguments)
        assert (stop_arguments["stop"].needed is not None) is known


def test_a_stop_removes_nothing(lab: Lab) -> None:
    config = lab.config(checkpointing={"keep_last": 1}, training={"validation_steps": None})
    with pytest.raises(StoppedError):
        lab.run(config, **lab.stop_after(5))
    directory = lab.directory()
    assert complete_steps(directory) == [4, 5], "the next segment removes it"
    lab.run(config)
    assert complete_steps(directory) == [12]


def delay_saves(patch: pytest.MonkeyPatch, is_done: Callable[[], bool] = lambda: False) -> None:
    """Let every background save seem to be in progress until `is_done`, or until it is waited for."""
    start = BackgroundEngine.start

    def start_slowly(engine: BackgroundEngine, work: Callable[[], Any]) -> Any:
        return SimpleNamespace(result=start(engine, work).result, done=is_done)

    patch.setattr(BackgroundEngine, "start", start_slowly)
