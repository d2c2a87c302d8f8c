"""Run any training program on one machine, and keep a run directory for it.

    first node    run.json, config.yaml, events ──> program ──> rows, its checkpoints, outcome
    other nodes   program ──> rows, if this node prints them ──> its exit code

The program is that of `recipe: command` in the configuration, or the one that a plan wrote for a job
(--program). Its rows of metrics come from its output, from the files that it writes, or from
`trainyard.log`. Its checkpoints are copied into the run directory as soon as they are complete by the rules
of their format. It resumes from the newest one. Signals and --deadline reach all of its processes.
docs/bring_your_own.md explains what is proven.

Reads:      --config; --program (JSON); what the program writes; an operator's variables;
            TRAINYARD_JOB_STARTED and _JOB_MINUTES, as in trainyard train
Writes:     the run directory; logs/node-N.log, and over several machines NCCL's log in logs/nccl-node-N-*.log
Exit codes: 0 every step was done; 1 it failed, steps are missing, or another node failed; 2 wrong usage or
            configuration; 6 ended because TCP joins machines that have EFA (compute.on_fallback); 75 stopped
            with a new checkpoint, run it again to resume; 130 interrupted by Ctrl-C, with a checkpoint or
            without; 128 + N when signal N ended it
Example:    trainyard step program --config trainyard.yaml --run-dir runs/first
"""

import argparse
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser
from trainyard.command.time_limits import job_seconds
from trainyard.commands.explain import read_log
from trainyard.config.load import config_sha256, dump_yaml, load_config, mask_config
from trainyard.config.registries import COMMAND, RECIPES
from trainyard.config.secret_filter import SecretFilter, find_secrets, restore_secrets
from trainyard.errors import ConfigError, ExitCode, TrainyardError, WaitTimeoutError
from trainyard.gateways.git import program_git_facts, repository_facts
from trainyard.gateways.images.image_record import code_facts
from trainyard.gateways.local_machine import network_devices
from trainyard.gateways.process import SignalForwarder, withheld_names
from trainyard.gateways.process_tree import (
    NODE_VARIABLE,
    RUN_VARIABLE,
    find_process,
    processes_of_run,
    send,
    stop_processes,
)
from trainyard.gateways.supervised_process import Supervision, run_supervised
from trainyard.jobs.recipes import preset_recipe
from trainyard.jobs.recipes.wrapped_program import read_description
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat
from trainyard.programs.checkpoints.program_checkpoints import move_partial_aside, state_of
from trainyard.programs.checkpoints.taken_checkpoint import take_newest
from trainyard.programs.inputs import read_data
from trainyard.programs.metric_rows import MetricRowWriter, add_missing_rows
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.metrics.program_metrics import ProgramMetrics, row_fault
from trainyard.programs.node_exit_codes import forget_ends, wait_for_ends, write_end
from trainyard.programs.presets import load_preset
from trainyard.programs.program import FILES_FOLDER, interpreter_of, program_of, without_interpreter
from trainyard.programs.program_events import LoggedFigures, ProgramEvents, TrainingBegin, WrittenCheckpoint
from trainyard.programs.program_hang import HANG, HangRule
from trainyard.programs.program_records import (
    COST_LIMIT,
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
from trainyard.proof.completion import steps_of_program
from trainyard.report.facts.run_facts import seconds_to_cost_limit
from trainyard.run.atomic_files import make_folder, sha256_of_file, write_bytes_atomically
from trainyard.run.checkpoint_retention import remove_old_checkpoints
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import choose_run_id, collect_provenance, read_run
from trainyard.run.launch_environment import (
    AGENT,
    VARIABLES,
    NodeLauncher,
    launcher_options,
    nccl_log,
    nccl_log_variables,
    node_number,
    place_in_run,
)
from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.run.records import append_event, keep_rows_up_to, read_rows
from trainyard.run.run_lock import in_use, is_locked, last_holder, leader_here, locked, note_session, since
from trainyard.run.storing_speed import checkpoint_bytes, deadline_for_storing
from trainyard.run.waiting import describe_wait
from trainyard.training.data.config_of_run import has_been_trained
from trainyard.watch.failure_logs.log_explanation import explain_logs
from trainyard.watch.network_record import NetworkFollower, NetworkWatch, expectation_here, nccl_warnings

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.gateways.process_tree import Process, RunProcesses
    from trainyard.gateways.supervised_process import ProgramExit
    from trainyard.programs.checkpoints.program_checkpoints import ProgramCheckpoints
    from trainyard.programs.program import Program
    from trainyard.programs.program_records import TakenCheckpoint
    from trainyard.programs.run_checkpoints import ResumePoint

LOG = logging.getLogger(__name__)
ENDS_SECONDS = 120.0
POLL_SECONDS = 2.0
GRACE_SECONDS, TAKEOVER_SECONDS = 30.0, 600.0
"""How long --takeover waits for a program, then killed, and for a command, which may have a long grace."""
NETWORK_SECONDS = 5.0
"""Seconds between two reads of the logs of NCCL while the program runs."""
MOST_WARNINGS = 10
TAKE_SECONDS = 10.0
"""Seconds between two searches for new checkpoints while the program runs."""
QUIET_SECONDS = 2.0
"""How long the files of a checkpoint without a mark of its end must stay as they are."""
LOCAL_STORE = "trainyard-store"
UNREAD_SECONDS = 60.0
"""Seconds until a warning that no row was read; files of metrics appear later than lines of output."""
PRINT_STEPS = (
    'Print {"step": 10, "loss": 2.31} for each logged step, name a file with program.metrics, or call '
    + "trainyard.log"
)
NO_METRICS = f"no metrics were seen: {PRINT_STEPS[0].lower()}{PRINT_STEPS[1:]}"
EVENTS_FILE = "program-events.jsonl"
STOP_FILE = "stop-requested"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    program = "program of a job, as JSON; default: program.command of the configuration"
    parser.add_argument("--program", type=arguments.path, metavar="FILE", help=program)
    parser.add_argument("--run-dir", type=arguments.path, metavar="DIR", help="default: runs/<run id>")
    parser.add_argument(
        "--resume", type=str, default="auto", metavar="none|auto|CHECKPOINT", help="default: auto"
    )
    parser.add_argument(
        "--nproc-per-node", type=arguments.processes, metavar="N", help="processes of this machine"
    )
    grace = "time from SIGTERM until the program is killed; default: 30s"
    parser.add_argument("--grace", type=arguments.duration, default="30s", metavar="DURATION", help=grace)
    deadline = "time after which the program must stop, such as 8h"
    parser.add_argument("--deadline", type=arguments.duration, metavar="DURATION", help=deadline)
    parser.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    return run(args)


def run(args: argparse.Namespace, *, program_file: Path | None = None) -> int:
    """Run the program of the arguments, and return the exit code of this node."""
    loaded = load_config(args.config, args.set)
    secrets = SecretFilter.of({"environment": dict(os.environ)}, loaded.given.to_plain())
    config = mask_config(loaded.config, secrets)
    place = place_in_run(os.environ, args.nproc_per_node, has_agent=shutil.which(AGENT) is not None)
    node = place if isinstance(place, NodeLauncher) else NodeLauncher(1, 0, config.program.processes)
    if node.rank is None:  # the rendezvous numbers the workers; the first pod writes the records
        node = replace(node, rank=node_number(os.environ))
    run_id = choose_run_id(args.run_dir, several=node.nodes > 1)
    directory = RunDirectory((args.run_dir or Path("runs") / run_id).absolute())
    if file := program_file or args.program:
        sheet = read_description(file)
        given, nodes = sheet.program(REPOSITORY_ROOT), sheet.nodes
    else:
        processes = node.processes if isinstance(node.processes, int) else config.program.processes
        given = program_here(loaded.given, directory.path, nodes=node.nodes, processes=processes)
        nodes = None
    program = given.with_words(secrets.mask_values)
    if not args.dry_run:
        require_idle(directory.path, node.rank or 0)
    deadline = deadline_for_storing(args.deadline, directory.path.parent, checkpoint_bytes(directory.path))
    deadline = None if deadline is None else deadline - job_seconds()
    supervised = ProgramRun(
        program,
        config,
        node,
        directory,
        secrets=secrets,
        nodes=nodes,
        resume=args.resume,
        grace=args.grace,
        deadline=deadline,
    )
    if not args.dry_run and not node.rank:
        supervised.paid_seconds = seconds_to_cost_limit(
            config.limits.cost_usd, directory.path, nodes=nodes or node.nodes
        )
    if args.dry_run:
        command = supervised.command(supervised.checkpoint_to_resume())
        output.print_json({"command": command, "environment": dict(program.environment)})
        return 0
    if is_done(args, directory, program, config):
        LOG.info("%s: all steps were done before, so the program is not started again", directory.path)
        code = 0
    else:
        supervised.started = given.with_words(partial(restore_secrets, environment=os.environ))
        if not node.rank:
            warn_of_secrets(loaded.given)
        with nullcontext() if node.rank else locked(directory.path):
            code = supervised.run(run_id)
    if node.rank or not directory.run_file.is_file():
        return code
    outcome = read_run(directory.run_file).get("outcome", {})
    announce_end(outcome)
    if args.json:
        output.print_json(outcome)
    return code


def announce_end(outcome: dict[str, Any]) -> None:
    """Report in one line how the program ended."""
    if outcome.get("status") != "succeeded":
        verdict = "degraded" if outcome.get("status") == "stopped" else "failed"
        output.announce("training", str(outcome.get("reason", "no outcome is on record")), verdict)
        return
    first, last = outcome.get("first_loss"), outcome.get("final_loss")
    loss = "" if first is None or last is None else f", loss {first:.3g} → {last:.3g}"
    output.announce("training", f"{steps_of_program(outcome):,} steps{loss}", "ok")


def program_here(
    config: "Config", run_directory: Path, *, nodes: int = 1, processes: int | None = None
) -> "Program":
    """Return the program of a configuration on this machine. Raises ConfigError if it names none."""
    if config.recipe in RECIPES:
        raise ConfigError(
            f"recipe: {config.recipe} trains with the trainer of this repository. Set recipe: command and "
            "program.command to run another program, or start trainyard train."
        )
    if config.recipe == COMMAND:
        return program_of(config, Path.cwd())
    return preset_recipe.program_here(
        load_preset(config.recipe),
        config,
        Path.cwd(),
        nodes=nodes,
        processes=processes or config.program.processes,
        run_directory=run_directory,
    )


def warn_of_secrets(config: "Config") -> None:
    """Warn of secrets in a configuration. Raises ConfigError if one is left out that the evaluation needs."""
    for found in find_secrets(config.to_plain()):
        LOG.warning(
            "%s: records have %s instead of %s. Remove it, and let the program read %s from the environment",
            found.place,
            found.mask.decode(),
            found.kind,
            found.variable or "a variable",
        )
    restore_secrets({"evaluation.command": config.evaluation.command}, os.environ)


def require_idle(directory: Path, node: int = 0) -> None:
    """Raise ConfigError if a command trains in the run directory, or the program of one that was killed.

    What a program has left without a GPU, torch or an open checkpoint is only named.
    """
    with suppress(OSError):  # the error of a file system without locks has its own message
        if not node and is_locked(directory):
            raise in_use(directory)
    found = program_processes(directory, node)
    if found.training:
        each = found.training[0]
        raise ConfigError(
            f"{directory} is being trained by process {each.pid} ({each.words}){since(each.started)}; its "
            "command was killed. A second one would damage the run. Wait for it, stop it first with "
            "trainyard run --takeover, or choose another --run-dir. Nothing was started."
        )
    for each in found.left:
        LOG.warning("%s: an earlier start has left process %s (%s)", directory, each.pid, each.words)


def program_processes(directory: Path, node: int = 0) -> "RunProcesses":
    """Return the processes that a program of this run has on this machine."""
    return processes_of_run(directory, node, None if node else leader_here(directory))


def is_alive(directory: Path) -> bool:
    """Return whether the lock of a run is held, or its program trains. Raises OSError if it is not known."""
    return is_locked(directory) or bool(program_processes(directory).training)


def take_over(directory: Path) -> None:
    """Stop the command that trains in the run directory, and the program of one that was killed.

    Raises ConfigError if it is on another host, WaitTimeoutError if it does not end.
    """
    if is_locked(directory):
        holder = last_holder(directory)
        command = find_process(holder.pid) if holder is not None and holder.is_here else None
        if holder is None or command is None:
            raise ConfigError(f"{in_use(directory)} --takeover stops only processes of this host.")
        LOG.warning("%s: stopping %s", directory, holder.describe())
        for number in (signal.SIGTERM, signal.SIGCONT):
            send([command], number)
        until = time.monotonic() + TAKEOVER_SECONDS
        with describe_wait(f"the end of process {command.pid}", TAKEOVER_SECONDS):
            while is_locked(directory) and time.monotonic() < until:
                time.sleep(POLL_SECONDS / 10)
    found = program_processes(directory).training
    for each in found:
        LOG.warning("%s: stopping process %s (%s)", directory, each.pid, each.words)
    if is_locked(directory) or stop_processes(found, GRACE_SECONDS):
        raise WaitTimeoutError(f"{directory}: what trains there did not end. Nothing was started.")


def is_done(args: argparse.Namespace, directory: RunDirectory, program: "Program", config: "Config") -> bool:
    """Return whether the recorded run did all steps of this program with this configuration."""
    if not has_been_trained(directory.path, args.config, args.set, by_program=True, given=config):
        return False

    try:
        run = read_run(directory.run_file)
    except (OSError, TrainyardError):
        return False
    requested = run.get("plan", {}).get("steps")
    succeeded = run.get("outcome", {}).get("status") == "succeeded"
    same = (
        run.get("recipe", program.recipe) == program.recipe
        and requested == program.steps
        and run.get("program_sha256") == program.sha256
    )
    return bool(succeeded and same)


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
    resume: str = "auto"
    grace: float = 30.0
    deadline: float | None = None
    paid_seconds: float | None = None
    """Seconds from the start of the program until limits.cost_usd is reached."""
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
    _last_poll: float = 0.0
    _fault: str | None = None
    _announced: int | None = None
    _reports_rows: bool = False
    _has_warned: bool = False
    _rows_seen: int = 0
    _figures: dict[str, Any] = field(default_factory=dict)
    """The last value of each figure in the rows, for Prometheus."""
    _fallback: tuple[str, str] | None = None
    _hang: str | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def recorded_id(self) -> str:
        """The id of the run in its record, which a resumed run keeps."""
        return str(read_run(self.directory.run_file)["run_id"])

    @property
    def is_first(self) -> bool:
        return not self.node.rank

    def run(self, run_id: str) -> int:
        """Run the program between the first and the last record; return the exit code of this node."""
        for folder in (self.directory.path, self.directory.logs):
            make_folder(folder)
        for name, text in (self.started or self.program).files.items():
            make_folder(self.directory.path / FILES_FOLDER)
            write_bytes_atomically(self.directory.path / FILES_FOLDER / name, text.encode())
        started = time.time()
        self.move_partial_checkpoints()
        found = self.checkpoint_to_resume()
        self._placed = steps_of_states(self.directory)
        if found is not None and found.state is not None:
            self._placed.setdefault(found.state, found.step)
        metrics = self.metrics_reader(
            started, found
        )  # raises for a wrong program.metrics before there is a record
        if self.is_first:
            lost = self.rows_of_before(found)
            self.begin(found, run_id)
            if found is None:
                self.warn_of_other_runs()
            add_missing_rows(self.directory.metrics_file, lost, last=found.step if found else 0)
            if (code := self.finish_if_complete(found)) is not None:
                return code
        number, resumed_at = self.node.rank or 0, found.step if found else 0
        rows = self.rows_writer(found)
        events = ProgramEvents(self.directory.logs / EVENTS_FILE)
        self.directory.logs.joinpath(STOP_FILE).unlink(missing_ok=True)
        reported = StepTimes()

        def step_at(moment: float, *, is_over: bool = False) -> int:
            with self._lock:  # the program prints meanwhile
                times = reported if self._reports_rows else metrics.times
                return times.step_at(moment, is_over=is_over)

        hang = HangRule(self.directory.logs, self.config.program.hang_minutes, number=number)
        log = self.directory.logs / f"node-{number}.log"

        def read(text: str) -> None:
            hang.note_output(time.monotonic())
            now = time.time()
            with self._lock:
                self.keep(metrics.take(text, now), rows)

        network = self.network_follower()

        def poll() -> str | None:
            with self._lock:
                self.read_events(events, rows, reported)
                self.keep(metrics.poll(), rows)
                self.note_announced(metrics)
                self.warn_of_unread(metrics, time.time() - started)
            hang.note_poll(time.monotonic())
            hang.note_rows(self._rows_seen, time.monotonic())
            if hang.is_hung(time.monotonic()):
                return HANG
            if self.is_first and time.monotonic() - self._last_search >= TAKE_SECONDS:
                self.take_newest(step_at)
                self._last_search = time.monotonic()
            return self.check_network(network, rows.newest)

        began = time.monotonic()
        with SignalForwarder():  # a signal after the program's end must not end the record of it
            ended = run_supervised(
                self.command(found),
                read,
                log=log,
                secrets=self.secrets,
                environment=self.environment(found),
                directory=self.program.directory,
                without=(
                    *(() if self.node.agent or not self.is_launched else VARIABLES),
                    *withheld_names(os.environ),
                ),
                supervision=Supervision(
                    grace=self.grace,
                    **self.earlier_deadline(),
                    on_start=self.note_session,
                    on_signal=self.note_signal,
                    on_stop=lambda _: self.directory.logs.joinpath(STOP_FILE).touch(),
                    poll=poll,
                    poll_seconds=POLL_SECONDS,
                    hung=HANG,
                ),
            )
            with self._lock:
                self.read_events(events, rows, reported)
                self.keep(metrics.close(), rows)
                rows.close()
            self.check_network(network, rows.newest, is_over=True)
            if hang.noticed:
                hang.keep_stacks()
                self.note_hang(hang, rows.newest)
            if network is not None and ended.exit_code and ended.stopped_by is None:
                self.show_nccl_warnings()
            write_end(self.directory, number, ended.exit_code)
            if not self.is_first and self._fallback is not None:
                return ExitCode.NOT_PROVEN
            if not self.is_first:  # a program may give that exit code another meaning
                is_ours = self._hang is not None or ended.exit_code == ExitCode.NOT_PROVEN
                return ExitCode.NO if is_ours else ended.exit_code
            return self.finish(
                ended,
                metrics,
                partial(step_at, is_over=True),
                resumed_at=resumed_at,
                seconds=time.monotonic() - began,
            )

    def earlier_deadline(self) -> dict[str, Any]:
        """Return the earlier of the deadline and the cost limit, as arguments of `Supervision`."""
        if self.paid_seconds is None or (self.deadline is not None and self.deadline <= self.paid_seconds):
            return {"deadline": self.deadline}
        return {"deadline": self.paid_seconds, "deadline_name": COST_LIMIT}

    @property
    def is_launched(self) -> bool:
        """Return whether torchrun starts the program."""
        launched = self.program.torchrun
        return self.processes * self.node.nodes > 1 if launched is None else launched

    @property
    def processes(self) -> int:
        """Processes of this node."""
        return self.node.processes if isinstance(self.node.processes, int) else self.program.processes

    def command(self, found: "ResumePoint | None") -> list[str]:
        """Return the command line, with torchrun where it starts the program."""
        words = (self.started or self.program).resumed_from(found.path if found else None)
        if not self.is_launched:
            return list(words)
        options = launcher_options(self.node, self.processes, grace_seconds=max(1, int(self.grace)))
        # The command of a plan has no interpreter, only a script and its arguments.
        worker = words if self.is_exact else without_interpreter(words) or ("--no-python", *words)
        python = sys.executable if self.is_exact else interpreter_of(words)
        launcher = [self.node.agent[0]] if self.node.agent else [python, "-m", "torch.distributed.run"]
        return [*launcher, *options, *worker]

    def environment(self, found: "ResumePoint | None") -> dict[str, str]:
        """Return the variables that are added to the environment of the program."""
        ours = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            RUN_VARIABLE: str(self.directory.path),
            NODE_VARIABLE: str(self.node.rank or 0),
            "TRAINYARD_EVENTS": str(self.directory.logs / EVENTS_FILE),
            "TRAINYARD_STOP_FILE": str(self.directory.logs / STOP_FILE),
            "TRAINYARD_CHECKPOINT": str(found.path) if found else "",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.grace) - 1)),
        }
        if self.node.nodes > 1:
            ours |= nccl_log_variables(nccl_log(self.directory.logs, self._node_name), os.environ)
        return {**ours, **(self.started or self.program).environment}

    @property
    def _node_name(self) -> int | str:
        return socket.gethostname() if self.node.rank is None else self.node.rank

    @property
    def _own_network_logs(self) -> str:
        """The pattern of the NCCL logs that this node's processes write."""
        return f"nccl-node-{self._node_name}-*.log"

    @property
    def machines(self) -> int:
        """Machines that the program uses; Ray starts the program on only one of them."""
        return max(self.node.nodes, self.nodes or 1)

    def network_follower(self) -> NetworkFollower | None:
        """Remove this node's NCCL logs of earlier attempts; return the reader of the new ones.

        The first node reads the logs of all nodes, which share the run directory. None for a single node.
        """
        if self.machines == 1:
            return None
        for log in self.directory.logs.glob("nccl-node-*.log"):
            number = log.name.split("-")[2]
            is_of_no_node = number.isdecimal() and int(number) >= self.node.nodes
            if fnmatch(log.name, self._own_network_logs) or (is_of_no_node and self.is_first):
                log.unlink(missing_ok=True)
        expected = expectation_here(
            self.config.compute.network,
            network_devices(),
            os.environ,
            nodes=self.machines,
            processes=self.machines * self.processes,
        )
        pattern = "nccl-node-*.log" if self.is_first else self._own_network_logs
        return NetworkFollower(NetworkWatch(expected), lambda: self.directory.logs.glob(pattern))

    def show_nccl_warnings(self) -> None:
        """Log the last warnings from NCCL's own log on this node, after the program failed."""
        for line in nccl_warnings(self.directory.logs.glob(self._own_network_logs))[-MOST_WARNINGS:]:
            LOG.error("%s", line)

    def check_network(
        self, network: NetworkFollower | None, step: int, *, is_over: bool = False
    ) -> str | None:
        """Record which network joins the machines; return a reason if the program must stop."""
        if network is None or self._fallback is not None:
            return None
        is_due = is_over or time.monotonic() - self._last_poll >= NETWORK_SECONDS
        if not is_due:
            return None
        self._last_poll = time.monotonic()
        if (event := network.poll(is_over=is_over)) is None:
            return None
        if self.is_first:
            append_event(self.directory.events_file, "network", step=step, **event)
        if (reason := network.watch.trouble(event)) is None:
            shown, world = event["ranks_seen"], event["world_size"]
            LOG.info("network: %s, channels of %s of %s ranks", event["verdict"], shown, world)
            return None
        is_fallback = network.watch.fallback(event) is not None
        ends = is_fallback and self.config.compute.on_fallback == "stop"
        LOG.log(logging.ERROR if ends else logging.WARNING, "%s; fix: %s", reason, event["fix"])
        if self.is_first:
            append_event(self.directory.events_file, "network_degraded", step=step, reason=reason)
        if not ends:
            return None
        self._fallback = (reason, event["fix"])
        return "tcp-fallback"

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

    def begin(self, found: "ResumePoint | None", run_id: str) -> None:
        """Write the records of the start."""
        program = self.program
        known = {"steps": program.steps, "log_steps": self.log_steps if self.is_exact else None}
        facts = program_facts(
            collect_provenance(self.code(), lock=program.lock, config_file=self.directory.config_file),
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

    def code(self) -> dict[str, Any]:
        """Return the facts about the code of the program."""
        if self.is_exact:
            return program_git_facts(self.program.command)
        return repository_facts(self.program.directory) or code_facts(self.program.directory)

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
            fallback=self._fallback,
            hang=self._hang,
            changed=() if self.is_exact else self.changed_inputs(),
            failure=self.explain_failure(ended),
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

    def explain_failure(self, ended: "ProgramExit") -> dict[str, str]:
        """Return the cause that the program's output shows; empty if it did not fail or shows none."""
        logs = sorted(self.directory.logs.glob("node-*.log"))
        if ended.exit_code == 0 or ended.stopped_by is not None or not logs:
            return {}
        found = explain_logs([replace(read_log(path), name=path.name) for path in logs], ended.exit_code)
        if not found.who:
            return {}
        advice = f"{found.cause}. Fix ({found.who}): {found.fix}"
        return {"class": str(found.klass), "cause": advice, "line": found.evidence[0]}
