"""The rows of one start of a program: from its output, its events and its files into `metrics.jsonl`.

Two threads call this while the program runs: one reads its output, one polls.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.config.kind import RunKind
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import TrainyardError
from trainyard.programs.metric_rows import MetricRowWriter
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.metrics.program_metrics import ProgramMetrics, row_fault
from trainyard.programs.own_files import AUTO, in_run
from trainyard.programs.program import EVENTS_FILE, Program
from trainyard.programs.program_events import LoggedFigures, ProgramEvents, TrainingBegin, WrittenCheckpoint
from trainyard.programs.program_records import Reach, has_other_rows, note_trained_again
from trainyard.programs.run_checkpoints import ResumePoint, own_folders
from trainyard.programs.step_times import StepTimes
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.run.records import Row

if TYPE_CHECKING:
    from trainyard.config.schema import MonitoringConfig

LOG = logging.getLogger(__name__)
PRINT_STEPS = (
    'Print {"step": 10, "loss": 2.31} for each logged step, name a file with program.metrics, or call '
    + "trainyard.log"
)
# Seconds until a warning that no row was read; files of metrics appear later than lines of output.
_UNREAD_SECONDS = 60.0


class RunRows:
    """Reads and records the rows of a program on this node."""

    def __init__(
        self,
        directory: RunDirectory,
        program: Program,
        monitoring: "MonitoringConfig",
        secrets: SecretFilter,
        *,
        found: ResumePoint | None,
        is_first: bool,
    ) -> None:
        """`found` is the checkpoint that it resumes from. Raises ConfigError for a wrong program.metrics."""
        self._directory, self._program, self._secrets = directory, program, secrets
        self._is_planned = program.kind is RunKind.PLANNED
        self._prometheus_file = monitoring.prometheus_file
        self._are_recorded = is_first or not program.rows_on_first_node
        self._began = time.time()
        self.metrics = self._reader(self._began, found)
        self._events = ProgramEvents(directory.logs / EVENTS_FILE)
        self._reported = StepTimes()
        self._reach = Reach(found.step if found else 0)
        self.declared: dict[Path, WrittenCheckpoint] = {}
        """The checkpoints that the program has reported as complete, by their path."""
        self._writer = MetricRowWriter(
            directory.metrics_file,
            log_steps=monitoring.log_steps if self._is_planned else 1,
            last=program.steps or 0,
            resumed_at=found.step if found else 0,
            on_other_row=self._note_trained_again,
        )
        self._resumed_at = found.step if found else 0
        self._figures: Row = {}
        """The last value of each figure in the rows, for Prometheus."""
        self._fault: str | None = None
        self._announced: int | None = None
        self._reports_rows = self._has_warned = self._is_closed = False
        self._lock = threading.RLock()
        self.count = 0
        """The number of rows that were read."""

    @property
    def newest(self) -> int:
        """The last recorded step."""
        return self._writer.newest

    @property
    def reach(self) -> int | None:
        """The step up to which the rows show that the program has come; None if they count epochs."""
        return None if "epochs" in self.metrics.log.forms_seen else self._reach.step

    @property
    def announced(self) -> int | None:
        """The total of steps that the program reports; None if its plan sets the steps."""
        return None if self._is_planned else self._announced or self.metrics.steps_asked

    @property
    def fault(self) -> str | None:
        """The first fault that a row shows."""
        without_step = map(row_fault, self.metrics.rows_without_step)
        return self._fault or next(filter(None, without_step), None)

    def step_at(self, moment: float, *, is_over: bool = False) -> int:
        """Return the step at a time in Unix seconds; 0 if it is not known."""
        with self._lock:
            times = self._reported if self._reports_rows else self.metrics.times
            return times.step_at(moment, is_over=is_over)

    def read(self, text: str) -> None:
        """Read output of the program."""
        now = time.time()
        with self._lock:
            if not self._is_closed:  # a daemon of the program prints on
                self._keep(rows := self.metrics.take(text, now))
                self._note_first(rows)

    def poll(self) -> bool:
        """Read events and files; return whether the program has reported a checkpoint."""
        with self._lock:
            has_saved = self._read_events()
            self._keep(self.metrics.poll())
            self._warn_of_unread()
        return has_saved

    def close(self) -> None:
        """Record the last rows."""
        with self._lock:
            self._read_events()
            self._keep(self.metrics.close())
            self._writer.close()
            self._is_closed = True

    def _warn_of_unread(self) -> None:
        """Warn once, early in the run, if the output has losses that cannot be read as rows."""
        log = self.metrics.log
        is_early = time.time() - self._began < _UNREAD_SECONDS
        if self._has_warned or self.count or is_early or len(log.unread) < 2 or not self._are_recorded:
            return
        self._has_warned = True
        ending = "rows of epochs are read when the program ends"
        ending = ending if log.has_epochs else "a run without a row is not proven"
        line = self._secrets.mask_under("", log.unread[-1])
        LOG.warning("metrics: no row was read yet, such as from %r: %s. %s", line, ending, PRINT_STEPS)

    def rows_before(self, found: ResumePoint | None, created: float) -> list[Row]:
        """Return the rows of the earlier attempts of a run created then, from which `found` continues.

        The last rows before its step may not be recorded, if this command was killed with the program.
        """
        log = self._directory.logs / "node-0.log"
        if found is None or found.parent_sha256 is not None or self._is_planned or not log.is_file():
            return []
        if has_other_rows(self._directory, found.state):
            return []
        events = ProgramEvents(self._directory.logs / EVENTS_FILE).poll()
        figures = [each for each in events if isinstance(each, LoggedFigures) and not each.is_summary]
        if figures:
            return [each.row() for each in figures]
        metrics = self._reader(created, None)
        with log.open(encoding="utf-8", errors="replace", newline="") as text:
            while piece := text.read(1 << 20):
                metrics.take(piece)
        metrics.poll()
        metrics.close()
        return metrics.rows()

    def _reader(self, started: float, found: ResumePoint | None) -> ProgramMetrics:
        """Return the reader of the metrics of a program that started then and resumed from `found`."""
        program, directory = self._program, self._directory
        # The plan names the form of the log, so the program's folder is not searched for metrics.
        place = directory.tensorboard if self._is_planned else program.directory
        if program.metrics == AUTO and program.searched is None:
            place = directory.path
        files = MetricFiles(
            place,
            started,
            in_run(program.metrics, str(directory.path)),
            run_directory=None if self._is_planned else directory.path,
            ignored=(*own_folders(directory), *directory.own_paths),
            created=self._creation_time(),
            resumed_from=found.path if found else None,
        )
        return ProgramMetrics(LogReader(program.log_form or "auto"), files)

    def _creation_time(self) -> float:
        """Return when the run was created in Unix seconds, which may be now."""
        with suppress(OSError, TrainyardError):
            return float(read_run(self._directory.run_file)["created"])
        return self._began

    def _read_events(self) -> bool:
        """Read what the program reports with `trainyard.log`; return whether it has saved a checkpoint."""
        has_saved = False
        for event in self._events.poll():
            if isinstance(event, TrainingBegin):
                self._announced = event.steps or self._announced
                self._note_first([{"step": event.step + 1}])
            elif isinstance(event, LoggedFigures) and not event.is_summary:
                self._reports_rows = True
                row = event.row()
                self._reported.note(row["step"], event.time)
                self._keep([row], reported=True)
                self._note_first([row])
            elif isinstance(event, WrittenCheckpoint):
                self.declared[Path(os.path.realpath(event.path))] = event
                has_saved = True
        return has_saved

    def _keep(self, rows: Sequence[Row], *, reported: bool = False) -> None:
        """Write rows; those that the program reports itself replace those from its output and files."""
        if (self._reports_rows and not reported) or not self._are_recorded:
            return
        for row in rows:
            self.count += 1
            if self._writer.keep(row):
                self._fault = self._fault or row_fault(row)
            self._reach.note(row)
            self._figures |= row  # one row may have the loss, the next row the speed
        if rows and self._prometheus_file:
            run_id = str(read_run(self._directory.run_file)["run_id"])
            try:
                write_prometheus_file(Path(self._prometheus_file), row_samples(self._figures, run_id))
            except OSError as error:
                text = "%s cannot be written (%s); the program is not affected"
                LOG.warning(text, self._prometheus_file, error.strerror)

    def _note_first(self, rows: Sequence[Row]) -> None:
        """Look at the first step that the program itself reports; its files may repeat earlier ones."""
        if rows and self._resumed_at and self._are_recorded:
            if (step := rows[0]["step"]) < self._resumed_at:
                self._note_trained_again(step)
            self._resumed_at = 0

    def _note_trained_again(self, step: int) -> None:
        if note_trained_again(self._directory, step):
            LOG.warning("step %s is trained again: the program did not resume from its checkpoint", step)
