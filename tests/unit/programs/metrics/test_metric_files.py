"""Rows from files of metrics: each kind, while it grows, or cut off, rewritten or older than the start."""

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.programs.metric_rows import row_fault
from trainyard.programs.metrics.metric_files import MetricFiles

Row = dict[str, Any]
STARTED = 1_700_000_000.0


@dataclass(frozen=True)
class Kind:
    """A kind of text file: its name, the line of a row, the lines before the rows."""

    path: str
    line: Callable[[int], str]
    head: Sequence[str] = ()
    more: Callable[[int], Mapping[str, Any]] = lambda _: {}
    """Figures besides step and loss."""


def as_json(**figures: Any) -> str:
    return json.dumps(figures)


KINDS: Mapping[str, Kind] = {
    "json lines": Kind("out/metrics.jsonl", lambda step: as_json(step=step, loss=step / 4, note="x")),
    "nested": Kind(
        "log/run.jsonl",
        lambda step: as_json(step=step, data={"train/loss": step / 4, "f1": 2}),
        more=lambda _: {"f1": 2},
    ),
    "llama-factory": Kind(
        "saves/trainer_log.jsonl",
        lambda step: as_json(current_steps=step, total_steps=9, loss=step / 4, lr=0.5, epoch=0.5),
        more=lambda _: {"learning_rate": 0.5, "epoch": 0.5, "total_steps": 9},
    ),
    "csv": Kind(
        "out/progress.csv",
        lambda step: f"{step},{step / 4},0.5",
        ("iter,train_loss,lr",),
        lambda _: {"learning_rate": 0.5},
    ),
    "tsv": Kind("out/progress.tsv", lambda step: f"{step}\t{step / 4}", ("global_step\tloss",)),
    "lightning": Kind(
        "lightning_logs/version_0/metrics.csv",
        lambda step: f"0,,0.5,{step - 1},,\n0,,,{step - 1},{step / 4},\n0,9.5,,{step - 1},,2.5",
        ("epoch,train_loss_epoch,lr-AdamW,step,train_loss_step,val_loss",),
        lambda _: {"epoch": 0.0, "learning_rate": 0.5, "val_loss": 2.5, "train_loss_epoch": 9.5},
    ),
}
EPOCHS: Mapping[str, tuple[str, str, Row]] = {
    "keras": (
        "log.csv",
        "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2.5,0.25,2.75\n",
        {"epoch": 0, "accuracy": 0.5, "loss": 2.5, "val_accuracy": 0.25, "val_loss": 2.75},
    ),
    "timm": (
        "output/train/x/summary.csv",
        "epoch,train_loss,eval_loss,eval_top1,lr\n1,2.5,2.75,10.5,0.5\n",
        {"epoch": 1, "loss": 2.5, "val_loss": 2.75, "eval_top1": 10.5, "learning_rate": 0.5},
    ),
    "ultralytics": (
        "runs/detect/train/results.csv",
        "epoch,      time,train/box_loss,metrics/mAP50(B),val/box_loss,lr/pg0\n1,9.5,2.5,0.5,2.75,0.25\n",
        {
            "epoch": 1,
            "train/box_loss": 2.5,
            "metrics/mAP50(B)": 0.5,
            "val/box_loss": 2.75,
            "learning_rate": 0.25,
        },
    ),
    "fastai": (
        "history.csv",
        "epoch,train_loss,valid_loss,accuracy,time\n0,2.5,2.75,0.5,00:12\n",
        {"epoch": 0, "loss": 2.5, "val_loss": 2.75, "accuracy": 0.5},
    ),
    "json lines": (
        "log.txt.jsonl",
        '{"train_lr": 0.5, "train_loss": 2.5, "test_acc1": 10.5, "epoch": 3}\n',
        {"learning_rate": 0.5, "loss": 2.5, "test_acc1": 10.5, "epoch": 3},
    ),
    "named": ("a.csv", "epoch,score\n1,0.5\n", {"epoch": 1, "score": 0.5}),
}


class Folder:
    """A program's directory; its files have times after the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._time = STARTED + 1

    def write(self, name: str, text: str, *, mode: str = "w") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(text)
        self._time += 1
        os.utime(path, (self._time, self._time))
        return path

    def append(self, name: str, text: str) -> Path:
        return self.write(name, text, mode="a")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def polled(files: MetricFiles, **options: Any) -> list[Row]:
    """Return new rows without their times, those of one step as one."""
    steps: dict[Any, Row] = {}
    for found in files.poll(**options):
        steps.setdefault(found.get("step", found.get("epoch")), {}).update(found)
        del steps[found.get("step", found.get("epoch"))]["time"]
    return list(steps.values())


def row(kind: str, step: int) -> Row:
    return {"step": step, "loss": step / 4, **KINDS[kind].more(step)}


def lines(kind: str, *steps: int, head: bool = True) -> str:
    shown = KINDS[kind]
    return "".join(f"{line}\n" for line in [*(shown.head if head else ()), *map(shown.line, steps)])


@each_case("kind", KINDS)
def test_a_file_is_read_as_it_grows(tmp_path: Path, kind: str) -> None:
    name = KINDS[kind].path
    for setting in ("auto", name, str(Path(name).parent)):
        folder = Folder(tmp_path / str(setting == "auto") / str(setting == name))
        (folder.path / name).parent.mkdir(parents=True)
        files = MetricFiles(folder.path, setting)
        assert polled(files) == []
        folder.write(name, lines(kind, 1, 2))
        assert polled(files) == [row(kind, 1), row(kind, 2)]
        assert polled(files) == []
        folder.append(name, lines(kind, 3, head=False))
        assert polled(files) == [row(kind, 3)]
        assert files.notes == ()
        assert files.steps_asked == (9 if kind == "llama-factory" else None)


@each_case("kind", KINDS)
def test_a_line_without_its_end_waits(folder: Folder, kind: str) -> None:
    name, text = KINDS[kind].path, lines(kind, 1, 12)
    files = MetricFiles(folder.path)
    rows: list[Row] = []
    for size in range(0, len(text), 3):
        folder.write(name, text[:size])
        rows += polled(files)
    assert {found["step"] for found in rows} <= {1, 12}
    folder.write(name, text.removesuffix("\n"))
    rows += polled(files) + polled(files, at_end=True)
    merged: dict[int, Row] = {}
    for found in rows:
        merged.setdefault(found["step"], {}).update(found)
    assert merged == {1: row(kind, 1), 12: row(kind, 12)}


@each_case("kind", KINDS)
def test_a_file_that_is_written_anew_is_read_anew(folder: Folder, kind: str) -> None:
    name = KINDS[kind].path
    files = MetricFiles(folder.path)
    folder.write(name, lines(kind, 1, 2, 3))
    assert len(polled(files)) == 3
    for steps, is_removed in (((7,), False), ((5, 6, 7, 8), True), (range(11, 16), False)):
        if is_removed:
            (folder.path / name).unlink()
        folder.write(name, lines(kind, *steps))
        assert polled(files) == [row(kind, step) for step in steps]


@each_case("kind", KINDS)
def test_a_file_of_an_earlier_run_is_read_anew_if_it_is_written_anew_with_the_same_lines(
    tmp_path: Path, kind: str
) -> None:
    """A seeded program writes the same lines again; only what was appended to a file is new in it."""
    name, first = KINDS[kind].path, range(1, 41)
    changed = lines(kind, *first).replace(lines(kind, 40, head=False), lines(kind, 39, head=False))
    cases = {
        "the same": ("w", lines(kind, *first), [*first]),
        "another end": ("w", changed + lines(kind, 41, head=False), [*first[:-1], 41]),
        "a longer one": ("a", lines(kind, 41, 42, head=False), [41, 42]),
    }
    for case, (mode, text, steps) in cases.items():
        folder = Folder(tmp_path / case)
        folder.write(name, lines(kind, *first))
        files = MetricFiles(folder.path, created=STARTED)
        folder.write(name, text, mode=mode)
        assert [found["step"] for found in polled(files)] == steps, case
        folder.append(name, lines(kind, 50, head=False))
        assert [found["step"] for found in polled(files)] == [50], case


@each_case("kind", KINDS)
def test_what_was_there_before_the_start_is_not_reported(folder: Folder, kind: str) -> None:
    name = KINDS[kind].path
    folder.write(name, lines(kind, 1, 2))
    folder.write("copy/" + Path(name).name, lines(kind, 1, 2) + lines(kind, 3).strip())
    files = MetricFiles(folder.path)
    assert polled(files, at_end=True) == []
    folder.append(name, lines(kind, 3, head=False))
    assert polled(files) == [row(kind, 3)]


def test_files_of_others_are_not_read(folder: Folder) -> None:
    files = MetricFiles(folder.path, ignored=[folder.path / "ours"])
    for hidden in (".venv/lib", ".git", "a/node_modules/b", "lib/site-packages/x", "wandb/run-1", "ours/run"):
        folder.write(f"{hidden}/metrics.jsonl", lines("json lines", 1))
    folder.write("environment/pyvenv.cfg", "")
    folder.write("environment/metrics.jsonl", lines("json lines", 1))
    assert polled(files) == []
    folder.write("own/metrics.jsonl", lines("json lines", 1))
    assert polled(files) == [row("json lines", 1)]


def test_data_is_not_taken_for_metrics_unless_it_is_named(folder: Folder) -> None:
    files, named = MetricFiles(folder.path), MetricFiles(folder.path, "prices.csv")
    folder.write("data/train.jsonl", '{"text": "step 1 loss 2"}\n' * 500 + '{"step": 1, "loss": 2}\n')
    folder.write("data/train.csv", "text,label\nx,1\n")
    folder.write("prices.csv", "step,price\n1,0.5\n")
    folder.write("samples.jsonl", '{"step": 1, "length": 20}\n')
    folder.write("monitor/Train_Samples_train_loss.csv", "step,train_loss\n512,2.5\n")
    folder.write("odd.jsonl", '[1]\n"x"\n{\n{"step": "a", "loss": 1}\n{"step": -1, "loss": 1}\n\x00\n')
    assert (polled(files), polled(named)) == ([], [{"step": 1, "price": 0.5}])
    assert files.notes == ()


@each_case("library", EPOCHS)
def test_files_of_epochs_have_rows_with_the_names_of_the_program(library: str, tmp_path: Path) -> None:
    name, text, expected = EPOCHS[library]
    (tmp_path / library).mkdir()
    folder = Folder(tmp_path / library)
    files = MetricFiles(folder.path, name if library == "named" else "auto")
    folder.write(name, text)
    assert polled(files) == [expected]


def test_a_named_file_of_another_form_is_refused(folder: Folder) -> None:
    folder.write("x.log", "\x00\x01")
    folder.write("a.png", "\x00\x01")
    for name in ("model.safetensors", "metrics.parquet", "a.png", "x.log"):
        with pytest.raises(ConfigError, match=rf"program.metrics: {name} is not a file of metrics. Name one"):
            MetricFiles(folder.path, name)


def test_the_column_that_lightning_adds_rewrites_the_rows(folder: Folder) -> None:
    name = "lightning_logs/version_0/metrics.csv"
    files = MetricFiles(folder.path)
    folder.write(name, "epoch,step,train_loss\n0,0,2.5\n0,1,2.25\n")
    assert [found["step"] for found in polled(files)] == [1, 2]
    folder.write(name, "epoch,step,train_loss,val_loss\n0,0,2.5,\n0,1,2.25,\n0,1,,2.75\n0,2,2.0,\n")
    assert polled(files)[1:] == [
        {"step": 2, "epoch": 0.0, "loss": 2.25, "val_loss": 2.75},
        {"step": 3, "epoch": 0.0, "loss": 2.0},
    ]
    folder.write("lightning_logs/version_1/metrics.csv", "epoch,step,train_loss\n0,3,1.5\n")
    assert polled(files) == [{"step": 4, "epoch": 0.0, "loss": 1.5}]


# The state of the Hugging Face trainer.


def state(*steps: int, loss: float = 0.0) -> str:
    history: list[Row] = []
    for step in steps:
        figures = {"epoch": step / 16, "grad_norm": 1.5, "learning_rate": 0.5, "loss": step / 4 + loss}
        history.append({**figures, "step": step})
        if step % 4 == 0:
            history.append({"epoch": step / 16, "eval_loss": 2.5, "eval_runtime": 0.1, "step": step})
    history.append({"epoch": 1.0, "step": 9, "train_loss": 2.0, "train_runtime": 1.0, "total_flos": 1.0})
    return json.dumps({"global_step": max(steps), "max_steps": 9, "log_history": history})


def state_row(step: int) -> Row:
    figures = {"step": step, "epoch": step / 16, "grad_norm": 1.5, "learning_rate": 0.5, "loss": step / 4}
    return figures | ({"val_loss": 2.5, "eval_runtime": 0.1} if step % 4 == 0 else {})


def test_the_history_of_each_checkpoint_is_reported_once(folder: Folder) -> None:
    files = MetricFiles(folder.path)
    folder.write("out/checkpoint-4/trainer_state.json", state(1, 2, 3, 4))
    assert polled(files) == [state_row(step) for step in (1, 2, 3, 4)]
    folder.write("out/checkpoint-6/trainer_state.json", state(1, 2, 3, 4, 5, 6))
    assert polled(files) == [state_row(5), state_row(6)]
    assert files.steps_asked == 9
    (folder.path / "out/checkpoint-4/trainer_state.json").unlink()
    assert polled(files) == []


@each_case(("stops", "wanted"), [(True, 6), (False, None), (None, None)])
def test_a_trainers_state_says_it_stopped(stops: bool | None, wanted: int | None, folder: Folder) -> None:
    files, found = MetricFiles(folder.path), json.loads(state(1, 2, 6))
    control = {"TrainerControl": {"args": {"should_training_stop": stops}}}
    found["stateful_callbacks"] = control if stops else []
    folder.write("out/checkpoint-6/trainer_state.json", json.dumps(found))
    polled(files)
    folder.write("store/checkpoint-2/trainer_state.json", state(1, 2))  # copied after the last one
    polled(files)
    assert (files.ended_at, files.steps_asked) == (wanted, 9)


def test_the_history_before_a_resume_is_not_reported(tmp_path: Path) -> None:
    """It is in a checkpoint of the program, or in the copy from which it resumes."""
    for place in ("out/checkpoint-4", "runs/a/checkpoints/step-00000004"):
        folder = Folder(tmp_path / place.replace("/", "-"))
        taken = folder.write(f"{place}/trainer_state.json", state(1, 2, 3, 4)).parent
        ignored = [folder.path / "runs"]
        files = MetricFiles(folder.path, ignored=ignored, resumed_from=taken if "runs" in place else None)
        folder.write("out/checkpoint-6/trainer_state.json", state(1, 2, 3, 4, 5, 6))
        assert polled(files) == [state_row(5), state_row(6)]
        folder.write("out/checkpoint-6/trainer_state.json", state(1, 2, 3, 4, 5, 6, 7, loss=0.125))
        assert [found["step"] for found in polled(files)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_state_that_is_being_written_waits(folder: Folder) -> None:
    files = MetricFiles(folder.path)
    text = state(1, 2)
    for size in range(0, len(text), 50):
        folder.write("trainer_state.json", text[:size])
        assert polled(files) == []
    folder.write("trainer_state.json", text)
    assert polled(files) == [state_row(1), state_row(2)]


def test_a_nan_in_a_state_is_a_fault(folder: Folder) -> None:
    files = MetricFiles(folder.path)
    folder.write("trainer_state.json", state(1).replace('"grad_norm": 1.5', '"grad_norm": NaN'))
    (found,) = polled(files)
    assert row_fault(found) == "step 1: the gradient norm is nan, which is not finite"
    folder.write("trainer_state.json", '{"log_history": 3}')
    folder.write("x/trainer_state.json", "[]")
    assert polled(files) == []


# TensorBoard.


def event_file(folder: Folder, place: str) -> Any:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(str(folder.path / place))


def add(writer: Any, step: int, *, new_layout: bool = False, **figures: float) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.util.tensor_util import make_tensor_proto

    values = [
        Summary.Value(tag=tag.replace("__", "/"), tensor=make_tensor_proto(number))
        if new_layout
        else Summary.Value(tag=tag.replace("__", "/"), simple_value=number)
        for tag, number in figures.items()
    ]
    values.append(Summary.Value(tag="note", tensor=make_tensor_proto("text")))
    writer.add_event(Event(wall_time=STARTED + step, step=step, summary=Summary(value=values)))
    writer.flush()


def add_tags(writer: Any, step: int, figures: dict[str, float]) -> None:
    add(writer, step, new_layout=False, **figures)


def test_events_of_megatron_and_torchtitan_are_rows_of_their_steps(folder: Folder) -> None:
    """Their tags, as their sources write them; Megatron has each figure twice, once by samples."""
    files = MetricFiles(folder.path, "tensorboard")
    writer = event_file(folder, "tensorboard")
    for step in (1, 2):
        own = {"lm loss": 3.0 / step, "learning-rate": 1e-4, "grad-norm": 2.0, "batch-size": 512.0}
        add_tags(writer, step, own)
        add_tags(writer, 512 * step, {f"{tag} vs samples": value for tag, value in own.items()})
    add_tags(writer, 2, {"iteration-time": 0.5, "lm loss validation": 2.5, "lm loss validation-test": 2.6})
    add_tags(writer, 1024, {"lm loss validation vs samples": 2.5})
    assert polled(files) == [
        {"step": 1, "loss": 3.0, "learning_rate": pytest.approx(1e-4), "grad_norm": 2.0, "batch-size": 512.0},
        {
            "step": 2,
            "loss": 1.5,
            "learning_rate": pytest.approx(1e-4),
            "grad_norm": 2.0,
            "batch-size": 512.0,
            "step_seconds": 0.5,
            "val_loss": 2.5,
            "lm loss validation-test": pytest.approx(2.6),
        },
    ]
    writer = event_file(folder, "tensorboard/20261130-1200")
    figures = {"loss_metrics/global_avg_loss": 2.0, "loss_metrics/global_max_loss": 2.5, "grad_norm": 1.5}
    add_tags(writer, 10, {**figures, "mfu(%)": 50.0, "validation_metrics/loss": 2.25})
    (row,) = polled(files)
    assert row == {
        "step": 10,
        "loss": 2.0,
        "loss_metrics/global_max_loss": 2.5,
        "grad_norm": 1.5,
        "mfu": 0.5,
        "val_loss": 2.25,
    }


@pytest.mark.parametrize("new_layout", [False, True])
def test_events_of_tensorboard_are_read_as_they_come(folder: Folder, new_layout: bool) -> None:
    files = MetricFiles(folder.path)
    writer = event_file(folder, "runs/Nov26")
    add(writer, 1, new_layout=new_layout, train__loss=2.5, train__grad_norm=1.5, train__epoch=0.25)
    assert polled(files) == [{"step": 1, "loss": 2.5, "grad_norm": 1.5, "epoch": 0.25}]
    add(writer, 2, new_layout=new_layout, train__loss=float("nan"))
    add(writer, 2, new_layout=new_layout, eval__loss=2.75)
    add(writer, 3, new_layout=new_layout, train__train_loss=2.0, other=1.0)
    assert polled(files) == [
        {"step": 2, "loss": "nan", "val_loss": 2.75},
        {"step": 3, "train/train_loss": 2.0, "other": 1.0},
    ]
    writer.close()
    assert (polled(files), files.notes) == ([], ())


@pytest.mark.parametrize("tag", ["time__batch", "reduced_train_loss"])
def test_programs_that_count_from_0_have_steps_from_1(folder: Folder, tag: str) -> None:
    files = MetricFiles(folder.path)
    figures: dict[str, Any] = {"loss__train__total": 2.5, tag: 2.5}
    add(event_file(folder, "tb"), 0, **figures)
    add(event_file(folder, "lightning_logs/version_3"), 4, train_loss=2.5)
    assert [(found["step"], found["loss"]) for found in polled(files)] == [(1, 2.5), (5, 2.5)]


# Other libraries.


@pytest.mark.slow
def test_offline_runs_of_wandb_are_read_with_its_own_reader(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written as wandb does, by its own writer."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    path = folder.path / "wandb/offline-run-1/run-1.wandb"
    path.parent.mkdir(parents=True)
    store: Any = DataStore()
    store.open_for_write(str(path))
    files = MetricFiles(folder.path)

    def log(count: int, **figures: Any) -> None:
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.history.step.num = count
        for name, value in {**figures, "_timestamp": STARTED + count, "_step": count}.items():
            item = record.history.item.add()
            item.nested_key.append(name)
            item.value_json = json.dumps(value)
        store.write(record)
        store._flush_offset, _ = 0, store._fp.flush()

    log(0, **{"train loss": 2.5, "epoch": 1, "step": 10, "picture": {"_type": "image-file"}})
    assert polled(files) == [{"step": 10, "loss": 2.5, "epoch": 1}]
    log(1, **{"val/accuracy": 0.5, "lr": 0.25})
    assert polled(files) == [{"step": 1, "val/accuracy": 0.5, "learning_rate": 0.25}]
    store.close()
    monkeypatch.setitem(sys.modules, "wandb.sdk.internal.datastore", None)
    files = MetricFiles(folder.path)
    folder.append("wandb/offline-run-1/run-1.wandb", "x")
    assert polled(files) == []
    assert "wandb is not installed beside Trainyard" in files.notes[0]


def test_the_file_store_of_mlflow_is_read(folder: Folder) -> None:
    files = MetricFiles(folder.path)
    place, now = "mlruns/0/4f1e/metrics", int(1000 * STARTED) + 5
    folder.write(f"{place}/train/loss", f"{now} 2.5 1\n{now} 2.25 2\n")
    folder.write(f"{place}/accuracy", f"{now} 0.5 2\n")
    folder.write("mlruns/0/4f1e/params/lr", "0.5")
    assert polled(files) == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25, "accuracy": 0.5}]
    folder.append(f"{place}/accuracy", f"{now} 0.75 3\n{now} 0.8")
    assert polled(files) == [{"step": 3, "accuracy": 0.75}]


def test_a_project_of_trackio_is_read(folder: Folder) -> None:
    files = MetricFiles(folder.path)
    path = folder.path / "trackio/project.db"
    path.parent.mkdir()
    moment = datetime.fromtimestamp(NOW, UTC).isoformat()
    with closing(sqlite3.connect(path)) as base:
        base.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, "
            "metrics TEXT)"
        )
        for step in (0, 1):
            row = (moment, "a", step, as_json(loss=2.5 - step, epoch=1))
            base.execute("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", row)
            base.commit()
            assert polled(files) == [{"step": step, "loss": 2.5 - step, "epoch": 1}]


def test_events_without_tensorboard_are_a_note(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    files = MetricFiles(folder.path)
    add(event_file(folder, "tb"), 1, loss=2.5)
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    assert (polled(files), polled(files)) == ([], [])
    (note,) = files.notes
    assert "tensorboard is not installed beside Trainyard" in note


OLD, NOW = STARTED - 1000, STARTED + 1000
TIMED: list[tuple[object, bool]] = [(OLD, False), (1000 * OLD, False), ("2020-01-01T10:00:00+00:00", False)]
TIMED += [(NOW, True), (12.5, True), (None, True)]  # 12.5 s are since some start


@each_case("file", ["m.jsonl", "m.csv"])
def test_rows_of_an_old_log_are_not_this_runs(file: str, tmp_path: Path) -> None:
    """A program copied them into its file; the times of the file are of now."""
    for number, (moment, counts) in enumerate(TIMED):
        folder = Folder(tmp_path / str(number))
        files = MetricFiles(folder.path, created=STARTED)
        table = f"step,loss,time\n1,2.5,{moment}\n"
        folder.write(file, table if file == "m.csv" else as_json(step=1, loss=2.5, time=moment) + "\n")
        assert polled(files) == ([{"step": 1, "loss": 2.5}] if counts else []), moment
        assert ["of another run" in note for note in files.notes] == ([] if counts else [True])


@each_case(
    ("path", "counts"), [("out/m.jsonl", True), ("runs/b/m.jsonl", False), ("mine/output/m.jsonl", True)]
)
def test_a_search_leaves_the_directories_of_runs_out(path: str, counts: bool, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for run in ("runs/b", "mine"):
        folder.write(f"{run}/run.json", "{}"), folder.write(f"{run}/config.yaml", "")
    mine = tmp_path / "mine"
    files = MetricFiles(tmp_path, run_directory=mine, ignored=[mine])
    folder.write(path, json.dumps({"step": 1, "loss": 2.5}) + "\n")
    assert polled(files) == ([{"step": 1, "loss": 2.5}] if counts else [])
