"""Supervise a program on one node: the records of its start, its rows and checkpoints, its outcome.

    begin ──> run.json, config.yaml, events ──> command, environment ──> poll, read ──> end ──> outcome

It starts no process: `trainyard.program_training` does, by what `ProgramRun` says.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config.load import config_sha256, dump_yaml
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ConfigError, ExitCode, TrainyardError
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat
from trainyard.programs.checkpoints.program_checkpoints import move_partial_aside, state_of
from trainyard.programs.checkpoints.taken_checkpoint import take_newest
from trainyard.programs.inputs import read_data
from trainyard.programs.metric_rows import MetricRowWriter, add_missing_rows
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.metrics.program_metrics import ProgramMetrics, row_fault
from trainyard.programs.node_exit_codes import forget_ends, wait_for_ends, write_end
from trainyard.programs.program import FILES_FOLDER, interpreter_of, without_interpreter
from trainyard.programs.program_events import LoggedFigures, ProgramEvents, TrainingBegin, WrittenCheckpoint
from trainyard.programs.program_hang import HANG, HangRule
from trainyard.programs.program_records import (
    ProgramEnd,
    announced_steps,
    begin,
    finish,
    has_other_rows,
    note_announced_steps,
    note_checkpoint,
    note_other_rows,
    program_facts,
    steps_of_states,
)
from trainyard.programs.run_checkpoints import (
    find_run_checkpoints,
    named_point,
    newest_taken,
    numbered_of_before,
    resume_point,
    written_at,
)
from trainyard.programs.step_times import StepTimes
from trainyard.run.atomic_files import make_folder, sha256_of_file, write_bytes_atomically
from trainyard.run.checkpoint_retention import remove_old_checkpoints
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import collect_provenance, read_run
from trainyard.run.launch_environment import (
    NodeLauncher,
    launcher_options,
    nccl_log,
    nccl_log_variables,
)
from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.run.records import append_event, keep_rows_up_to, read_rows
from trainyard.run.run_lock import note_session
from trainyard.run.waiting import describe_wait

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.gateways.process_tree import Process
    from trainyard.gateways.supervised_process import ProgramExit
    from trainyard.programs.checkpoints.program_checkpoints import ProgramCheckpoints
    from trainyard.programs.program import Program
    from trainyard.programs.program_records import TakenCheckpoint
    from trainyard.programs.run_checkpoints import ResumePoint
    from trainyard.watch.node_network import NodeNetwork

LOG = logging.getLogger(__name__)
LOCAL_STORE = "trainyard-store"
PRINT_STEPS = (
    'Print {"step": 10, "loss": 2.31} for each logged step, name a file with program.metrics, or call '
    + "trainyard.log"
)
NO_METRICS = f"no metrics were seen: {PRINT_STEPS[0].lower()}{PRINT_STEPS[1:]}"
EVENTS_FILE = "program-events.jsonl"
STOP_FILE = "stop-requested"
# How long the first node waits for the exit codes of the other nodes.
ENDS_SECONDS = 120.0
# Seconds between two searches for new checkpoints while the program runs.
TAKE_SECONDS = 10.0
# How long the files of a checkpoint without a mark of its end must stay as they are.
QUIET_SECONDS = 2.0
# Seconds until a warning that no row was read; files of metrics appear later than lines of output.
UNREAD_SECONDS = 60.0


@dataclass
class ProgramRun:
    """A run of the program on this node, and its record."""

    program: "Program"
    """The program without its secrets, for records."""
    config: "Config"
    node: NodeLauncher
    directory: RunDirectory
    secrets: SecretFilter
    started: "Program | None" = None
    """The program with its secrets; None until it may start."""
    nodes: int | None = None
    """Nodes that the program uses, even if it is started on only one of them; None if not known."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """The facts about the code of the program, for the record of the first node."""
    network: "NodeNetwork | None" = None
    """What joins the machines; None if there is only one."""
    resume: str = "auto"
    grace: float = 30.0
    _taken: "TakenCheckpoint | None" = None
    _taken_state: str = ""
    _taken_format: CheckpointFormat | None = None
    _placed: dict[str, int] = field(default_factory=dict)
    """State of a checkpoint that shows no step -> the step that it was given."""
    _written: dict[str, float] = field(default_factory=dict)
    """State of such a checkpoint -> when it was written, in Unix seconds."""
    _skipped: tuple[str, ...] = ()
    _last_search: float = 0.0
    _searched: float = 0.0
    """When checkpoints were last searched, in Unix seconds."""
    _fault: str | None = None
    _announced: int | None = None
    _reports_rows: bool = False
    _has_warned: bool = False
    _rows_seen: int = 0
    _figures: dict[str, Any] = field(default_factory=dict)
    """The last value of each figure in the rows, for Prometheus."""
    _hang: str | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)
    found: "ResumePoint | None" = None
    """The checkpoint that it resumes from; known from `begin` on."""
    _reported: StepTimes = field(default_factory=StepTimes)
    _began: float = 0.0
    _started: float = 0.0
    _metrics: ProgramMetrics = field(init=False)
    _rows: MetricRowWriter = field(init=False)
    _events: ProgramEvents = field(init=False)
    _hang_rule: HangRule = field(init=False)

    @property
    def recorded_id(self) -> str:
        """The id of the run in its record, which a resumed run keeps."""
        return str(read_run(self.directory.run_file)["run_id"])

    @property
    def is_first(self) -> bool:
        return not self.node.rank

    def begin(self, run_id: str) -> int | None:
        """Write the first record; return the exit code if no step is left to train, else None."""
        for folder in (self.directory.path, self.directory.logs):
            make_folder(folder)
        for name, text in (self.started or self.program).files.items():
            make_folder(self.directory.path / FILES_FOLDER)
            write_bytes_atomically(self.directory.path / FILES_FOLDER / name, text.encode())
        self._began = time.time()
        self.move_partial_checkpoints()
        self.found = found = self.checkpoint_to_resume()
        self._placed = steps_of_states(self.directory)
        if found is not None and found.state is not None:
            self._placed.setdefault(found.state, found.step)
        # Raises for a wrong program.metrics before there is a record.
        self._metrics = self.metrics_reader(self._began, found)
        if self.is_first:
            lost = self.rows_of_before(found)
            self.write_start(found, run_id)
            if found is None:
                self.warn_of_other_runs()
            add_missing_rows(self.directory.metrics_file, lost, last=found.step if found else 0)
            if (code := self.finish_if_complete(found)) is not None:
                return code
        self._rows = self.rows_writer(found)
        self._events = ProgramEvents(self.directory.logs / EVENTS_FILE)
        self.stop_file.unlink(missing_ok=True)
        self._hang_rule = HangRule(self.directory.logs, self.config.program.hang_minutes, number=self.number)
        if self.network is not None:
            self.network.remove_earlier_logs()
        self._started = time.monotonic()
        return None

    @property
    def number(self) -> int:
        """The number of this node."""
        return self.node.rank or 0

    @property
    def log(self) -> Path:
        """The output of the program on this node."""
        return self.directory.logs / f"node-{self.number}.log"

    @property
    def stop_file(self) -> Path:
        """The file that exists once the program is to stop."""
        return self.directory.logs / STOP_FILE

    def step_at(self, moment: float, *, is_over: bool = False) -> int:
        """Return the step at a time in Unix seconds; 0 if it is not known."""
        with self._lock:  # the program prints meanwhile
            times = self._reported if self._reports_rows else self._metrics.times
            return times.step_at(moment, is_over=is_over)

    def read(self, text: str) -> None:
        """Read output of the program."""
        self._hang_rule.note_output(time.monotonic())
        now = time.time()
        with self._lock:
            self.keep(self._metrics.take(text, now), self._rows)

    def poll(self) -> str | None:
        """Read what the program has written; return a reason if it must stop."""
        with self._lock:
            self.read_events(self._events, self._rows, self._reported)
            self.keep(self._metrics.poll(), self._rows)
            self.note_announced(self._metrics)
            self.warn_of_unread(self._metrics, time.time() - self._began)
        hang = self._hang_rule
        hang.note_poll(time.monotonic())
        hang.note_rows(self._rows_seen, time.monotonic())
        if hang.is_hung(time.monotonic()):
            return HANG
        if self.is_first and time.monotonic() - self._last_search >= TAKE_SECONDS:
            self.take_newest(self.step_at)
            self._last_search = time.monotonic()
        if self.network is None:
            return None
        return self.network.check(self._rows.newest, now=time.monotonic())

    def end(self, ended: "ProgramExit", failure: Mapping[str, str]) -> int:
        """Record the end of the program; return the exit code of this node.

        `failure` has the class, cause and line that its output shows, if it failed.
        """
        with self._lock:
            self.read_events(self._events, self._rows, self._reported)
            self.keep(self._metrics.close(), self._rows)
            self._rows.close()
        fallback = None
        if self.network is not None:
            self.network.check(self._rows.newest, now=time.monotonic(), is_over=True)
            fallback = self.network.fallback
        if self._hang_rule.noticed:
            self._hang_rule.keep_stacks()
            self.note_hang(self._hang_rule, self._rows.newest)
        if self.network is not None and ended.exit_code and ended.stopped_by is None:
            self.network.show_warnings()
        write_end(self.directory, self.number, ended.exit_code)
        if not self.is_first and fallback is not None:
            return ExitCode.NOT_PROVEN
        if not self.is_first:  # a program may give that exit code another meaning
            is_ours = self._hang is not None or ended.exit_code == ExitCode.NOT_PROVEN
            return ExitCode.NO if is_ours else ended.exit_code
        return self.finish(
            ended,
            self._metrics,
            partial(self.step_at, is_over=True),
            resumed_at=self.found.step if self.found else 0,
            seconds=time.monotonic() - self._started,
            failure=failure,
        )

    @property
    def is_launched(self) -> bool:
        """Return whether torchrun starts the program."""
        launched = self.program.torchrun
        return self.processes * self.node.nodes > 1 if launched is None else launched

    @property
    def processes(self) -> int:
        """Processes of this node."""
        return self.node.processes if isinstance(self.node.processes, int) else self.program.processes

    def command(self) -> list[str]:
        """Return the command line, with torchrun where it starts the program."""
        words = (self.started or self.program).resumed_from(self.found.path if self.found else None)
        if not self.is_launched:
            return list(words)
        options = launcher_options(self.node, self.processes, grace_seconds=max(1, int(self.grace)))
        # The command of a plan has no interpreter, only a script and its arguments.
        worker = words if self.is_exact else without_interpreter(words) or ("--no-python", *words)
        python = sys.executable if self.is_exact else interpreter_of(words)
        launcher = [self.node.agent[0]] if self.node.agent else [python, "-m", "torch.distributed.run"]
        return [*launcher, *options, *worker]

    def environment(self) -> dict[str, str]:
        """Return the variables that are added to the environment of the program."""
        ours = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TRAINYARD_EVENTS": str(self.directory.logs / EVENTS_FILE),
            "TRAINYARD_STOP_FILE": str(self.directory.logs / STOP_FILE),
            "TRAINYARD_CHECKPOINT": str(self.found.path) if self.found else "",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.grace) - 1)),
        }
        if self.node.nodes > 1:
            ours |= nccl_log_variables(nccl_log(self.directory.logs, self.node.log_name), os.environ)
        return {**ours, **(self.started or self.program).environment}

    @property
    def machines(self) -> int:
        """Machines that the program uses; Ray starts the program on only one of them."""
        return max(self.node.nodes, self.nodes or 1)

    def note_session(self, program: "Process | None") -> None:
        """Record the session of the program, so that it is found after this command was killed."""
        if self.is_first and program is not None:
            note_session(self.directory.path, program.session, program.start)

    def note_signal(self, name: str) -> None:
        """Record a signal that this command received."""
        LOG.warning("%s received", name)
        if self.is_first:
            with suppress(OSError, TrainyardError):
                append_event(self.directory.events_file, "signal", reason=name)

    def note_hang(self, hang: HangRule, step: int) -> None:
        """Report a hang, and record it on the first node."""
        self._hang = hang.describe(step)
        LOG.error("%s", self._hang)
        if self.is_first:
            facts = {name: value for name, value in hang.noticed.items() if name != "time"}
            append_event(self.directory.events_file, "hang_suspected", step=step, **facts)

    def note_stop(self, _reason: str) -> None:
        """Let the program see that it is to stop."""
        self.stop_file.touch()

    def write_start(self, found: "ResumePoint | None", run_id: str) -> None:
        """Write the records of the start."""
        program = self.program
        known = {"steps": program.steps, "log_steps": self.log_steps if self.is_exact else None}
        facts = program_facts(
            collect_provenance(self.code, lock=program.lock, config_file=self.directory.config_file),
            recipe=program.recipe,
            seed=self.config.training.seed if self.is_exact else None,
            config_sha256=config_sha256(self.config),
            plan={name: value for name, value in known.items() if value is not None},
            hardware=self.hardware(),
            data=self.data(),
            program=None if self.is_exact else program.facts,
        )
        facts["program_sha256"] = program.sha256
        resumed_at = found.step if found else None
        state = found.state if found else None
        parent = found.parent_sha256 if found else None
        if found is not None and parent is not None:
            facts["parent"] = {"checkpoint": str(found.path), "manifest_sha256": parent}
        begin(
            self.directory,
            run_id,
            facts,
            dump_yaml(self.config),
            resumed_at=resumed_at,
            state=state,
            parent_sha256=parent,
        )
        forget_ends(self.directory)
        (self.directory.logs / EVENTS_FILE).unlink(missing_ok=True)

    @property
    def is_exact(self) -> bool:
        """Return whether the plan sets steps and logging, so that every row is expected."""
        return self.program.log_form is not None

    @property
    def log_steps(self) -> int:
        return self.config.monitoring.log_steps if self.is_exact else 1

    def data(self) -> dict[str, Any] | None:
        """Return the fingerprint of the files that the program reads; None if it did not name them."""
        if self.program.data is None:
            return None
        found = read_data(self.program.directory, self.program.data)
        return {"fingerprint": found.fingerprint, "files": found.files, "bytes": found.size}

    def changed_inputs(self) -> tuple[str, ...]:
        """Return the inputs whose bytes have changed since the start."""
        run, lock, changed = read_run(self.directory.run_file), self.program.lock, []
        if lock is not None and run.get("lock_sha256") is not None:
            with suppress(OSError):
                if sha256_of_file(lock) != run["lock_sha256"]:
                    changed.append(f"the lock {lock.name}")
        try:
            now = self.data()
        except (ConfigError, OSError):
            now = {}
        if now is not None and now.get("fingerprint") != run.get("data", {}).get("fingerprint"):
            changed.append("the data")
        return tuple(changed)

    def hardware(self) -> dict[str, int]:
        """The number of processes of the run, if known, and of this node."""
        if (
            self.is_exact and self.nodes is None and not self.is_launched
        ):  # it may have workers on other nodes
            return {"local_world_size": self.processes}
        return {"world_size": self.machines * self.processes, "local_world_size": self.processes}

    def rows_writer(self, found: "ResumePoint | None") -> MetricRowWriter:
        """Return the writer of rows; it records if they show that the program did not resume from `found`."""

        def note(step: int) -> None:
            LOG.warning("step %s is trained again: the program did not resume the newest checkpoint", step)
            note_other_rows(self.directory, step)

        return MetricRowWriter(
            self.directory.metrics_file,
            log_steps=self.log_steps,
            last=self.program.steps or 0,
            resumed_at=found.step if found else 0,
            on_other_row=note,
        )

    def metrics_reader(self, started: float, found: "ResumePoint | None" = None) -> ProgramMetrics:
        """Return the reader of the metrics of a program that started at `started`, resumed from `found`."""
        log = LogReader(self.program.log_form or "auto")
        # The plan of an exact program names the form of its log, so its folder is not searched for metrics.
        place = self.directory.tensorboard if self.is_exact else self.program.directory
        resumed_from = found.path if found else None
        files = MetricFiles(
            place, started, self.program.metrics, ignored=self._ignored, resumed_from=resumed_from
        )
        return ProgramMetrics(log, files)

    def rows_of_before(self, found: "ResumePoint | None") -> list[dict[str, Any]]:
        """Return the rows of the earlier attempts, from which `found` continues.

        The last rows before its step may not be recorded, if this command was killed with the program.
        """
        log = self.directory.logs / "node-0.log"
        if found is None or found.parent_sha256 is not None or self.is_exact or not log.is_file():
            return []
        if has_other_rows(self.directory, found.state):
            return []
        events = ProgramEvents(self.directory.logs / EVENTS_FILE).poll()
        reported = [each for each in events if isinstance(each, LoggedFigures) and not each.is_summary]
        if reported:
            return [each.row() for each in reported]
        metrics = self.metrics_reader(self.created)
        with log.open(encoding="utf-8", errors="replace", newline="") as text:
            while piece := text.read(1 << 20):
                metrics.take(piece)
        metrics.poll()
        metrics.close()
        return metrics.rows()

    def keep(
        self, rows: Sequence[dict[str, Any]], writer: MetricRowWriter, *, reported: bool = False
    ) -> None:
        """Write rows; those that the program reports itself replace those from its output and files."""
        if (self._reports_rows and not reported) or not self.prints_rows:
            return
        for row in rows:
            self._rows_seen += 1
            if writer.keep(row) and self._fault is None and (fault := row_fault(row)) is not None:
                self._fault = fault
        for row in rows:  # one row may have the loss, the next row the speed
            self._figures |= row
        if rows and (name := self.config.monitoring.prometheus_file):
            try:
                write_prometheus_file(Path(name), row_samples(self._figures, self.recorded_id))
            except OSError as error:
                LOG.warning("%s cannot be written (%s); the program is not affected", name, error.strerror)

    def note_announced(self, metrics: ProgramMetrics) -> None:
        """Record the number of steps that the program announces, once it is known."""
        if self.is_first and not self.is_exact and (steps := self._announced or metrics.steps_asked):
            self._announced = steps
            note_announced_steps(self.directory, steps)

    def warn_of_unread(self, metrics: ProgramMetrics, seconds: float) -> None:
        """Warn once, early in the run, if the output has losses that cannot be read as rows."""
        lines = metrics.log.unread
        if self._has_warned or self._rows_seen or seconds < UNREAD_SECONDS or len(lines) < 2:
            return
        self._has_warned = True
        if self.prints_rows:
            end = (
                "rows of epochs are read when the program ends"
                if metrics.log.has_epochs
                else "a run without a row is not proven"
            )
            line = self.secrets.mask_under("", lines[-1])
            LOG.warning("metrics: no row was read yet, such as from %r: %s. %s", line, end, PRINT_STEPS)

    @property
    def prints_rows(self) -> bool:
        """Return whether the rows of this node are recorded."""
        return self.is_first or not self.program.rows_on_first_node

    def read_events(self, events: Any, writer: MetricRowWriter, times: StepTimes) -> None:
        """Read the events that the program writes with `trainyard.log` and related functions.

        Steps are added to `times`.
        """
        for event in events.poll():
            if isinstance(event, TrainingBegin):
                self._announced = event.steps or self._announced
            elif isinstance(event, LoggedFigures) and not event.is_summary:
                self._reports_rows = True
                row = event.row()
                times.note(row["step"], event.time)
                self.keep([row], writer, reported=True)
            elif isinstance(event, WrittenCheckpoint):
                self._last_search = 0.0

    def own_checkpoints(self, *, quiet_seconds: float = QUIET_SECONDS) -> "ProgramCheckpoints":
        """Return the checkpoints that the program has written in this run."""
        return find_run_checkpoints(
            self.program.directory,
            self.program.checkpoints,
            since=self.created,
            ignored=self._ignored,
            formats=self.program.formats,
            quiet_seconds=quiet_seconds,
        )

    @property
    def created(self) -> float:
        """Return when the run was created, in Unix seconds.

        0 for an exact program, whose folder has no checkpoints of other runs.
        """
        with suppress(OSError, TrainyardError):
            if not self.is_exact:
                return float(read_run(self.directory.run_file).get("created", 0.0)) - 1.0
        return 0.0

    def checkpoint_to_resume(self) -> "ResumePoint | None":
        """Return the newest checkpoint of this run that the program can resume from, or the one named."""
        if self.resume == "none":
            return None
        if self.resume != "auto":
            return named_point(Path(self.resume))
        points = []
        if self.is_exact or self.directory.run_file.is_file():
            found = self.own_checkpoints()
            for note in (*found.notes(), *(() if self.is_exact else found.resume_notes())):
                LOG.warning("%s", note)
            if (own := found.newest if self.is_exact else found.newest_resumable) is not None:
                rows = read_rows(self.directory.metrics_file)
                known = steps_of_states(self.directory)
                points.append(resume_point(own, known, logged=int(rows[-1]["step"]) if rows else 0))
        if not self.is_exact and (taken := newest_taken(self.directory)) is not None:
            points.append(taken)
        return max(points, key=lambda point: point.step, default=None)

    def move_partial_checkpoints(self) -> None:
        """Move this run's incomplete checkpoints aside, for a program that picks the newest one itself.

        A program with `program.resume` gets the path of a complete one. Checkpoints of other runs stay.
        """
        picks_itself = not self.program.resume and not self.is_exact
        if self.is_first and picks_itself and self.resume == "auto" and self.directory.run_file.is_file():
            for line in move_partial_aside(self.own_checkpoints(quiet_seconds=0)):
                LOG.warning("%s", line)

    def warn_of_other_runs(self) -> None:
        """Warn of an earlier run's checkpoint, if a program that picks its checkpoint itself may take it."""
        if self.is_exact:
            return
        place, pattern = self.program.directory, self.program.checkpoints
        other = numbered_of_before(place, pattern, before=self.created, ignored=self._ignored)
        if other is not None:
            LOG.warning(
                "%s is of an earlier run; a program that picks its newest checkpoint itself resumes from it. "
                "Remove it, or give each run an empty folder",
                other,
            )

    @property
    def _ignored(self) -> tuple[Path, ...]:
        """Our own folders, in which checkpoints and metrics of the program are not searched."""
        return self.directory.path, Path(LOCAL_STORE).absolute()

    def take_newest(self, step_at: Callable[[float], int], *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """Copy the newest complete checkpoint into the run directory, unless that was done, and record it.

        A checkpoint that names no step is of the one that `step_at` returns for the time of its writing. It
        keeps it until it is written again.
        """
        before, self._searched = self._searched, time.time()
        found = self.own_checkpoints(quiet_seconds=quiet_seconds)
        self._skipped = found.rejections()
        newest = found.newest
        if newest is None or (state := state_of(newest)) == self._taken_state:
            return
        if has_other_rows(self.directory, state):
            LOG.error("%s: not copied, because its steps were trained again after it was saved", newest.path)
            return
        if newest.step is None and state not in self._placed:
            if state not in self._written:
                written = written_at(newest)
                # A file server's clock may be slow, or fast: the search before would have found it.
                is_wrong = bool(before) and not before - QUIET_SECONDS <= written <= self._searched
                self._written[state] = self._searched if is_wrong else written
            if not (step := step_at(self._written[state])):
                return
            self._placed[state] = step
        placed = self._placed.get(state)
        taken = take_newest(found, self.directory, step=placed)
        if taken is not None:
            self._taken, self._taken_state = taken, state
            self._taken_format = newest.found.format
            note_checkpoint(self.directory, taken, state if taken.step == placed else None)
            remove_old_checkpoints(self.directory, self.config.checkpointing.keep_last, newest=taken.step)

    def fault_without_step(self, metrics: ProgramMetrics) -> str | None:
        """Return a fault in a row whose step is not known."""
        return next(filter(None, map(row_fault, metrics.rows_without_step)), None)

    def finish_if_complete(self, found: "ResumePoint | None") -> int | None:
        """Write the outcome of a run that has its last checkpoint but no outcome; None if steps are left.

        Otherwise a program that resumes at its last step would train and save one more.
        """
        if self.is_exact or found is None:
            return None
        total = self.program.steps or announced_steps(self.directory)
        if total is None or found.step < total:
            return None
        LOG.info("%s is of the last step, %s, so the program is not started again", found.path, total)
        self.take_newest(lambda _: found.step)
        end = ProgramEnd(0, checkpoint=self._taken, announced=total, changed=self.changed_inputs())
        return finish(self.directory, end, seconds=0.0)

    def finish(
        self,
        ended: "ProgramExit",
        metrics: ProgramMetrics,
        step_at: Callable[[float], int],
        *,
        resumed_at: int,
        seconds: float,
        failure: Mapping[str, str],
    ) -> int:
        """Write the outcome, and return the exit code of the run."""
        # The cause of a failed program is reported first.
        has_no_cause = ended.problem is None and (ended.exit_code == 0 or ended.stopped_by is not None)
        if not self._rows_seen and has_no_cause:
            LOG.error("metrics: %s", metrics.describe())
        others = None
        if self.is_launched and ended.exit_code == 0:
            with describe_wait("the exit codes of the other nodes", ENDS_SECONDS):
                others = wait_for_ends(self.directory, range(1, self.node.nodes), seconds=ENDS_SECONDS)
        self._taken_state = ""
        self.take_newest(step_at, quiet_seconds=0)
        if ended.exit_code == 0 and ended.stopped_by is None:
            self.drop_unsaved_iteration()
        end = ProgramEnd(
            ended.exit_code,
            stopped_by=ended.stopped_by,
            others=others,
            checkpoint=self._taken,
            skipped=self._skipped,
            resumed_at=resumed_at,
            announced=None if self.is_exact else self._announced or metrics.steps_asked,
            fault=self._fault or self.fault_without_step(metrics),
            unread=NO_METRICS,
            problem=ended.problem,
            fallback=None if self.network is None else self.network.fallback,
            hang=self._hang,
            changed=() if self.is_exact else self.changed_inputs(),
            failure=failure,
        )
        return finish(self.directory, end, seconds=seconds)

    def drop_unsaved_iteration(self) -> None:
        """Drop the row of nanoGPT's last iteration: the script ends after it, and never saves its result.

        It evaluates and saves at `max_iters`, then trains once more. All other rows are of the saved model.
        """
        rows = read_rows(self.directory.metrics_file)
        if self._taken is None or self._taken_format is not CheckpointFormat.NANOGPT or len(rows) < 2:
            return
        *_, saved, last = rows
        evaluated = saved.get("step") == self._taken.step and "val_loss" in saved
        if evaluated and last.get("step") == self._taken.step + 1 and "val_loss" not in last:
            keep_rows_up_to(self.directory.metrics_file, self._taken.step)
            LOG.info("step %s is not in the record: nanoGPT does not save it", f"{self._taken.step + 1:,}")
