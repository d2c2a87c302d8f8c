"""The rows of one start of a program: from its output, its events and its files into `metrics.jsonl`.

Two threads call this while the program runs: one reads its output, one polls and writes the rows in blocks.
"""

import logging
import math
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.config.kind import RunKind
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import TrainyardError
from trainyard.programs.metric_rows import MetricRows, MetricRowWriter
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.observations import Observations
from trainyard.programs.own_files import AUTO, in_run
from trainyard.programs.program import EVENTS_FILE, Program
from trainyard.programs.program_events import (
    LoggedFigures,
    ProgramEvents,
    TrainingBegin,
    TrainingEnd,
    WrittenCheckpoint,
)
from trainyard.programs.program_records import has_other_rows, note_trained_again
from trainyard.programs.run_checkpoints import ResumePoint, own_folders
from trainyard.programs.sources import Source
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.run.records import Row, read_rows

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
        self._log = LogReader(program.log_form or AUTO)
        self._files = self._files_since(self._began, found)
        self._events = ProgramEvents(directory.logs / EVENTS_FILE)
        self.observations = Observations()
        self.saved: list[WrittenCheckpoint] = []
        """The checkpoints that the program has reported as complete, and saves that the observer saw end."""
        self.last_sign = 0.0
        """When the program last printed or reported anything, in Unix seconds."""
        self._writer = MetricRowWriter(
            directory.metrics_file,
            log_steps=monitoring.log_steps if self._is_planned else 1,
            last=program.steps or 0,
            resumed_at=found.step if found else 0,
            on_other_row=self._note_trained_again,
        )
        self._resumed_at = found.step if found else 0
        self._declared_steps: int | None = None
        self._has_warned = self._is_closed = False
        self._lock = threading.RLock()
        self.count = 0
        """The number of rows that were read."""

    @property
    def newest(self) -> int:
        """The last recorded step."""
        return self._writer.newest

    @property
    def reach(self) -> int | None:
        """The step up to which the rows show that the program has come; None if they do not count steps."""
        return self._writer.merged.reach

    @property
    def announced(self) -> int | None:
        """The total of steps that the program states in an event or a file; None if its plan sets them."""
        return None if self._is_planned else self._declared_steps or self._files.steps_asked

    @property
    def sources(self) -> dict[str, str]:
        """Where the steps and each figure in the rows come from."""
        return self._writer.merged.sources

    @property
    def unit(self) -> str:
        """What the steps of the record are."""
        return "epochs" if self._writer.merged.counts_epochs else "steps"

    @property
    def fault(self) -> str | None:
        """The first fault that a row shows."""
        return self._writer.fault

    def step_before(self, moment: float) -> int:
        """Return the last step on record at a time in Unix seconds, a guess; 0 if there was none."""
        with self._lock:
            return self._writer.merged.step_before(moment)

    @property
    def optimizer_shift(self) -> int | None:
        """What is added to the steps of an optimizer to get those of the run; None for another unit."""
        return self._writer.merged.optimizer_shift

    def describe(self) -> str:
        """Return a text for people if there is no row: what was printed, and why files were not read."""
        return "\n".join((self._log.describe(), *self._files.notes, f"{PRINT_STEPS}."))

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
            self._writer.write()
            self._warn_of_unread()
            self._export()
        return has_saved

    def close(self) -> None:
        """Record the last rows."""
        with self._lock:
            self._read_events()
            self._keep(self._files.poll(at_end=True), Source.STRUCTURED)
            self._keep(self._log.close(), Source.PRINTED)
            self._writer.write(is_over=True)
            self._note_first(self._writer.merged.first)
            self._export()
            self._is_closed = True

    def rows_before(self, found: ResumePoint | None, created: float) -> list[Row]:
        """Return the rows of the earlier attempts of a run created then, from which `found` continues.

        The last rows before its step may not be recorded, if this command was killed with the program.
        """
        path = self._directory.logs / "node-0.log"
        if found is None or found.parent_sha256 is not None or self._is_planned or not path.is_file():
            return []
        if has_other_rows(self._directory, found.state):
            return []
        starts = [row for row in read_rows(self._directory.events_file) if row.get("event") == "resumed"]
        merged = MetricRows(resumed_at=int(starts[-1]["step"]) if starts else 0)
        log, files = LogReader(), self._files_since(created, None)
        changed = path.stat().st_mtime
        with path.open(encoding="utf-8", errors="replace", newline="") as text:
            while piece := text.read(1 << 20):
                merged.add_all(log.take(piece), Source.PRINTED, changed)
        merged.add_all(log.close(), Source.PRINTED, changed)
        for event in ProgramEvents(self._directory.logs / EVENTS_FILE).poll():
            if isinstance(event, LoggedFigures) and not event.is_summary and not event.rank:
                merged.add_all([_finite_row(event)], event.source, changed)
        merged.add_all(files.poll(at_end=True), Source.STRUCTURED, changed)
        merged.settle()
        return list(merged.rows())

    def _files_since(self, started: float, found: ResumePoint | None) -> MetricFiles:
        """Return the files of metrics of a program that started then and resumed from `found`."""
        program, directory = self._program, self._directory
        # The plan names the form of the log, so the program's folder is not searched for metrics.
        place = directory.tensorboard if self._is_planned else program.directory
        if program.metrics == AUTO and program.searched is None:
            place = directory.path
        return MetricFiles(
            place,
            started,
            in_run(program.metrics, str(directory.path)),
            run_directory=None if self._is_planned else directory.path,
            ignored=(*own_folders(directory), *directory.own_paths),
            created=self._creation_time(),
            resumed_from=found.path if found else None,
        )

    def _creation_time(self) -> float:
        """Return when the run was created in Unix seconds, which may be now."""
        with suppress(OSError, TrainyardError):
            return float(read_run(self._directory.run_file)["created"])
        return self._began

    def _read_events(self) -> bool:
        """Read the events of the program; return whether it has saved a checkpoint."""
        has_saved = False
        for event in self._events.poll():
            self.observations.note(event)
            if not isinstance(event, WrittenCheckpoint):  # it says nothing of what comes after it
                self.last_sign = max(self.last_sign, event.time or 0.0)
            if isinstance(event, TrainingBegin):
                self._note_first(event.step)
            if isinstance(event, TrainingBegin | TrainingEnd):
                self._declared_steps = event.steps or self._declared_steps
            elif isinstance(event, LoggedFigures) and not event.is_summary and not event.rank:
                is_observed = not self._is_planned and self.observations.leads(event.pid)
                if event.source is Source.DECLARED or is_observed:
                    self._keep([_finite_row(event)], event.source)
            elif isinstance(event, WrittenCheckpoint):
                self.saved.append(event)
                has_saved = True
        return has_saved

    def _keep(self, rows: Iterable[Row], source: Source) -> None:
        if self._are_recorded:
            self.count += self._writer.merged.add_all(rows, source, time.time())

    def _export(self) -> None:
        """Write the last figures for Prometheus."""
        if self._prometheus_file and self._writer.last_row:
            run_id = str(read_run(self._directory.run_file)["run_id"])
            try:
                write_prometheus_file(Path(self._prometheus_file), row_samples(self._writer.last_row, run_id))
            except OSError as error:
                text = "%s cannot be written (%s); the program is not affected"
                LOG.warning(text, self._prometheus_file, error.strerror)

    def _warn_of_unread(self) -> None:
        """Warn once, early in the run, if the output has losses that cannot be read as rows."""
        is_early = time.time() - self._began < _UNREAD_SECONDS
        if self._has_warned or self.count or is_early or len(self._log.unread) < 2 or not self._are_recorded:
            return
        self._has_warned = True
        line = self._secrets.mask_under("", self._log.unread[-1])
        text = "metrics: no row was read yet, such as from %r: a run without a row is not proven. %s"
        LOG.warning(text, line, PRINT_STEPS)

    def _note_first(self, step: int | None) -> None:
        """Take the first step that the program trains, which shows whether it resumed."""
        if step is not None and self._are_recorded and step < self._resumed_at:
            self._note_trained_again(step)

    def _note_trained_again(self, step: int) -> None:
        if note_trained_again(self._directory, step):
            LOG.warning("step %s is trained again: the program did not resume from its checkpoint", step)


def _finite_row(event: LoggedFigures) -> Row:
    """Return the row of an event; a number that is not finite is a text, because JSON has none."""
    return {k: v if math.isfinite(v) else str(v) for k, v in event.row().items()}
