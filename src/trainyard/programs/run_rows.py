"""The rows of one start of a program: from its output, its events and its files into `metrics.jsonl`.

Two threads call this while the program runs: one reads its output, one polls and writes the rows in blocks.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.errors import TrainyardError
from trainyard.programs.checkpoints.taken_checkpoint import is_of_torch
from trainyard.programs.metric_rows import MetricRows, MetricRowWriter, losses_by_step
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.observations import Observations
from trainyard.programs.own_files import AUTO, in_run
from trainyard.programs.program import EVENTS_FILE, Program
from trainyard.programs.program_events import (
    LoggedFigures,
    ObservedFact,
    ProgramEvent,
    ProgramEvents,
    TrainingSpan,
    WrittenCheckpoint,
    exit_codes,
)
from trainyard.programs.program_records import PRINT_STEPS, has_other_rows, note_trained_again, trains_again
from trainyard.programs.run_checkpoints import ResumePoint
from trainyard.programs.sources import Source
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.run.records import Row, read_rows

if TYPE_CHECKING:
    from trainyard.config.schema import MonitoringConfig

LOG = logging.getLogger(__name__)


class AttemptRows:
    """Puts together what one attempt prints and reports: its rows, its saves, and what was observed."""

    def __init__(self, merged: MetricRows, events: Path, *, are_recorded: bool = True) -> None:
        """`are_recorded`: whether rows are kept; those of other nodes than the first are not."""
        self.merged, self.observations = merged, Observations()
        self.are_recorded = are_recorded
        self.count = 0
        """The number of rows that were read."""
        self._log, self._events = LogReader(), ProgramEvents(events)
        self._saved: list[WrittenCheckpoint] = []
        self._observed: dict[int, list[tuple[bool, Row, float]]] = {}
        """The rows of each process, and whether they count backward passes."""
        self._kept = set[int]()
        """The processes whose rows are kept."""

    @property
    def saved(self) -> list[WrittenCheckpoint]:
        """The checkpoints that the program has reported as complete, and saves that the observer saw end."""
        are_steps = not self.observations.are_passes
        return [replace(each, step=None) if each.of_passes and are_steps else each for each in self._saved]

    def keep(self, rows: Iterable[Row], source: Source, moment: float) -> None:
        if self.are_recorded:
            self.count += self.merged.add_all(rows, source, moment)

    def read_output(self, text: str, moment: float) -> None:
        self.keep(self._log.take(text), Source.PRINTED, moment)

    def read_events(self, moment: float) -> list[ProgramEvent]:
        events = self._events.poll()
        for event in events:
            were_passes = self.observations.are_passes
            self.observations.note(event)
            if were_passes and not self.observations.are_passes:
                self.merged.forget(Source.OBSERVED)
            if isinstance(event, ObservedFact) and event.kind == "anew":
                self._observed.pop(event.pid, None)
                if event.pid in self._kept:
                    self.merged.forget(Source.OBSERVED)
            if isinstance(event, WrittenCheckpoint):
                self._saved.append(event)
            elif isinstance(event, LoggedFigures) and not event.rank:
                row, seen = event.row(), self.observations
                if event.source is Source.DECLARED:
                    self.keep([row], event.source, moment)
                else:
                    self._observed.setdefault(event.pid, []).append((event.of_passes, row, moment))
                    if event.of_passes == seen.are_passes and seen.leads(event.pid):
                        self._kept.add(event.pid)
                        self.keep([row], event.source, moment)
        return events

    def follow(self, pid: int) -> bool:
        """Keep the rows of the process that saved the checkpoint alone; return whether there were others."""
        seen, others = self.observations, self._kept - {pid}
        seen.leader = pid
        if others:
            self._kept = {pid}
            self.merged.forget(Source.OBSERVED)
            for of_passes, row, moment in self._observed.get(pid, ()):
                if of_passes == seen.are_passes:
                    self.keep([row], Source.OBSERVED, moment)
        return bool(others)

    def close_log(self, moment: float) -> None:
        self.keep(self._log.close(), Source.PRINTED, moment)


class RunRows(AttemptRows):
    def __init__(
        self,
        directory: RunDirectory,
        program: Program,
        monitoring: "MonitoringConfig",
        *,
        found: ResumePoint | None,
        is_first: bool,
        is_own: Callable[[Path, int, int], bool],
        earlier_source: str | None = None,
    ) -> None:
        """`found` is the checkpoint that it resumes from, `earlier_source` that of the loss until then.

        `is_own` says whether the run has written a file, by its path, its device and the time of its last
        change in nanoseconds.

        Raises ConfigError for a wrong program.metrics.
        """
        self._resumed_at = found.step if found else 0
        self.writer = MetricRowWriter(
            directory.metrics_file,
            resumed_at=self._resumed_at,
            earlier_source=earlier_source if found else None,
            on_other_row=self._note_trained_again,
        )
        super().__init__(self.writer.merged, directory.logs / EVENTS_FILE, are_recorded=is_first)
        self._directory, self._is_own = directory, is_own
        self._prometheus_file = monitoring.prometheus_file
        self._files = self._metric_files(program, found)
        self._found, self._needs_load = found, found is not None and is_of_torch(found.path)
        self.last_sign = 0.0
        """When the program last printed or reported anything, in Unix seconds."""
        self._declared_steps: int | None = None
        self._declared_end: int | None = None
        self._is_closed = False
        self._lock = threading.RLock()

    @property
    def announced(self) -> int | None:
        """The total of steps that the program states in an event or a file."""
        return self._declared_steps or self._files.steps_asked

    @property
    def ended_at(self) -> int | None:
        """The last step, if the program says that it has ended its training there, early or not."""
        ended = self._declared_end or self._files.ended_at
        return ended if ended == self.merged.newest else None

    def step_before(self, moment: float) -> int:
        """Return the last step on record at a time in Unix seconds, a guess; 0 if there was none."""
        with self._lock:
            return self.merged.step_before(moment)

    def describe(self) -> str:
        """Return a text for people if there is no row: why files were not read, and what to do."""
        return "\n".join((f"No row was found: {PRINT_STEPS}.", *self._files.notes))

    def read(self, text: str, moment: float) -> None:
        """Read output that the program has written by a time in Unix seconds."""
        self.last_sign = time.time()
        with self._lock:
            if not self._is_closed:  # a daemon of the program may print on
                self.read_output(text, moment)

    def poll(self) -> bool:
        """Read events and files, and write; return whether the program has reported a checkpoint."""
        with self._lock:
            has_saved = self._poll_events()
            self.keep(self._files.poll(), Source.STRUCTURED, time.time())
            self._write()
            self._export()
        return has_saved

    def close(self) -> None:
        with self._lock:
            self._poll_events()
            self.keep(self._files.poll(at_end=True), Source.STRUCTURED, time.time())
            self.close_log(time.time())
            if self.observations.are_losses_partial and self.merged.tables[Source.PRINTED].rows:
                self.merged.forget(Source.OBSERVED)
            for pid, content in exit_codes(self._events.path) if self.are_recorded else ():
                self.observations.note_exit_code(pid, content)
            self._write(is_over=True)
            self._note_first(self.merged.first)
            self._export()
            self._is_closed = True

    def follow(self, pid: int) -> bool:
        with self._lock:
            is_news = super().follow(pid)
            if is_news and self._is_closed:
                self._write(is_over=True)
            return is_news

    def _write(self, *, is_over: bool = False) -> None:
        if self.are_recorded:
            self.writer.write(is_over=is_over)

    def _metric_files(self, program: Program, found: ResumePoint | None) -> MetricFiles:
        directory, created = self._directory, time.time()
        with suppress(OSError, TrainyardError):
            created = float(read_run(directory.run_file)["created"])
        is_in_run = program.metrics == AUTO and program.searched is None
        return MetricFiles(
            directory.path if is_in_run else program.directory,
            in_run(program.metrics, str(directory.path)),
            run_directory=directory.path,
            ignored=(directory.path, *directory.own_paths),
            created=created,
            resumed_from=found.path if found else None,
        )

    def _poll_events(self) -> bool:
        """Read the events of the program; return whether it has saved a checkpoint."""
        events = self.read_events(time.time())
        for event in events:
            if not isinstance(event, WrittenCheckpoint):  # it says nothing of what comes after it
                self.last_sign = max(self.last_sign, event.time or 0.0)
            if isinstance(event, TrainingSpan):
                self._declared_steps = event.steps or self._declared_steps
                self._declared_end = event.step if event.has_ended else None
                self._note_first(None if event.has_ended else event.step)
        self.merged.is_anew = self._is_anew()
        return any(isinstance(event, WrittenCheckpoint) for event in events)

    def _is_anew(self) -> bool:
        """Return whether the program stepped without reading its checkpoint, one of torch.save.

        A file that was there before the run is none of it, unless it is the checkpoint that the program was
        given; what was read from memory may be one.
        """
        seen = self.observations
        is_known = self._needs_load and seen.steps is not None and not seen.unobserved
        if not is_known or self._found is None:
            return False
        given = self._found.path
        return not any(
            each is None
            or each.path.is_relative_to(given)
            or self._is_own(each.path, each.device, each.changed)
            for each in seen.reads
        )

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
        if step is not None and self.are_recorded and step < self._resumed_at:
            self._note_trained_again(step)

    def _note_trained_again(self, step: int) -> None:
        if note_trained_again(self._directory, step):
            LOG.warning("step %s is trained again: the program did not resume from its checkpoint", step)


def earlier_attempt(directory: RunDirectory) -> AttemptRows | None:
    """Return the last attempt of the run, read again, because its command may have been killed with it.

    None without any.
    """
    path = directory.logs / "node-0.log"
    if not path.is_file() or not directory.run_file.is_file():
        return None
    starts = [row for row in read_rows(directory.events_file) if row.get("event") in ("started", "resumed")]
    has_resumed = bool(starts) and not trains_again(directory)
    merged = MetricRows(resumed_at=int(starts[-1].get("step") or 0) if has_resumed else 0)
    merged.earlier_losses = losses_by_step(read_rows(directory.metrics_file))
    found, changed = AttemptRows(merged, directory.logs / EVENTS_FILE), path.stat().st_mtime
    with path.open(encoding="utf-8", errors="replace", newline="") as text:
        while piece := text.read(1 << 20):
            found.read_output(piece, changed)
    found.close_log(changed)
    found.read_events(changed)
    merged.settle(is_over=True)
    return found


def rows_before(earlier: AttemptRows | None, directory: RunDirectory, found: ResumePoint | None) -> list[Row]:
    """Return the rows of an attempt if a start from `found` continues it: the last may not be recorded."""
    if earlier is None or found is None or found.parent_sha256 is not None:
        return []
    return [] if has_other_rows(directory, found.state) else list(earlier.merged.rows())
