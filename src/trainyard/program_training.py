"""Train with another program than the trainer of this repository, in this process, and keep a run directory.

    first node    run.json, config.yaml, events ──> program ──> rows, its checkpoints, outcome
    other nodes   program ──> its exit code

The program is that of the configuration: `recipe: command`, or a preset. Its rows of metrics come from its
output, from the files that it writes, or from `trainyard.log`. Its checkpoints are copied into the run
directory as soon as they are complete by the rules of their format. It resumes from the newest one. Signals
and the deadline reach all of its processes. docs/bring_your_own.md explains what is proven.
`programs.supervisor` decides what is recorded; this module starts processes and asks the machine.
"""

import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import output
from trainyard.command.time_limits import job_seconds
from trainyard.config.load import load_config, mask_config
from trainyard.config.secret_filter import SecretFilter, find_secrets, restore_secrets
from trainyard.errors import ConfigError, WaitTimeoutError
from trainyard.gateways.git import (
    changed_modules,
    repository_facts,
    untracked_inputs,
    untracked_modules,
)
from trainyard.gateways.github import Level, annotate
from trainyard.gateways.images.image_record import RECORD, code_facts
from trainyard.gateways.instance_notices import instance_notices
from trainyard.gateways.local_machine import network_devices
from trainyard.gateways.process import SignalForwarder, program_variables, withheld_names
from trainyard.gateways.process_tree import (
    NODE_VARIABLE,
    RUN_VARIABLE,
    family,
    files_being_written,
    find_process,
    processes_of_run,
    send,
    stop_processes,
)
from trainyard.gateways.supervised_process import ProgramExit, Supervision, run_supervised
from trainyard.gateways.system_record import SystemRecord
from trainyard.jobs.recipes import program_here
from trainyard.programs.inputs import named_files
from trainyard.programs.observations import RunningPython
from trainyard.programs.own_files import OwnFiles, claim_of_places, last_claim, places_of
from trainyard.programs.program import FILES_FOLDER, Program, ProgramLaunch
from trainyard.programs.program_hang import HANG
from trainyard.programs.program_records import COST_LIMIT
from trainyard.programs.supervisor import ProgramRun
from trainyard.proof.completion import steps_of_program
from trainyard.proof.repeatability import fixes_of_program
from trainyard.report.facts.run_facts import read_record, seconds_to_cost_limit
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory
from trainyard.run.failure import next_step, read_failure
from trainyard.run.identity import choose_run_id, read_run
from trainyard.run.launch_environment import AGENT, VARIABLES, NodeLauncher, node_number, place_in_run
from trainyard.run.run_advice import other_inputs
from trainyard.run.run_lock import in_use, is_locked, last_holder, leader_here, locked, since
from trainyard.run.situation import recorded_run
from trainyard.run.source_words import describe_steps, source_in_words
from trainyard.run.waiting import describe_wait
from trainyard.training.data.config_of_run import differences_from_run
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import (
    FailureFacts,
    LogExplanation,
    explain_logs,
    find_signal,
    signal_of,
)
from trainyard.watch.failure_logs.log_text import read_log
from trainyard.watch.network_record import NodeNetwork, expectation_here

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.gateways.process_tree import RunProcesses

LOG = logging.getLogger(__name__)
# How long --takeover waits for a program, then killed, and for a command, which may have a long grace.
GRACE_SECONDS, TAKEOVER_SECONDS = 30.0, 600.0
# Slurm signals a job this long before its end at the earliest, without --signal.
_SLURM_SECONDS = 120
# Lines at the end of a log in which a launcher says that a signal ended one of its processes.
_LAST_LINES = 60


@dataclass(frozen=True, kw_only=True)
class ProgramOrder:
    """The training of a program that is requested; times are in seconds."""

    config: Path
    changes: Sequence[str] = ()
    """The values of `--set`."""
    run_dir: Path | None = None
    """None: runs/<run id>."""
    resume: str = "auto"
    """`none`, `auto`, or a checkpoint."""
    processes: int | None = None
    """Processes of this machine."""
    nodes: int | None = None
    """Machines that the program uses though it is started on one, as on Ray; None: those it is started on."""
    grace: float = 30.0
    """From SIGTERM until the program is killed; the default is that of Kubernetes."""
    deadline: float | None = None
    """From the start of this job until the program must stop."""


def train_program(
    order: ProgramOrder,
    *,
    on_outcome: Callable[[Any], None] = lambda _: None,
    closing_follows: bool = False,
) -> int:
    """Run the program on this node, record the run, and return the exit code. Only for the main thread.

    `on_outcome` gets the outcome that is on record, on the first node. With `closing_follows` the caller says
    what to do after a failure. The program prints to this process's
    `sys.stdout`. Signals that this process receives while it runs reach it; one before interrupts this call
    as the handlers of the caller do. Handlers, files and the lock are as before at the end; the program and
    all processes of its group have ended.
    """
    run, given = _prepare(order)
    path = run.directory.path
    require_idle(path, run.launch.number)
    if is_done(run):
        LOG.info("%s: all steps were done before, so the program is not started again", path)
        code = 0
    else:
        restore = partial(restore_secrets, environment=os.environ)
        run.launch = replace(run.launch, program=run.launch.program.with_words(restore))
        if run.is_first:
            warn_of_secrets(given)
        deadline = _deadline(order, run)
        with ExitStack() as held:
            if run.is_first:
                held.enter_context(locked(path))
                run.checkpoints.own = held.enter_context(claim_places(run.program, path))
            code = _run(run, deadline)
    if not run.is_first or not run.directory.run_file.is_file():
        return code
    record = read_run(run.directory.run_file)
    outcome = record.get("outcome", {})
    announce_end(outcome, closing_follows=closing_follows)
    if outcome.get("status") == "failed" and not closing_follows:
        output.announce("next", next_step(record, path))
    on_outcome(outcome)
    return code


def claim_places(program: Program, run_directory: Path) -> AbstractContextManager[OwnFiles]:
    """Hold the places of a program, and yield its own files. Raises ConfigError if another run uses them."""
    settings = {"checkpoints": program.checkpoints, "metrics": program.metrics}
    places = places_of(program.directory, run_directory, program.command, **settings)
    return claim_of_places(places, is_training=lambda path: bool(program_processes(path).training))


def describe_start(order: ProgramOrder) -> dict[str, Any]:
    """Return the command that `train_program` would run, and the variables that the program adds to it."""
    run, _ = _prepare(order)
    run.checkpoints.own = last_claim(run.directory.path)
    found = run.checkpoints.find_resume_point(order.resume)
    command = replace(run.launch, program=run.program).command(found.path if found else None)
    return {"command": command, "environment": dict(run.program.environment)}


def _prepare(order: ProgramOrder) -> tuple[ProgramRun, "Config"]:
    """Return the run of the program, and the configuration as given, which may have secrets."""
    loaded = load_config(order.config, order.changes)
    # All that is given to the program alone is secret, whatever its name is.
    given = {f"{name}_SECRET": value for name, value in program_variables(os.environ).items()}
    secrets = SecretFilter.of({"environment": {**os.environ, **given}}, loaded.given.to_plain())
    config = mask_config(loaded.config, secrets)
    place = place_in_run(os.environ, order.processes, has_agent=shutil.which(AGENT) is not None)
    node = place or NodeLauncher(1, 0, config.program.processes)
    if node.rank is None:  # the rendezvous numbers the workers; the first pod writes the records
        node = replace(node, rank=node_number(os.environ))
    run_dir = order.run_dir or Path("runs") / choose_run_id(None, several=node.nodes > 1)
    directory, nodes = RunDirectory(run_dir.absolute()), order.nodes or node.nodes
    processes = node.processes if isinstance(node.processes, int) else config.program.processes
    program = program_here(loaded.given, directory.path, nodes=nodes, processes=processes)
    lock = program.lock or lock_of_image()
    program = replace(program, lock=lock, observe=config.program.observe)
    launch = ProgramLaunch(program, directory, node, nodes=nodes, grace=order.grace)
    masked = program.with_words(secrets.mask_values)
    return ProgramRun(masked, launch, config, secrets, resume=order.resume), loaded.given


def lock_of_image(record: Path = RECORD) -> Path | None:
    """Return the last lock that the image was made from, which is its own, if it is still beside its code."""
    with suppress(OSError, ValueError, TypeError, LookupError):
        found = json.loads(record.read_bytes())
        name, digest = list(found["locks"].items())[-1]
        lock = Path(found["code"]["directory"], name)
        return lock if sha256_of_file(lock) == digest else None
    return None


def _deadline(order: ProgramOrder, run: ProgramRun) -> dict[str, Any]:
    """Return the earlier of the deadline and the cost limit, as arguments of `Supervision`."""
    path, limit = run.directory.path, run.config.limits.cost_usd if run.is_first else None
    paid = seconds_to_cost_limit(limit, path, nodes=run.launch.machines)
    deadline = None if order.deadline is None else order.deadline - job_seconds()
    if paid is None or (deadline is not None and deadline <= paid):
        return {"deadline": deadline}
    return {"deadline": paid, "deadline_name": COST_LIMIT}


def _run(run: ProgramRun, deadline: dict[str, Any]) -> int:
    """Run the program between the first and the last record; return the exit code of this node."""
    launch = run.launch
    run.code, run.network = _code_of(run) if run.is_first else {}, _network_of(run)
    run.pythons, run.code_of_modules = pythons_below, _judge_modules(run)
    run.begin(choose_run_id(run.directory.path))
    if run.is_first:
        announce_missing(run)
    path, checkpoint = run.directory.path, run.found.path if run.found else None
    run.checkpoints.being_written = lambda: files_being_written(path, launch.number, leader_here(path))
    names = {RUN_VARIABLE: str(run.directory.path), NODE_VARIABLE: str(launch.number)}
    # torchrun sets the variables of its workers itself; an agent, or a program alone, reads the node's.
    removed = () if launch.node.agent or not launch.has_torchrun else VARIABLES
    system = SystemRecord((run.directory.path, run.program.directory))
    with SignalForwarder():  # a signal after the program's end must not end the record of it
        ended = run_supervised(
            launch.command(checkpoint),
            run.read,
            log=run.directory.logs / f"node-{launch.number}.log",
            secrets=run.secrets,
            environment={**names, **launch.environment(checkpoint)},
            directory=run.program.directory,
            without=(*removed, *withheld_names(os.environ)),
            supervision=Supervision(
                grace=launch.grace,
                **deadline,
                on_start=run.note_session,
                on_signal=run.note_signal,
                on_stop=run.note_stop,
                poll=run.poll,
                hung=HANG,
            ),
        )
        return run.end(ended, _explain_failure(run, ended, system) if run.is_first else {})


def _code_of(run: ProgramRun) -> dict[str, Any]:
    directory = run.program.directory
    facts = repository_facts(directory) or code_facts(directory)
    # A script beside the code of an image, such as that of a preset, is on record by hash.
    files = untracked_inputs(directory, _named_by(run)) if facts else {}
    return {**facts, "files": files} if files else facts


def _named_by(run: ProgramRun) -> list[Path]:
    """Return the files that the command names; those of its preset are on record with the command."""
    program, own = run.program, run.directory.path / FILES_FOLDER
    named = named_files(program.command, program.directory, metrics=program.metrics)
    return [path for path in named if not path.is_relative_to(own)]


def announce_missing(run: ProgramRun) -> None:
    """Report, a line each, what keeps a run that starts from being proven, however it goes."""
    record, program = read_run(run.directory.run_file), run.program
    if program.observe and record.get("git", {}).get("dirty"):
        # Untracked modules count only if they are imported, which is seen.
        again = repository_facts(program.directory, with_modules=False)
        record = {**record, "git": again or record["git"]}  # the code of an image is in no repository
    for name, fix in fixes_of_program(record).items():
        text = f"this run cannot be proven without {name}: {fix}"
        output.announce("before", text, "degraded")
        annotate(Level.WARNING, text, title="Not provable")


def _judge_modules(run: ProgramRun) -> Callable[[Mapping[str, str]], dict[str, Any] | None]:
    """Return what gives the facts about the code, once it is known which modules were imported.

    Modules that were not do not count, untracked ones that were make the tree dirty, and ignored ones are on
    record by hash. The state of the tree is that of now.
    """
    directory, facts = run.program.directory, run.code
    if not run.is_first or "commit" not in facts:
        return lambda _: None
    clean = repository_facts(directory, with_modules=False) if facts.get("dirty") else facts
    named = untracked_inputs(directory, _named_by(run), with_modules=False)
    if clean.get("dirty") is False:
        run.changed_modules = partial(changed_modules, directory, facts["commit"])

    def judge(modules: Mapping[str, str]) -> dict[str, Any] | None:
        if (found := untracked_modules(directory, modules)) is None:
            return None
        ignored, others = found
        files = {**named, **ignored}
        kept = {name: value for name, value in (facts if others else clean).items() if name != "files"}
        return {**kept, "files": files} if files else kept

    return judge


def pythons_below(pid: int) -> list[RunningPython]:
    """Return the Pythons of a program's group, and below it."""
    return [
        RunningPython(each.pid, each.parent, each.arguments, each.environment())
        for each in family(pid)
        if each.is_python()
    ]


def _network_of(run: ProgramRun) -> NodeNetwork | None:
    """Return the check of the network between the machines; None for a single one."""
    launch, compute = run.launch, run.config.compute
    if launch.machines == 1:
        return None
    known = {"nodes": launch.machines, "processes": launch.machines * launch.processes}
    expected = expectation_here(compute.network, network_devices(), os.environ, **known)
    return NodeNetwork(run.directory, launch.node, expected, on_fallback=compute.on_fallback)


def _explain_failure(run: ProgramRun, ended: ProgramExit, system: SystemRecord) -> dict[str, Any]:
    """Return the failure of a program for its record: from facts, else from its output; empty without one.

    What the machine recorded is kept with it, because nobody can read that later.
    """
    if ended.stopped_by is not None:
        if found := time_limit_of_slurm(os.environ, time.time()):
            return found
        notices = instance_notices()  # EC2 takes its instance back
        why = LogExplanation(FailureClass.PREEMPTED, notices, True, "; ".join(notices), level="fact")
        return why.failure() if notices else {}
    if ended.exit_code == 0 or ended.problem is not None:
        return {}
    run.rows.close()  # the last rows may show a fault
    logs = [replace(read_log(path), name=path.name) for path in sorted(run.directory.logs.glob("node-*.log"))]
    last = [replace(log, lines=log.lines[-_LAST_LINES:]) for log in logs]
    was_killed = bool(signal_of(ended.exit_code) or find_signal(last)[0])
    recorded = (*system.changes(was_killed=was_killed), *(instance_notices() if was_killed else ()))
    error = run.error(has_failed=True)
    newest, begin = run.rows.writer.newest, (run.found.step or 0) if run.found else 0
    facts = FailureFacts(
        ended.exit_code,
        **FailureFacts.of_exception(error.to_json() if error else {}),
        system=tuple(filter(None, (*recorded, run.rows.writer.fault))),
        memory_kills=system.memory_kills(),
        steps=max(newest - begin, 0),
    )
    here, texts = f"{run.program.directory}{os.sep}", explain_logs(logs, facts=facts).failure()
    kept: dict[str, Any] = {name: text.replace(here, "") for name, text in texts.items()}
    kept |= {"system": list(facts.system)} if facts.system else {}
    return kept if facts.memory_kills is None else {**kept, "memory_kills": facts.memory_kills}


def time_limit_of_slurm(environment: Mapping[str, str], now: float) -> dict[str, str]:
    """Return the failure of a program that Slurm stops because its time is over; empty if it is not."""
    end = environment.get("SLURM_JOB_END_TIME", "")
    if not end.isdecimal() or now < int(end) - _SLURM_SECONDS:
        return {}
    why = "Slurm's time limit of the job was reached (SLURM_JOB_END_TIME)"
    return LogExplanation(FailureClass.TIME_LIMIT, (why,), True, why, level="fact").failure()


def announce_end(outcome: dict[str, Any], *, closing_follows: bool) -> None:
    """Report in one line how the program ended; its root error too, unless the last lines have it."""
    if outcome.get("status") != "succeeded":
        verdict = "degraded" if outcome.get("status") == "stopped" else "failed"
        output.announce("training", str(outcome.get("reason", "no outcome is on record")), verdict)
        failure = read_failure(outcome)
        is_new = failure is not None and failure.error not in ("", outcome.get("reason"))
        if failure is not None and is_new and not closing_follows:
            output.announce("error", failure.error)
        return
    first, last = outcome.get("first_loss"), outcome.get("final_loss")
    loss = "" if first is None or last is None else f", loss {first:.3g} → {last:.3g}"
    steps = describe_steps(outcome, steps_of_program(outcome)) + source_in_words(outcome, "steps")
    output.announce("training", f"{steps}{loss}{loss and source_in_words(outcome, 'loss')}", "ok")


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
                time.sleep(0.2)
    found = program_processes(directory).training
    for each in found:
        LOG.warning("%s: stopping process %s (%s)", directory, each.pid, each.words)
    if is_locked(directory) or stop_processes(found, GRACE_SECONDS):
        raise WaitTimeoutError(f"{directory}: what trains there did not end. Nothing was started.")


def differences_of_program(order: ProgramOrder) -> tuple[str, ...]:
    """Return how the inputs of a program differ from those of the run in its directory, a text each."""
    return _differences(_prepare(order)[0])


def _differences(run: ProgramRun) -> tuple[str, ...]:
    program, lock = run.program, run.program.lock
    facts = {
        "git": _code_of(run),
        "lock_sha256": None if lock is None else sha256_of_file(lock),
        "program": program.facts,
        "program_sha256": program.sha256_in(run.directory.path),
    }
    data = (run.data() or {}).get("fingerprint")
    found = differences_from_run(run.directory, run.config, facts, data=data)
    steps = read_run(run.directory.run_file).get("plan", {}).get("steps")
    return found if found or steps == program.steps else (f"steps: {steps}, now {program.steps}",)


def is_done(run: ProgramRun) -> bool:
    """Return whether the run that is recorded succeeded with these inputs. Raises ConfigError for others."""
    if not recorded_run(read_record(run.directory.run_file) or {"run_id": ""}).has_succeeded:
        return False
    if found := _differences(run):
        raise other_inputs(run.directory, found)
    return True
