"""Run one pod of a job: train, and on the first node store and prove the finished run.

    every node     train
    the first one  train ──> evaluate ──> store ──> prove ──> report

A job that succeeds is therefore proven; without a store it is only trained. A run that is not stored or not
proven is reported on too. A pod that starts again after the training was done does not train, because its
peers have ended and it would wait for them. If the operator does not number the nodes, the pod whose name
ends in -0 is the first one. With `compute.network_test` several nodes measure an all-reduce before they
train, and a network below the floor of the machines ends the job.

With `checkpointing.shared: false` and several nodes, every pod fetches the newest stored checkpoint before it
trains, and stores its own part of each checkpoint while it trains (docs/multi_node.md). A run directory whose
run.json names another TRAINYARD_OWNER (namespace, creator, command) is refused before anything is written.

Reads:      the configuration; the operator's variables (PET_NODE_RANK and others); TRAINYARD_POD
Writes:     the run directory, the store and the proof; --dry-run prints the steps as JSON
Exit codes: that of the first step that does not end with 0: 1 training failed; 2 wrong configuration;
            4 the store refused; 6 trained and stored, but not proven, or ended because TCP joins machines
            that have EFA, or because their network is too slow, after which operators do not restart;
            75 stopped, the same pod resumes when it is started again; 143 instead with --evictable
Example:    trainyard pod --config /etc/trainyard/config.yaml --run-dir /checkpoints/team/a --grace 285s
"""

import argparse
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.commands.network_measure import measure_network
from trainyard.commands.store_sync import store_run
from trainyard.config.load import load_config
from trainyard.errors import ConfigError, ExitCode, TrainyardError
from trainyard.gateways.ray_nodes import place_files
from trainyard.jobs.final_exit_codes import (
    REQUESTED_END_CODES,
    add_start,
    code_for_operator,
    describe_not_proven,
    is_final,
    restart_in_place,
)
from trainyard.pipeline import Pipeline, Step, StepRunner, follow_beside, plan_record
from trainyard.report.facts.proof_record import read_proof
from trainyard.report.facts.run_facts import read_record
from trainyard.run.directory import RunDirectory
from trainyard.run.launch_environment import AGENT, is_first_node, node_number, place_in_run
from trainyard.run.node_folder import forget_node, read_node
from trainyard.run.records import append_event
from trainyard.run.run_advice import other_inputs
from trainyard.run.situation import recorded_run
from trainyard.run.waiting import describe_wait
from trainyard.run_choice import differences_of
from trainyard.training.data.config_of_run import has_been_trained

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.run.node_folder import NodeFolder

OUTCOME_SECONDS = 120.0
# How long restarted pods wait for each other to store the checkpoints from before the restart.
SETTLE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Pod(Pipeline):
    """The settings of one pod, and its steps.

        shared directory     train ──> on the first node: store, prove, report
        one per machine      [store what is left] ──> fetch ──> train, beside it: store parts ──> store
                             on the main machine: ──> prove, report

    Without a shared directory (`checkpointing.shared: false`) every pod stores its own part of each
    checkpoint while it trains. A restarted pod first stores what it had before the restart, so that the main
    machine can list it, and then fetches the newest checkpoint that is completely stored.
    """

    tests_network: bool = False

    def measure(self) -> list[Step]:
        """Return the step that measures the network before training, if the configuration says so."""
        values = {"processes": self.processes, "file": self.network_file}
        return [Step("network", measure_network, values)] if self.tests_network else []

    @property
    def network_file(self) -> Path:
        """The file with the result of the measurement, beside the run directory."""
        return self.run_dir.with_name(f"{self.run_dir.name}.network-{node_number(os.environ) or 0}.json")

    def restore(self, node: "NodeFolder | None") -> list[Step]:
        """Return the steps before the training if each machine has a run directory of its own.

        `node` is the mark that an earlier start left in the directory; None in a new directory.
        """
        fetch = self.fetch()
        if node is None:
            return [fetch]
        left = Step("store", store_run, {**self.stored, "others": SETTLE_SECONDS})
        waits = {} if node.is_main else {"wait": SETTLE_SECONDS}
        return [left, replace(fetch, values={**fetch.values, **waits})]

    def beside(self, *, apart: bool) -> Step | None:
        """Return the step that stores each checkpoint while it trains, or this machine's part of each.

        At the end the main machine waits for the parts of other machines until their pods are killed.
        """
        if apart:
            values = {"others": self.grace, "stores_rest": True}
            return replace(self.follow(), values={**self.follow().values, **values})
        return self.follow() if self.store and self.follows and is_first_node(os.environ) else None

    def plan(self, *, apart: bool) -> list[Step]:
        """Return the steps of this pod, if nothing fails."""
        if is_trained(self):
            return after(self, apart=apart)
        first = self.restore(node_of(self.run_dir)) if apart else []
        return [*first, *self.measure(), self.train(), *after(self, apart=apart)]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True, dry_run="print the steps, run nothing")
    add_option(parser, "--run-dir", "DIR", "directory of the run", type=arguments.path, required=True)
    add_option(parser, "--nproc-per-node", "N", "processes of this pod", type=arguments.processes)
    nodes = "nodes that another program uses, although this pod alone starts it, as on Ray"
    add_option(parser, "--num-nodes", "N", nodes, type=arguments.positive)
    grace = "time from SIGTERM to the end of the pod; default: 30s"
    add_option(parser, "--grace", "DURATION", grace, type=arguments.duration, default="30s")
    restarts = "most restarts after a failure that a restart can help; default: 0, leave it to the operator"
    add_option(parser, "--restarts", "N", restarts, type=arguments.natural_number, default=0)
    evictable = "an operator starts this pod again after exit codes of 128 or more: end with 143 if stopped"
    add_flag(parser, "--evictable", evictable)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if not args.dry_run:
        require_own_run(args.run_dir)
        place_files(os.environ)
    config = load_config(args.config, args.set).config
    if not args.dry_run:
        require_same_inputs_of_finished(pod_of(args, config))
    pod, apart = pod_of(args, config), is_apart(args, config)
    if args.dry_run:
        plan = plan_record(pod.plan(apart=apart))
        if (beside := pod.beside(apart=apart)) and not is_trained(pod):
            plan["beside_training"] = beside.record()
        output.print_json(plan)
        return ExitCode.DONE
    newest = partial(newest_step, RunDirectory(args.run_dir))
    starts = args.run_dir.with_name(
        f".{args.run_dir.name}.{os.environ.get('TRAINYARD_POD', 'pod')}.starts.json"
    )
    if args.evictable and (number := add_start(starts, newest())) > args.restarts + 1:
        starts.unlink()
        text = f"it was killed {number - 1} times without a new checkpoint (cluster.pod.restarts)"
        output.announce("pod", text, "failed")
        return ExitCode.NO
    code = restart_in_place(
        lambda: run(pod, apart=apart),
        args.restarts,
        lambda text: output.announce("pod", text, "degraded"),
        last=REQUESTED_END_CODES,
        progress=newest,
    )
    if not args.evictable:
        return code
    starts.unlink()
    return code_for_operator(code)


def newest_step(directory: RunDirectory) -> int:
    return max(directory.checkpoint_steps(), default=0)


def require_own_run(run_dir: Path) -> None:
    """Raise ConfigError, whose exit code is final, if the directory has the run of another job."""
    recorded, ours = read_record(run_dir / "run.json"), os.environ.get("TRAINYARD_OWNER", "")
    theirs = str(recorded.get("owner", ""))
    parts = zip(("namespace", "creator", "command"), theirs.split("/"), ours.split("/"), strict=False)
    others = [f"{name} {before}" for name, before, now in parts if before and now and before != now]
    if others:
        raise ConfigError(
            f"{run_dir} has the run of another job: {', '.join(others)}. Nothing was written. Deploy under "
            "another --job-name, or move that directory away if nobody needs its run."
        )
    # The jobs of other users in the namespace may write where they may write on the volume.
    with suppress(OSError):  # it exists, or the run directory will say why it cannot be created
        run_dir.parent.mkdir()
        run_dir.parent.chmod(run_dir.parent.parent.stat().st_mode & 0o7777)


def require_same_inputs_of_finished(pod: Pod) -> None:
    """Raise ConfigError if the directory has a finished run with other inputs, which stays as it is."""
    recorded = read_record(pod.run_dir / "run.json")
    if recorded and recorded_run(recorded).has_succeeded and (found := differences_of(pod.order)):
        raise other_inputs(RunDirectory(pod.run_dir), found)


def run(pod: Pod, *, apart: bool) -> int:
    """Train unless the run is finished, then store and prove; return the exit code of this pod."""
    with StepRunner() as steps:
        if apart and (code := restore_checkpoint(pod, steps)) != ExitCode.DONE:
            return code
        if is_trained(pod):
            output.announce("training", "was finished by an earlier start of this job", "ok")
            return finish(pod, steps, after(pod, apart=apart))
        if is_first_node(os.environ) and (code := claim(pod, steps, apart=apart)) != ExitCode.DONE:
            return code
        if pod.tests_network and (code := check_network(pod, steps)) != ExitCode.DONE:
            return code
        with follow_beside(pod.beside(apart=apart)):
            code = steps.run(pod.train())
        record_network(pod)
        if code != ExitCode.DONE:
            if not steps.passed and not apart and has_failed(pod):
                steps.run(pod.store_run())
            is_asked = bool(steps.passed) and not is_final(code) and code not in REQUESTED_END_CODES
            return 128 + signal.SIGTERM if is_asked else code  # it ended without a checkpoint when asked to
        following = after(pod, apart=apart)
        if len(following) > 1:
            wait_for_outcome(pod.run_dir)
        return finish(pod, steps, following)


def has_failed(pod: Pod) -> bool:
    """Return whether this pod stores a run whose failure is on record."""
    outcome = read_record(pod.run_dir / "run.json").get("outcome", {})
    is_stored_here = bool(pod.store) and pod.stores_failed and is_first_node(os.environ)
    return is_stored_here and outcome.get("status") == "failed"


def claim(pod: Pod, steps: StepRunner, *, apart: bool) -> int:
    """Claim the run's number before it trains; a pod that returns without its volume restores it first."""
    is_lost = not apart and not (pod.run_dir / "run.json").exists()
    return steps.run(*([pod.fetch()] if pod.store and is_lost else []), *pod.claim())


def check_network(pod: Pod, steps: StepRunner) -> int:
    """Measure the network before the training; return NOT_PROVEN, which ends the job, if it is too slow."""
    pod.network_file.parent.mkdir(parents=True, exist_ok=True)
    pod.network_file.unlink(missing_ok=True)
    code = steps.run(*pod.measure())
    if code == ExitCode.NO and pod.network_file.is_file():
        output.announce("network", "too slow for training: see the line above", "failed")
        return ExitCode.NOT_PROVEN
    return code


def record_network(pod: Pod) -> None:
    """Append the measured bandwidth to the events of the run, if the trainer has created its directory."""
    directory = RunDirectory(pod.run_dir)
    if not (pod.tests_network and pod.network_file.is_file() and directory.run_file.is_file()):
        return
    found = json.loads(pod.network_file.read_text())
    pod.network_file.unlink()
    if is_first_node(os.environ) or node_of(pod.run_dir) is not None:
        append_event(directory.events_file, "network_measured", **found)


def finish(pod: Pod, steps: StepRunner, following: Sequence[Step]) -> int:
    """Store, prove and report; return NOT_PROVEN for a run that is stored and not proven.

    A run that was not stored or not proven is reported on too. The failing parts are printed last, because
    Kubernetes keeps the last lines.
    """
    code, is_unproven, evaluated = int(ExitCode.DONE), False, int(ExitCode.DONE)
    for step in following:
        if step.name == "evaluate":  # a run that misses a threshold is stored too; its proof shows the miss
            evaluated = steps.run(step)
        elif code == ExitCode.DONE or step.name == "report":
            end = steps.run(step)
            is_unproven = is_unproven or (end == ExitCode.NO and step.name == "prove")
            code = code or end
    if is_unproven:
        output.announce("proof", describe_not_proven(failing_parts(pod)), "failed")
        return ExitCode.NOT_PROVEN
    return code or evaluated


def failing_parts(pod: Pod) -> list[tuple[str, str]]:
    """Return the failing parts of the proof with their evidence; empty without a current proof."""
    with suppress(OSError, TrainyardError):
        proof = read_proof(RunDirectory(pod.run_dir), read_record(pod.run_dir / "run.json"))
        return [(part.name, part.evidence) for part in proof.failing] if proof else []
    return []


def pod_of(args: argparse.Namespace, config: "Config") -> Pod:
    return Pod(
        run_dir=args.run_dir,
        config=args.config,
        changes=args.set,
        store=config.artifacts.store or "",
        run_id=os.environ.get("TRAINYARD_RUN_ID") or args.run_dir.name,
        may_adopt=True,
        grace=args.grace,
        processes=args.nproc_per_node,
        nodes=args.num_nodes,
        prepares=not config.is_program,
        tests_network=config.compute.network_test and has_several_nodes(args.nproc_per_node),
    )


def has_several_nodes(processes: int | None) -> bool:
    """Return whether this is one of several pods of a job."""
    place = place_in_run(os.environ, processes, has_agent=shutil.which(AGENT) is not None)
    return place is not None and place.nodes > 1


def is_apart(args: argparse.Namespace, config: "Config") -> bool:
    """Return whether this is one of several pods that have run directories of their own."""
    is_shared = config.is_program or config.checkpointing.shared
    if is_shared or not has_several_nodes(args.nproc_per_node):
        return False
    os.environ.setdefault("TRAINYARD_RUN_ID", args.run_dir.name)
    if not config.artifacts.store:
        raise ConfigError(
            "checkpointing.shared is false, so each pod has only its part of a checkpoint, and there is no "
            "store to resume from. Set artifacts.store, or checkpointing.shared to true and --run-dir to a "
            "volume that all pods share. Nothing was started."
        )
    return True


def restore_checkpoint(pod: Pod, steps: StepRunner) -> int:
    """Store what an earlier start of this pod has not stored, and restore the newest stored checkpoint."""
    if is_trained(pod):
        return ExitCode.DONE
    *left, fetch = pod.restore(node_of(pod.run_dir))
    code = steps.run(*left)
    if code == ExitCode.NO:  # for example, the part of a removed machine is missing
        text = "not everything could be stored; the run resumes from the newest complete stored checkpoint"
        output.announce("artifacts", text, "degraded")
    elif code != ExitCode.DONE:
        return code
    if (code := steps.run(fetch)) == ExitCode.DONE and not is_trained(pod):
        forget_node(RunDirectory(pod.run_dir))  # the trainer marks it again, then it is followed
    return code


def after(pod: Pod, *, apart: bool) -> list[Step]:
    """Return the steps that this pod runs once the training is done."""
    if not pod.store:
        return []
    if apart and (node := node_of(pod.run_dir)) is not None:
        return pod.after() if node.is_main else [pod.store_run()]
    return pod.after() if is_first_node(os.environ) else []


def is_trained(pod: Pod) -> bool:
    """Return whether the run directory has a finished training of this configuration."""
    return has_been_trained(pod.run_dir, pod.config, pod.changes)


def node_of(run_dir: Path) -> "NodeFolder | None":
    """Return the mark of a machine that has a run directory of its own; None without a readable one."""
    with suppress(TrainyardError):
        return read_node(RunDirectory(run_dir))
    return None


def wait_for_outcome(run_dir: Path) -> None:
    """Wait until the main process, which may be in another pod, has written how the run ended."""
    deadline = time.monotonic() + OUTCOME_SECONDS
    with describe_wait(f"the main process to write the outcome into {run_dir}/run.json", OUTCOME_SECONDS):
        while time.monotonic() < deadline and "outcome" not in read_record(run_dir / "run.json"):
            time.sleep(0.5)
