"""Read rows of metrics from files of a program: what its library for logging writes.

    folder ──names, times──> files ──what is new since the last poll──> rows with a step or an epoch

JSON lines, CSV, trainer_state.json, TensorBoard, W&B offline, MLflow's file store, trackio. A poll reads what
was added. A last line without its end waits for the next poll, and a file that was truncated or written anew
is read from its start. What a file had before the program started is not reported. A row has the `time` that
it states, else that of its file.
"""

import csv
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.programs.metrics.figure_names import flat_figures, has_figures, row_of_figures
from trainyard.programs.own_files import AUTO, walk_folders
from trainyard.run.records import Row
from trainyard.run.untrusted_files import open_regular, parse_json_line, read_bytes

READABLE = (
    "JSON lines (.jsonl, .ndjson, .json), CSV (.csv, .tsv), trainer_state.json, TensorBoard events, "
    "W&B offline (.wandb), MLflow's mlruns, trackio (.db)"
)
STATE_NAME = "trainer_state.json"
_EVENTS = "events.out.tfevents."
_MOST_ENTRIES, _MOST_FILES, _MOST_DEPTH = 50_000, 200, 10
_MOST_BYTES = 64 << 20
"""Most bytes that one poll reads of one file."""
_CLOCK_SECONDS = 2.0
"""How much a clock may be set back while a program runs."""
_SAMPLE_BYTES = 256
_TIMES = ("time", "timestamp", "_timestamp", "wall_time")
_BY_SAMPLES = " vs samples"
"""The end of Megatron's tags whose steps are samples: each figure has one beside that of its steps."""
_LEAST_TIME = 1e9
"""A smaller number is no Unix time, but seconds since some start."""
_LINES_WITHOUT_ROW = 50
"""A file that may be data, not metrics, is given up after this many lines without a row."""
_OF_TRAINING = re.compile(r"loss|reward|return|acc|grad|lr|learning|perplexity|ppl|bpb", re.IGNORECASE)
"""A table or JSON lines that a search finds are metrics only with such a name; others may be data."""
_MLFLOW = re.compile(r"mlruns/[^/]+/[^/]+/metrics/(.+)$")
_GROWTH = 1.1
"""A file that is read from its start each time is read again when it has grown by this factor."""


class MetricFiles:
    """The files of metrics below a program's directory."""

    def __init__(
        self,
        directory: Path,
        setting: str = AUTO,
        *,
        run_directory: Path | None = None,
        ignored: Collection[Path] = (),
        created: float = 0.0,
        resumed_from: Path | None = None,
    ) -> None:
        """Skip what files have already: the program has not started.

        `setting` is `auto`, or a file or folder relative to `directory`; other files are not read then. With
        `auto`, the run directory is searched too. `ignored` are files and folders that are not searched, and
        neither are directories of other runs. A row whose time is before `created`, the start of the run in
        Unix seconds, is of another run. `resumed_from` is the checkpoint that the program resumes from, at
        any place: later checkpoints repeat the rows of its history. Raises ConfigError for a file of an
        unknown form.
        """
        self.is_named = setting != AUTO
        self.states: dict[tuple[int, bool], Row] = {}
        """The rows of every trainer_state.json: the next checkpoint repeats them."""
        self._created = created - _CLOCK_SECONDS
        self._place = directory / setting if self.is_named else directory
        self._run_directory = None if self.is_named else run_directory
        self._ignored = frozenset(path.absolute() for path in ignored)
        self._readers: dict[Path, _Reader] = {}
        self._notes: dict[str, None] = {}
        is_folder = self._place.is_dir() or not self._place.suffix  # which may not exist yet
        if self.is_named and not is_folder and self._kind(self._place) is None:
            raise ConfigError(
                f"program.metrics: {setting} is not a file of metrics. Name one of these: {READABLE}"
            )
        self.has_begun = False
        """Whether the program may have written since: what is read before is of other runs."""
        self.is_over = False
        """Whether the program has ended: an incomplete last line counts, too."""
        self._old = {path: _version(path) for path in self._paths()}
        for path in self._old:
            if not path.name.startswith(_EVENTS) and path.suffix != ".wandb":  # nobody adds to these
                self._rows_of(path)
        if resumed_from is not None and (resumed_from / STATE_NAME).is_file():
            self._rows_of(resumed_from / STATE_NAME)
        self.has_begun = True

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why files were not read, for people."""
        return tuple(self._notes)

    @property
    def ended_at(self) -> int | None:
        """The step at which a trainer has decided to end, as the file of its last step says.

        That is not the file that was found last: copies of earlier ones may be written after it.
        """
        states = [each for each in self._readers.values() if isinstance(each, _TrainerState)]
        last = max(
            states,
            key=lambda each: (_version(each.path) != self._old.get(each.path), each.step),
            default=None,
        )
        return last.ended_at if last else None

    @property
    def steps_asked(self) -> int | None:
        """The steps of the complete run, if a file has them."""
        return next((each.steps_asked for each in self._readers.values() if each.steps_asked), None)

    def poll(self, *, at_end: bool = False) -> list[Row]:
        """Return the rows since the last poll, in the order of each file; with `at_end` the last ones."""
        self.is_over = at_end
        changed = [path for path in self._paths() if _version(path) != self._old.get(path)]
        return [row for path in changed for row in self._rows_of(path)]

    def _rows_of(self, path: Path) -> list[Row]:
        if path not in self._readers:
            kind = self._kind(path)
            if kind is None:
                self._notes[f"{path}: not a file of metrics. These can be read: {READABLE}"] = None
                return []
            self._readers[path] = kind(path, self)
        try:
            found = self._readers[path].new_rows()
            changed = path.stat().st_mtime
        except FileNotFoundError:  # removed since, as old checkpoints are
            return []
        except ImportError as error:
            package = (error.name or "").partition(".")[0]
            note = f"{path.parent}: not read, because {package} is not installed beside Trainyard"
            self._notes[note] = None
            return []
        except (OSError, DamagedFileError, sqlite3.Error) as error:
            self._notes[f"{path}: {error}"] = None
            return []
        own = [row for row in found if row.setdefault("time", changed) >= self._created]
        if len(own) < len(found):
            self._notes[f"{path}: rows with a time before the start of the run are of another run"] = None
        return own

    def _kind(self, path: Path) -> "type[_Reader] | None":
        """Return the reader for a file by its name, if there is one."""
        name, ending = path.name, path.suffix.lower()
        if name == STATE_NAME:
            return _TrainerState
        if name.startswith(_EVENTS):
            return _Events
        if ending == ".wandb":
            return _OfflineRun
        if "wandb" in path.parts and path != self._place:  # its own copies and settings
            return None
        if _MLFLOW.search(str(path)):
            return _MlflowFigure
        if ending == ".db" and (self.is_named or path.parent.name == "trackio"):
            return _Trackio
        if ending in (".jsonl", ".ndjson") or (ending == ".json" and self.is_named):
            return _JsonLines
        if ending in (".csv", ".tsv"):
            # DeepSpeed's monitor counts samples in the column `step` of these.
            return None if name.startswith("Train_Samples_") else _Table
        return None

    def _paths(self) -> list[Path]:
        if self.is_named and not self._place.is_dir():
            return [self._place] if self._place.is_file() else []
        found, entries = list[Path](), 0
        places = dict.fromkeys(each for each in (self._place, self._run_directory) if each is not None)
        every = (walk_folders(place, self._ignored, most_depth=_MOST_DEPTH) for place in places)
        for files, folders in chain.from_iterable(every):
            entries += len(files) + len(folders)
            found += [path for path in files if self._kind(path) is not None]
            if entries >= _MOST_ENTRIES or len(found) >= _MOST_FILES:
                note = f"{self._place}: too many files to search; name the file of metrics in program.metrics"
                self._notes[note] = None
                break
        # Files that were written first come first, so that a version_1 follows its version_0.
        return sorted(found[:_MOST_FILES], key=lambda path: (_version(path)[2], str(path)))


def _version(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is written: inode, size and time of modification."""
    with suppress(OSError):
        facts = path.stat()
        return facts.st_ino, facts.st_size, facts.st_mtime_ns
    return 0, 0, 0


def _row_time(figures: Mapping[str, Any]) -> Row:
    """Return the `time` of a row in Unix seconds; empty if it states none."""
    for name in _TIMES:
        value = figures.get(name)
        with suppress(ValueError, TypeError, OverflowError):
            if isinstance(value, str) and not value.replace(".", "", 1).isdecimal():
                return {"time": datetime.fromisoformat(value).timestamp()}
            if (number := float(value or 0)) > _LEAST_TIME:
                return {"time": number / 1000 if number > _LEAST_TIME * 1000 else number}
    return {}


class _Reader:
    """Reads one file by polls."""

    steps_asked: int | None = None

    def __init__(self, path: Path, files: MetricFiles) -> None:
        self.path, self.files = path, files
        is_version = re.fullmatch(r"version_\d+", path.parent.name)
        # Lightning's loggers count steps from 0.
        self.first = int(bool(is_version) or (path.parent / "hparams.yaml").exists())

    def new_rows(self) -> list[Row]:
        """Return the rows since the last call."""
        raise NotImplementedError


class _Lines(_Reader):
    """Reads the lines that were added to a text file; from the start if the file was written anew.

    A program with a seed writes the same lines again, so that no sample of them decides. A file that has
    changed since another run, and not grown, was written anew; of a grown one all old bytes are compared.
    """

    def __init__(self, path: Path, files: MetricFiles) -> None:
        super().__init__(path, files)
        self._offset, self._head = 0, b""
        self._digest, self._old_size = hashlib.sha256(), -1
        self.start_anew()

    def new_lines(self) -> list[str]:
        """Return the complete lines that were not returned before, and at the end the last one."""
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if not self.files.has_begun:
                self._old_size = size
            elif self._is_anew(file, size):
                self._offset, self._head = 0, b""
                self.start_anew()
            file.seek(self._offset)
            content = file.read(_MOST_BYTES) or b""
        end = content.rfind(b"\n") + 1
        if self.files.is_over or (not end and len(content) == _MOST_BYTES):  # or one endless line
            end = len(content)
        self._offset += end
        self._head = (self._head + content[:end])[:_SAMPLE_BYTES]
        if not self.files.has_begun:
            self._digest.update(content[:end])
        return content[:end].decode(errors="replace").splitlines()

    def _is_anew(self, file: BinaryIO, size: int) -> bool:
        """Return whether what was read of the file is no longer its beginning."""
        old_size, self._old_size = self._old_size, -1
        if size < self._offset or (old_size >= 0 and size <= old_size):
            return True
        if old_size < 0:  # this run's own lines
            return file.read(len(self._head)) != self._head
        digest, left = hashlib.sha256(), self._offset
        while left > 0 and (piece := file.read(min(left, _MOST_BYTES))):
            digest.update(piece)
            left -= len(piece)
        return digest.digest() != self._digest.digest()

    def start_anew(self) -> None:
        """Set the state of a file of which no line was read."""


class _JsonLines(_Lines):
    """Reads JSON objects, one a line: LLaMA-Factory's trainer_log.jsonl, AutoModel's, verl's, anybody's."""

    _is_metrics: bool
    _lines_without_row: int

    def new_rows(self) -> list[Row]:
        if self._lines_without_row >= _LINES_WITHOUT_ROW:
            return []
        rows = []
        for line in self.new_lines():
            found = parse_json_line(line.encode()) or {}
            if isinstance(total := found.get("total_steps"), int) and "current_steps" in found:
                self.steps_asked = total
            row = row_of_figures(flat_figures(found))
            if has_figures(row) and (self._is_metrics or any(map(_OF_TRAINING.search, row))):
                row |= _row_time(found)
                rows.append(row)
                self._is_metrics = True
            elif not self._is_metrics:
                self._lines_without_row += 1
                if self._lines_without_row >= _LINES_WITHOUT_ROW:
                    break
        return rows

    def start_anew(self) -> None:
        self._is_metrics, self._lines_without_row = self.files.is_named, 0


# Keras writes NA for a figure that an epoch does not have, such as a validation loss.
_NO_VALUE = ("", "NA", "N/A")


class _Table(_Lines):
    """Reads a CSV file with a header. Lightning's has several sparse rows a step."""

    _names: list[str]

    def new_rows(self) -> list[Row]:
        table = csv.reader(self.new_lines(), "excel-tab" if self.path.suffix.lower() == ".tsv" else "excel")
        names = self._names = self._names or [name.strip() for name in next(table, [])]
        if not self.files.is_named and not any(map(_OF_TRAINING.search, names)):
            return []
        rows = []
        for cells in table:
            pairs = zip(names, cells, strict=False)
            given = [(name, cell) for name, cell in pairs if cell.strip() not in _NO_VALUE]
            row = row_of_figures(given)
            if has_figures(row):
                if "step" in row:
                    row["step"] += self.first
                rows.append(row | _row_time({name.lower(): cell for name, cell in given}))
        return rows

    def start_anew(self) -> None:
        self._names = []


class _TrainerState(_Reader):
    """Reads the Hugging Face trainer's state in a checkpoint, which repeats the complete history."""

    step = 0
    ended_at: int | None = None
    _read: tuple[int, int, int] | None = None

    def new_rows(self) -> list[Row]:
        if (version := _version(self.path)) == self._read:
            return []
        state = parse_json_line(read_bytes(self.path))
        if state is None:  # it is being written
            return []
        self._read = version
        if not isinstance(history := state.get("log_history"), list):
            return []
        if isinstance(total := state.get("max_steps"), int) and total > 0:
            self.steps_asked = total
        control: Any = state
        for name in ("stateful_callbacks", "TrainerControl", "args", "should_training_stop"):
            control = control.get(name) if isinstance(control, dict) else None
        step = state.get("global_step")
        self.step = step if isinstance(step, int) else 0
        self.ended_at = self.step if control is True and self.step else None  # it stops early, or is done
        rows = []
        for found in history:
            # The trainer's summary has the mean of all losses.
            is_row = isinstance(found, dict) and not ("train_loss" in found and "loss" not in found)
            row = row_of_figures(found.items()) if is_row else {}
            kind = (row.get("step", 0), "loss" not in row)
            if "step" in row and has_figures(row) and self.files.states.get(kind) != row:
                self.files.states[kind] = row
                rows.append(dict(row))
        return rows


class _Events(_Reader):
    """Reads a file of TensorBoard events, with TensorBoard's own reader."""

    _loader: Any = None

    def new_rows(self) -> list[Row]:
        if self._loader is None:
            from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

            self._loader = LegacyEventFileLoader(str(self.path))
        steps: dict[int, dict[str, float]] = {}
        moment = 0.0
        for event in self._loader.Load():
            if event.HasField("summary"):
                moment = event.wall_time
                for value in event.summary.value:
                    is_of_step = not value.tag.endswith(_BY_SAMPLES)
                    if is_of_step and (number := _scalar(value)) is not None:
                        steps.setdefault(event.step, {})[value.tag] = number
        rows = []
        for step, figures in steps.items():
            # Composer and NeMo 2 count from 0, too.
            first = self.first or int("time/batch" in figures or "reduced_train_loss" in figures)
            rows.append({**row_of_figures(figures.items()), "step": step + first, "time": moment})
        return rows


def _scalar(value: Any) -> float | None:
    """Return the number in a value of a summary, of the old or new layout; None for a picture or a text."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor":
        return None
    from tensorboard.util.tensor_util import make_ndarray

    array = make_ndarray(value.tensor)
    return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None


class _OfflineRun(_Reader):
    """Reads a run of W&B that was not sent yet, with W&B's own reader, from its start when it has grown."""

    _size = _count = 0

    def new_rows(self) -> list[Row]:
        size = self.path.stat().st_size
        if size == self._size or not (self.files.is_over or size > _GROWTH * self._size):
            return []
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal.datastore import DataStore

        self._size, rows = size, list[Row]()
        store: Any = DataStore()
        # Its end may not be written yet: then the reader asserts.
        with suppress(AssertionError):
            store.open_for_scan(str(self.path))
            while (data := store.scan_data()) is not None:
                record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
                record.ParseFromString(data)
                if record.HasField("history"):
                    items = {"/".join(each.nested_key) or each.key: each for each in record.history.item}
                    figures = {name: json.loads(each.value_json) for name, each in items.items()}
                    step = {"step": int(figures.get("_step", record.history.step.num))}
                    rows.append(step | row_of_figures(flat_figures(figures)) | _row_time(figures))
        store.close()
        new, self._count = rows[self._count :], len(rows)
        return new


class _MlflowFigure(_Lines):
    """Reads one figure of MLflow's file store: `milliseconds value step`, a line a value."""

    def new_rows(self) -> list[Row]:
        found = _MLFLOW.search(str(self.path))
        assert found is not None
        rows = []
        for line in self.new_lines():
            with suppress(ValueError):
                moment, value, step = line.split()
                place = {"step": int(step), "time": int(moment) / 1000}
                rows.append(row_of_figures([(found[1], value)]) | place)
        return rows


class _Trackio(_Reader):
    """Reads the rows of a trackio project, a table of SQLite."""

    _last = 0

    def new_rows(self) -> list[Row]:
        rows = []
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as base:
            query = "SELECT id, timestamp, step, metrics FROM metrics WHERE id > ? ORDER BY id"
            for number, moment, step, text in base.execute(query, (self._last,)):
                self._last = number
                if (figures := parse_json_line(str(text).encode())) is not None:
                    row = row_of_figures(flat_figures(figures))
                    rows.append({"step": int(step), **row, **_row_time({"timestamp": moment})})
        return rows
