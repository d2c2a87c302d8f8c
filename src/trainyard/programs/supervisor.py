"""Record the run of a program on one node: its start, its rows and checkpoints while it trains, its outcome.

    begin ──> run.json, config.yaml, events ──> read, poll ──> rows, checkpoints ──> end ──> outcome

It starts no process: `trainyard.program_training` starts the program, and calls this with its output.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config.load import config_sha256, dump_yaml
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ConfigError, ExitCode, TrainyardError
from trainyard.programs.inputs import imported_versions, other_versions, read_data
from trainyard.programs.metric_rows import MetricRows, add_missing_rows
from trainyard.programs.node_exit_codes import forget_ends, wait_for_ends, write_end
from trainyard.programs.observations import ProgramError, RunningPython, last_traceback
from trainyard.programs.program import EVENTS_FILE, STOP_FILE, Program, ProgramLaunch
from trainyard.programs.program_events import WrittenCheckpoint
from trainyard.programs.program_hang import HANG, HangRule
from trainyard.programs.program_records import (
    UNCHANGED_WEIGHTS,
    ProgramEnd,
    begin,
    finish,
    note_announced_steps,
    weights_fault,
)
from trainyard.programs.run_checkpoints import Ending, ResumePoint, RunCheckpoints, copy_of
from trainyard.programs.run_rows import RunRows, earlier_attempt, rows_before
from trainyard.run.atomic_files import make_folder, sha256_of_file, write_json_atomically
from trainyard.run.identity import collect_provenance, read_run
from trainyard.run.records import append_event
from trainyard.run.run_lock import note_session
from trainyard.run.waiting import describe_wait

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.gateways.process_tree import Process
    from trainyard.gateways.supervised_process import ProgramExit
    from trainyard.watch.network_record import NodeNetwork

LOG = logging.getLogger(__name__)
# How long the first node waits for the exit codes of the other nodes.
_ENDS_SECONDS = 120.0
# Seconds between two searches for new checkpoints while the program runs; and if one may be in progress.
_TAKE_SECONDS, _WAIT_SECONDS = 10.0, 2.0
# Seconds between two searches for Pythons without the observer.
_CHECK_SECONDS = 10.0
_LAST_OUTPUT_BYTES = 1 << 16


@dataclass
class ProgramRun:
    """A run of a program, and its record, on one node. Only the first node writes the run's own records."""

    program: Program
    """The program without its secrets, for the record; `launch` has those."""
    launch: ProgramLaunch
    config: "Config"
    secrets: SecretFilter = field(default_factory=SecretFilter)
    resume: str = "auto"
    """`none`, `auto`, or a checkpoint."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """The facts about the code of the program."""
    network: "NodeNetwork | None" = None
    """What joins the machines; None if there is only one."""
    pythons: Callable[[int], Sequence[RunningPython]] = lambda _: ()
    """Gives the Pythons that run below a process."""
    code_of_modules: Callable[[Mapping[str, str]], dict[str, Any] | None] = lambda _: None
    """Gives the facts about the code from the digests by path of the modules that were imported."""
    changed_modules: Callable[[Collection[tuple[str, str]]], list[str]] = lambda _: []
    """Gives those of them that were imported with other contents than those of the commit."""
    found: ResumePoint | None = field(init=False)
    """The checkpoint that it resumes from."""
    rows: RunRows = field(init=False)
    _hang: HangRule = field(init=False)
    _started: float = field(init=False)
    _last_search: float = 0.0
    _last_check: float = 0.0
    _known_modules: dict[str, set[str]] = field(default_factory=dict)
    _packages: dict[str, str] = field(default_factory=dict)
    """The versions that packages had when they were imported."""
    _other_versions: list[str] = field(default_factory=list)
    """Those that the lock pins with another one."""
    _pid: int = 0
    _output_began: int = 0
    _earlier_sources: Mapping[str, str] = field(default_factory=dict)
    """Those of the last attempt, for one that has nothing left to do."""

    def __post_init__(self) -> None:
        self.directory, self.is_first = self.launch.directory, not self.launch.number
        keep_last = self.config.checkpointing.keep_last
        self.checkpoints = RunCheckpoints(self.directory, self.program, keep_last=keep_last)

    def begin(self, run_id: str) -> None:
        """Write the records of the start.

        A run that was killed after its last checkpoint is started again, too: how its program would have
        ended is not on record.
        """
        for folder in (self.directory.path, self.directory.logs, self.directory.output):
            make_folder(folder)
        self.launch.write_files()
        if self.is_first and self.resume == "auto":
            self.checkpoints.move_partial()
        earlier = earlier_attempt(self.directory)
        if earlier is not None:
            self._use_saves(earlier.saved, earlier.merged)
            outcome = read_run(self.directory.run_file).get("outcome", {})
            self._earlier_sources = outcome.get("sources") or earlier.merged.sources
        self.found = found = self.checkpoints.find_resume_point(self.resume)
        self.checkpoints.resume_from(found)
        # Raises for a wrong program.metrics before there is a record.
        self.rows = RunRows(
            self.directory,
            self.program,
            self.config.monitoring,
            found=found,
            is_first=self.is_first,
            is_own=self.checkpoints.own.is_own,
            earlier_source=self._earlier_sources.get("loss"),
        )
        if self.is_first:
            lost = rows_before(earlier, self.directory, found)
            self._write_start(run_id)
            if found is None:
                self.checkpoints.warn_of_other_runs()
            add_missing_rows(self.directory.metrics_file, lost, last=found.step if found else 0)
        (self.directory.logs / STOP_FILE).unlink(missing_ok=True)
        with suppress(OSError):
            self._output_began = self._log.stat().st_size
        minutes = self.config.program.hang_minutes
        self._hang = HangRule(self.directory.logs, minutes, number=self.launch.number)
        if self.network is not None:
            self.network.remove_earlier_logs()
        self._started = time.monotonic()

    def read(self, text: str, moment: float) -> None:
        self._hang.note_output(time.monotonic())
        self.rows.read(text, moment)

    def poll(self) -> str | None:
        """Read what the program has written, and copy its checkpoints; return a reason if it must stop."""
        if self.rows.poll():
            self._last_search = 0.0
        if self.is_first and (steps := self.rows.announced):
            note_announced_steps(self.directory, steps)
        now = time.monotonic()
        self._hang.note_poll(now)
        self._hang.note_rows(self.rows.count, now)
        if self._hang.is_hung(now):
            return HANG
        if self.is_first and now - self._last_search >= _TAKE_SECONDS:
            self._take()
            sooner = _TAKE_SECONDS - _WAIT_SECONDS if self.checkpoints.is_waiting else 0.0
            self._last_search = time.monotonic() - sooner
        self._note_packages()
        if now - self._last_check >= _CHECK_SECONDS:
            self._check_pythons()
        network, newest = self.network, self.rows.writer.newest
        return None if network is None else network.check(newest, now=time.monotonic())

    def _take(self, end: Ending | None = None) -> None:
        rows = self.rows
        self._use_saves(rows.saved, rows.merged)
        self.checkpoints.take(rows.step_before, reach=rows.merged.reach, end=end, last_sign=rows.last_sign)
        if self.checkpoints.saver is not None and rows.follow(self.checkpoints.saver):
            self._use_saves(rows.saved, rows.merged)

    def _use_saves(self, saved: Collection[WrittenCheckpoint], merged: MetricRows) -> None:
        """Take the saves of an attempt, in the steps of its rows."""
        self.checkpoints.saved, self.checkpoints.optimizer_shift = saved, merged.optimizer_shift
        self.checkpoints.counts_epochs = merged.counts_epochs

    def note_session(self, program: "Process | None") -> None:
        """Record the session of the program, so that it is found after this command was killed."""
        self._pid = 0 if program is None else program.pid
        self._check_pythons()
        if self.is_first and program is not None:
            note_session(self.directory.path, program.session, program.start)

    def _check_pythons(self) -> None:
        """Note why Pythons of the program are not observed."""
        self._last_check = time.monotonic()
        if self._pid and self.program.observe:
            self.rows.observations.check(self.pythons(self._pid))

    def note_signal(self, name: str) -> None:
        LOG.warning("%s received", name)
        if self.is_first:
            with suppress(OSError, TrainyardError):
                append_event(self.directory.events_file, "signal", reason=name)

    def note_stop(self, _reason: str) -> None:
        """Let the program see that it is to stop."""
        (self.directory.logs / STOP_FILE).touch()

    def end(self, ended: "ProgramExit", failure: Mapping[str, Any]) -> int:
        """Record the end of the program; return the exit code of this node.

        `failure` has the class, cause and line that its output shows, if it failed.
        """
        self.rows.close()
        fallback = None
        if self.network is not None:
            self.network.check(self.rows.writer.newest, now=time.monotonic(), is_over=True)
            fallback = self.network.fallback
            if ended.exit_code and ended.stopped_by is None:
                self.network.show_warnings()
        hang = self._note_hang() if self._hang.noticed else None
        write_end(self.directory, self.launch.number, ended.exit_code)
        if not self.is_first:
            # A program may give the exit code of a fallback another meaning.
            is_ours = hang is not None or ended.exit_code == ExitCode.NOT_PROVEN
            code = ExitCode.NO if is_ours else ended.exit_code
            return code if fallback is None else ExitCode.NOT_PROVEN
        # The cause of a failed program is reported first.
        has_no_cause = ended.problem is None and (ended.exit_code == 0 or ended.stopped_by is not None)
        if not (self.rows.count or self.rows.writer.newest) and has_no_cause:
            LOG.error("metrics: %s", self.rows.describe())
        is_well = ended.exit_code == 0
        is_complete = is_well and ended.stopped_by is None
        others = None
        if is_well and self.launch.has_torchrun:
            with describe_wait("the exit codes of the other nodes", _ENDS_SECONDS):
                rest = range(1, self.launch.node.nodes)
                others = wait_for_ends(self.directory, rest, seconds=_ENDS_SECONDS)
            self.rows.close()  # the last rank, on another node, may write the files of metrics
        self.checkpoints.excerpts = self.rows.observations.excerpts
        self._take(Ending(is_well=is_well, last=self.rows.merged.last))
        taken = self.checkpoints.taken
        weights = weights_fault(self.directory, taken, is_complete=is_complete) if taken else None
        seen = self.rows.observations
        # A schedule may end with one step of rate 0, which a resume repeats alone.
        if is_complete and weights is None and seen.weights_changed is False and (seen.steps or 0) > 1:
            weights = UNCHANGED_WEIGHTS
        end = ProgramEnd(
            ended.exit_code,
            stopped_by=ended.stopped_by,
            others=others,
            checkpoint=taken or copy_of(self.directory, self.found),
            skipped=self.checkpoints.skipped,
            resumed_at=self.found.step if self.found else 0,
            announced=(self.rows.ended_at if is_complete else None) or self.rows.announced,
            fault=self.rows.writer.fault,
            vanished=self.rows.observations.vanished,
            weights=weights,
            problem=ended.problem,
            fallback=fallback,
            hang=hang,
            failure=failure,
            error=None if ended.stopped_by else self.error(has_failed=not is_well),
            facts={
                "sources": self.rows.merged.sources or self._earlier_sources,
                "unit": "epochs" if self.rows.merged.counts_epochs else None,
                "changed_inputs": self._changed_inputs(),
                "optimizer_steps": self._optimizer_steps(),
            },
        )
        self._note_packages()
        git = self.code_of_modules(seen.modules) if seen.modules and not seen.unobserved else None
        seen.close(is_on=self.program.observe)
        known = {"observed": {**seen.to_json(), "packages": self._packages}, **({"git": git} if git else {})}
        write_json_atomically(self.directory.run_file, {**read_run(self.directory.run_file), **known})
        shift = self.rows.merged.optimizer_shift
        if is_complete and shift is not None:
            for step in seen.models:
                append_event(self.directory.events_file, "model_began", step=step + shift)
        return finish(self.directory, end, seconds=time.monotonic() - self._started)

    def _optimizer_steps(self) -> int | None:
        """Return the optimizer steps of the run; None if those before a resume are not known."""
        seen, merged = self.rows.observations, self.rows.merged
        shift = 0 if self.found is None or merged.is_anew else merged.optimizer_shift
        return None if seen.steps is None or seen.are_passes or shift is None else seen.steps + shift

    def error(self, *, has_failed: bool) -> ProgramError | None:
        """Return the exception that ended the program, as observed, else as its last output shows it."""
        observed = self.rows.observations
        error = observed.error(has_failed=has_failed)
        if error is not None:
            message, cause = (self.secrets.mask_under("", text) for text in (error.message, error.cause))
            return replace(error, message=message, cause=cause)
        if observed.has_clean_end and not has_failed:
            return None
        with suppress(OSError), self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._output_began, size - _LAST_OUTPUT_BYTES))
            return last_traceback(file.read().decode(errors="replace"))
        return None

    @property
    def _log(self) -> Path:
        return self.directory.logs / f"node-{self.launch.number}.log"

    def _write_start(self, run_id: str) -> None:
        program, found, launch = self.program, self.found, self.launch
        processes = launch.processes
        known = {
            "recipe": program.recipe,
            "config_sha256": config_sha256(self.config),
            "plan": _without_none({"steps": program.steps}),
            "hardware": {"world_size": launch.machines * processes, "local_world_size": processes},
            "data": self.data(),
            "program": program.facts,
            "program_sha256": program.sha256_in(self.directory.path),
        }
        origin = collect_provenance(self.code, lock=program.lock, config_file=self.directory.config_file)
        facts = {**origin, **_without_none(known)}
        parent = found.parent_sha256 if found else None
        if found is not None and parent is not None:
            facts["parent"] = {"checkpoint": str(found.path), "manifest_sha256": parent}
        begin(
            self.directory,
            run_id,
            facts,
            dump_yaml(self.config),
            resumed_at=found.step if found else None,
            state=found.state if found else None,
            parent_sha256=parent,
        )
        forget_ends(self.directory)
        for path in self.directory.logs.glob(f"{EVENTS_FILE}*"):
            path.unlink()

    def data(self) -> dict[str, Any] | None:
        """Return the fingerprint of the files that the program reads; None if it did not name them."""
        if self.program.data is None:
            return None
        return read_data(self.program.directory, self.program.data)

    def _changed_inputs(self) -> list[str]:
        run, lock, changed = read_run(self.directory.run_file), self.program.lock, list[str]()
        digest = ""
        with suppress(OSError):
            digest = sha256_of_file(lock) if lock else ""
        if lock is not None and run.get("lock_sha256") not in (None, digest):
            changed.append(f"the lock {lock.name}")
        now: dict[str, Any] | None = {}
        with suppress(ConfigError, OSError):
            now = self.data()
        if now is not None and now.get("fingerprint") != run.get("data", {}).get("fingerprint"):
            changed.append("the data")
        modules = self.changed_modules(self.rows.observations.certain)
        return changed + [f"the code {name}" for name in modules]

    def _note_packages(self) -> None:
        """Record which packages were imported, and which of them with another version than the lock pins."""
        installed, lock = self.rows.observations.installed, self.program.lock
        if not self.is_first or installed == self._known_modules:
            return
        known = self._known_modules.items()
        new = {place: names - dict(known).get(place, set()) for place, names in installed.items()}
        self._known_modules = installed
        self._packages = imported_versions(new) | self._packages  # an upgrade comes too late for the program
        found = other_versions(lock, self._packages) if lock else []
        if others := [each for each in found if each not in self._other_versions]:
            self._other_versions += others
            run = {**read_run(self.directory.run_file), "other_versions": self._other_versions}
            write_json_atomically(self.directory.run_file, run)
            if "image_digest" not in run:
                text = "; ".join(others)
                LOG.warning("this run cannot be proven: it imported %s as its lock pins", text)

    def _note_hang(self) -> str:
        """Keep the stacks of a hang, record it on the first node, and return it in words."""
        self._hang.keep_stacks()
        text = self._hang.describe(self.rows.writer.newest)
        LOG.error("%s", text)
        if self.is_first:
            facts = {name: value for name, value in self._hang.noticed.items() if name != "time"}
            append_event(self.directory.events_file, "hang_suspected", step=self.rows.writer.newest, **facts)
        return text


def _without_none(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
