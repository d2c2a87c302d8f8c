"""The rows of one start of a program: from its output, its events and its files into `metrics.jsonl`.

Two threads call this while the program runs: one reads its output, one polls and writes the rows in blocks.
"""

import logging
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.config.kind import RunKind
from trainyard.errors import TrainyardError
from trainyard.programs.metric_rows import MetricRows, MetricRowWriter, losses_by_step
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.observations import Observations
from trainyard.programs.own_files import AUTO, in_run
from trainyard.programs.program import EVENTS_FILE, Program
from trainyard.programs.program_events import (
    LoggedFigures,
    ProgramEvents,
    TrainingSpan,
    WrittenCheckpoint,
)
from trainyard.programs.program_records import (
    PRINT_STEPS,
    has_other_rows,
    note_trained_again,
    trains_again,
)
from trainyard.programs.run_checkpoints import ResumePoint, own_folders
from trainyard.programs.sources import Source
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.run.records import Row, read_rows

if TYPE_CHECKING:
    from trainyard.config.schema import MonitoringConfig

LOG = logging.getLogger(__name__)


class RunRows:
    """Reads and records the rows of a program on this node."""

    def __init__(
        self,
        directory: RunDirectory,
        program: Program,
        monitoring: "MonitoringConfig",
        *,
        found: ResumePoint | None,
        is_first: bool,
    ) -> None:
        """`found` is the checkpoint that it resumes from. Raises ConfigError for a wrong program.metrics."""
        self._directory = directory
        self._is_planned = program.kind is RunKind.PLANNED
        self._prometheus_file = monitoring.prometheus_file
        self._are_recorded = is_first or not program.rows_on_first_node
        self._log = LogReader(program.log_form or AUTO)
        self._files = self._metric_files(program, found)
        self._events = ProgramEvents(directory.logs / EVENTS_FILE)
        self.observations = Observations()
        self.saved: list[WrittenCheckpoint] = []
        """The checkpoints that the program has reported as complete, and saves that the observer saw end."""
        self.last_sign = 0.0
        """When the program last printed or reported anything, in Unix seconds."""
        self._resumed_at = found.step if found else 0
        self.writer = MetricRowWriter(
            directory.metrics_file,
            log_steps=monitoring.log_steps if self._is_planned else 1,
            last=program.steps or 0,
            resumed_at=self._resumed_at,
            on_other_row=self._note_trained_again,
        )
        self.merged = self.writer.merged
        self._declared_steps: int | None = None
        self._is_closed = False
        self._lock = threading.RLock()
        self.count = 0
        """The number of rows that were read."""

    @property
    def announced(self) -> int | None:
        """The total of steps that the program states in an event or a file; None if its plan sets them."""
        return None if self._is_planned else self._declared_steps or self._files.steps_asked

    def step_before(self, moment: float) -> int:
        """Return the last step on record at a time in Unix seconds, a guess; 0 if there was none."""
        with self._lock:
            return self.merged.step_before(moment)

    def describe(self) -> str:
        """Return a text for people if there is no row: why files were not read, and what to do."""
        return "\n".join((f"No row was found: {PRINT_STEPS}.", *self._files.notes))

    def read(self, text: str) -> None:
        """Read output of the program."""
        self.last_sign = time.time()
        with self._lock:
            if not self._is_closed:  # a daemon of the program may print on
                self._keep(self._log.take(text), Source.PRINTED)

    def poll(self) -> bool:
        """Read events and files, and write; return whether the program has reported a checkpoint."""
        with self._lock:
            has_saved = self._read_events()
            self._keep(self._files.poll(), Source.STRUCTURED)
            self.writer.write()
            self._export()
        return has_saved

    def close(self) -> None:
        """Record the last rows."""
        with self._lock:
            self._read_events()
            self._keep(self._files.poll(at_end=True), Source.STRUCTURED)
            self._keep(self._log.close(), Source.PRINTED)
            self.writer.write(is_over=True)
            self._note_first(self.merged.first)
            self._export()
            self._is_closed = True

    def _metric_files(self, program: Program, found: ResumePoint | None) -> MetricFiles:
        """Return the files of metrics of the program, which resumes from `found`."""
        directory, created = self._directory, time.time()
        with suppress(OSError, TrainyardError):
            created = float(read_run(directory.run_file)["created"])
        # The plan names the form of the log, so the program's folder is not searched for metrics.
        place = directory.tensorboard if self._is_planned else program.directory
        if program.metrics == AUTO and program.searched is None:
            place = directory.path
        return MetricFiles(
            place,
            in_run(program.metrics, str(directory.path)),
            run_directory=None if self._is_planned else directory.path,
            ignored=(*own_folders(directory), *directory.own_paths),
            created=created,
            resumed_from=found.path if found else None,
        )

    def _read_events(self) -> bool:
        """Read the events of the program; return whether it has saved a checkpoint."""
        has_saved = False
        for event in self._events.poll():
            self.observations.note(event)
            if not isinstance(event, WrittenCheckpoint):  # it says nothing of what comes after it
                self.last_sign = max(self.last_sign, event.time or 0.0)
            if isinstance(event, TrainingSpan):
                self._declared_steps = event.steps or self._declared_steps
                self._note_first(None if event.has_ended else event.step)
            elif isinstance(event, LoggedFigures) and not event.rank:
                is_observed = not self._is_planned and self.observations.leads(event.pid)
                if event.source is Source.DECLARED or is_observed:
                    self._keep([event.row()], event.source)
            elif isinstance(event, WrittenCheckpoint):
                self.saved.append(event)
                has_saved = True
        return has_saved

    def _keep(self, rows: Iterable[Row], source: Source) -> None:
        if self._are_recorded:
            self.count += self.merged.add_all(rows, source, time.time())

    def _export(self) -> None:
        """Write the last figures for Prometheus."""
        if self._prometheus_file and self.writer.last_row:
            run_id = str(read_run(self._directory.run_file)["run_id"])
            try:
                write_prometheus_file(Path(self._prometheus_file), row_samples(self.writer.last_row, run_id))
            except OSError as error:
                text = "%s cannot be written (%s); the program is not affected"
                LOG.warning(text, self._prometheus_file, error.strerror)

    def _note_first(self, step: int | None) -> None:
        """Take the first step that the program trains, which shows whether it resumed."""
        if step is not None and self._are_recorded and step < self._resumed_at:
            self._note_trained_again(step)

    def _note_trained_again(self, step: int) -> None:
        if note_trained_again(self._directory, step):
            LOG.warning("step %s is trained again: the program did not resume from its checkpoint", step)


@dataclass(frozen=True)
class EarlierAttempt:
    """The last attempt of a run, read again, because its command may have been killed with its program."""

    merged: MetricRows
    saved: tuple[WrittenCheckpoint, ...]

    def rows_before(self, directory: RunDirectory, found: ResumePoint | None) -> list[Row]:
        """Return its rows if a start from `found` continues it: the last ones may not be recorded."""
        if found is None or found.parent_sha256 is not None or has_other_rows(directory, found.state):
            return []
        return list(self.merged.rows())


def earlier_attempt(directory: RunDirectory, program: Program) -> EarlierAttempt | None:
    """Return the last attempt of the run in a directory, from its output and events; None without any."""
    path = directory.logs / "node-0.log"
    if program.kind is RunKind.PLANNED or not path.is_file() or not directory.run_file.is_file():
        return None
    starts = [row for row in read_rows(directory.events_file) if row.get("event") in ("started", "resumed")]
    has_resumed = bool(starts) and not trains_again(directory)
    merged = MetricRows(resumed_at=int(starts[-1].get("step") or 0) if has_resumed else 0)
    merged.earlier_losses = losses_by_step(read_rows(directory.metrics_file))
    log, changed, saved = LogReader(), path.stat().st_mtime, list[WrittenCheckpoint]()
    with path.open(encoding="utf-8", errors="replace", newline="") as text:
        while piece := text.read(1 << 20):
            merged.add_all(log.take(piece), Source.PRINTED, changed)
    merged.add_all(log.close(), Source.PRINTED, changed)
    for event in ProgramEvents(directory.logs / EVENTS_FILE).poll():
        if isinstance(event, LoggedFigures) and not event.rank:
            merged.add_all([event.row()], event.source, changed)
        elif isinstance(event, WrittenCheckpoint):
            saved.append(event)
    merged.settle()
    return EarlierAttempt(merged, tuple(saved))
