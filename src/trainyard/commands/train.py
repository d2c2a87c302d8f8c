"""Train a model into a run directory, or resume the run in it.

With `recipe: command` another program trains; docs/bring_your_own.md describes what is recorded of it.

Reads:   the configuration, the data, a checkpoint; the variables of an operator (docs/multi_node.md);
         TRAINYARD_RUN_ID (the identity of a new run), _JOB_STARTED (Unix seconds from which --deadline
         counts; default: now), _GPU_LOCK (a file; only one run that names it trains at a time),
         _IMAGE_DIGEST, _JOB_MINUTES (the job's time limit: --deadline becomes earlier where storing takes
         longer, by the speed measured here) and _FOLLOW (true: checkpoints are stored meanwhile),
         WANDB_API_KEY.
Writes:  the run directory; --json prints the outcome, also after a failure; in GitHub Actions the output
         `exit_code`.
Exit codes: 0 all steps done; 1 training failed; 2 configuration, data or checkpoint do not fit; 4 a stream
         cannot be reached; 5 the GPU did not become free; 6 ended because TCP joins machines that have EFA
         (compute.on_fallback); 75 stopped, run it again; 130 interrupted.
Example: trainyard train --config configs/smoke.yaml --set training.max_steps=50
"""

import argparse
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainyard
from trainyard.command import arguments, handler, output, signals, terminal, time_limits
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import add_option, script_parser
from trainyard.config.load import load_config
from trainyard.config.mesh import require_own_recipe, require_processes
from trainyard.errors import ConfigError
from trainyard.gateways.git import git_facts
from trainyard.gateways.github import set_output
from trainyard.gateways.gpu_lock import with_gpu_lock
from trainyard.gateways.images.image_record import code_facts, runs_code_of
from trainyard.gateways.local_machine import network_devices
from trainyard.gateways.nvidia import gpu_sampler, processes_here
from trainyard.gateways.process import leave_terminal
from trainyard.gateways.torchrun import launch, write_exit_code
from trainyard.plan.device import measures_of
from trainyard.program_training import ProgramOrder, describe_start, train_program, warn_of_secrets
from trainyard.report.facts.run_facts import seconds_to_cost_limit
from trainyard.report.terminal.training_progress import ProgressDisplay, summary_line
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import choose_run_id, collect_provenance, grace_needed, read_run
from trainyard.run.launch_environment import AGENT, VARIABLES, NodeLauncher, launcher_options, place_in_run
from trainyard.run.run_advice import other_inputs
from trainyard.training.data.config_of_run import (
    config_of_run,
    differences_from_run,
    has_been_trained,
    has_changed_since,
)
from trainyard.training.runtime.before_torch import before_torch
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.weights.pretrained import load_with_weights
from trainyard.watch.network_record import NetworkWatch, expectation_here

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.training.run.run_context import Request

IS_MAIN = os.environ.get("RANK", "0") == "0"
_SHUTDOWN_SECONDS = 300
"""Minimum time that a launcher gives its workers after a signal; a shorter time could cut off a save."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(
        __doc__, reads_config=True, dry_run="print the plan, change nothing", json="the outcome"
    )
    add_option(parser, "--run-dir", "DIR", "default: runs/<run id>", type=arguments.path)
    add_option(parser, "--resume", "none|auto|CHECKPOINT", "default: auto", type=str, default="auto")
    add_option(parser, "--deadline", "DURATION", "when to save and stop, such as 8h", type=arguments.duration)
    grace = "time from SIGTERM or Ctrl-C until the process is killed; default: 30s, as on Kubernetes"
    add_option(parser, "--grace", "DURATION", grace, type=arguments.duration, default="30s")
    processes = "processes on this machine; default: from the operator's variables, else 1"
    add_option(parser, "--nproc-per-node", "N", processes, type=arguments.processes)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and report the exit code to the launcher of the workers and to the workflow."""
    code = report_exit_code(handler.exit_code_of(with_gpu_lock(lambda: run(argv))))
    if (
        trackers := sys.modules.get("trainyard.training.run.trackers")
    ) is not None and trackers.is_still_closing():
        os._exit(code)
    if (world := sys.modules.get("trainyard.training.runtime.world")) is not None:
        world.end_if_joined(code)
    return code


def report_exit_code(code: int) -> int:
    return write_exit_code(code, output=set_output)


def run(argv: Sequence[str] | None) -> int:
    args = parse_args(argv)
    is_worker = "LOCAL_RANK" in os.environ
    output.configure_logging("error" if is_worker and not IS_MAIN else args.log_level)
    if os.environ.get("LOCAL_RANK") == "0":  # one process of each machine reports what it waits for
        logging.getLogger("trainyard.run.waiting").setLevel((args.log_level or "info").upper())
    if not is_worker and load_config(args.config, args.set).config.is_program:
        return run_program(args)

    place = place_in_run(os.environ, args.nproc_per_node, has_agent=shutil.which(AGENT) is not None)
    arrived_signal = signals.end_at_signals(silently=is_worker)  # so that a signal removes half-prepared data
    if place is not None:
        processes = processes_of(place, args)
        if args.dry_run:
            args.nproc_per_node = place.nodes * processes
        elif place.nodes > 1 and args.resume == "auto" and was_trained_here(args, place.nodes * processes):
            output.announce("training", "all steps were done before, and nothing was trained", "ok")
            file = args.run_dir / "run.json"
            if args.json and file.is_file():  # only the first machine is sure to have one
                output.print_json(read_run(file)["outcome"])
            return 0
        elif place.nodes * processes > 1 or place.agent:
            return launch_workers(args, argv, place, processes=processes)

    display = ProgressDisplay(live=terminal.can_redraw())
    display.begin("importing torch")
    with terminal.show_live(display) if IS_MAIN else nullcontext():
        outcome = run_training(args, display, arrived_signal)
    if args.dry_run:
        output.print_json(outcome)
    elif IS_MAIN:
        line = summary_line(outcome, done_before=display.was_done_before)
        output.announce("training", line, "ok")
    return 0


def run_program(args: argparse.Namespace) -> int:
    """Train with the program of the configuration, and return the exit code."""
    known = {name: getattr(args, name) for name in ("config", "run_dir", "resume", "grace", "deadline")}
    order = ProgramOrder(changes=args.set, processes=args.nproc_per_node, **known)
    if args.dry_run:
        output.print_json(describe_start(order))
        return 0
    return train_program(order, on_outcome=output.print_json if args.json else lambda _: None)


def was_trained_here(args: argparse.Namespace, processes: int) -> bool:
    """Return whether the run is finished. Does not wait for the other nodes, which may have ended."""
    if args.run_dir is None or not has_been_trained(args.run_dir, args.config, args.set):
        return False
    if has_changed_since(args.run_dir, processes):
        return False
    directory = RunDirectory(args.run_dir)
    if directory.run_file.is_file():  # the first machine has it
        data = (read_run(directory.run_file).get("data") or {}).get("fingerprint")
        config = config_of_run(args.config, args.set, args.run_dir)
        if found := differences_from_run(directory, config, origin_of(args), data=data):
            raise other_inputs(directory, found)
    return True


def origin_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the commit, the lock and what else `run.json` has of the trainer of this repository."""
    code = git_facts(REPOSITORY_ROOT) or code_facts(REPOSITORY_ROOT)
    lock = REPOSITORY_ROOT / "requirements-training.txt"
    return collect_provenance(code, lock=lock, config_file=args.config)


def processes_of(node: NodeLauncher, args: argparse.Namespace) -> int:
    """Return the number of workers that this node starts, checked against the configuration."""
    config = load_with_weights(args.config, args.set, args.run_dir).config
    processes = processes_here(node.processes, on_cpu=config.model.device == "cpu")
    require_processes(config, node.nodes * processes)
    return processes


def launch_workers(
    args: argparse.Namespace, argv: Sequence[str] | None, node: NodeLauncher, *, processes: int
) -> int:
    """Start the workers of this node, and return the exit code of the run."""
    run_id = choose_run_id(args.run_dir, several=node.nodes > 1)
    if node.nodes > 1:
        logging.getLogger("trainyard").info("starting %s", node.describe(processes))
    seconds = math.ceil(max(_SHUTDOWN_SECONDS, args.grace, 1.5 * grace_needed(args.run_dir)))
    return launch(
        [str(REPOSITORY_ROOT / "scripts" / "train.py"), *(argv or sys.argv[1:])],
        processes,
        run_id,
        options=launcher_options(node, processes, grace_seconds=seconds),
        grace_seconds=seconds,
        agent=node.agent[0] if node.agent else None,
        without=() if node.agent else VARIABLES,  # the agent reads some of them itself
        on_answer=sys.stdout.write if args.json else None,
    )


def run_training(
    args: argparse.Namespace, display: ProgressDisplay, arrived_signal: Callable[[], str | None]
) -> dict[str, Any]:
    """Train and return the outcome, or with --dry-run the plan. `arrived_signal` returns a signal or None."""
    before_torch()
    from trainyard.training.weights.starting_weights import require_weights

    display.begin("reading the configuration")
    config = config_of_run(args.config, args.set, args.run_dir)
    if IS_MAIN and not args.dry_run:
        warn_of_secrets(load_config(args.config, args.set).given)
    run_id = choose_run_id(args.run_dir)
    directory = RunDirectory((args.run_dir or Path("runs") / run_id).absolute())
    nodes = math.ceil(int(os.environ.get("WORLD_SIZE", "1")) / int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    limit = None if args.dry_run else config.limits.cost_usd
    stop = StopRequest.after(
        args.deadline,
        gone=time_limits.job_seconds(),
        grace=args.grace,
        paid_seconds=seconds_to_cost_limit(limit, directory.path, nodes=nodes),
    )
    display.begin("importing torch")
    from trainyard.training.data.training_data import ready_data
    from trainyard.training.loop import join_processes, rehearse, train

    request_of = request_factory(args, config, directory, run_id=run_id)

    def prepare() -> Any:
        """Fetch weights and prepare data. This may take hours, in which the other processes wait."""
        require_weights(config, directory, args.resume)
        return ready_data(config.data, config.model, display)

    if args.dry_run:
        require_weights(config, directory, args.resume)
        return rehearse(config, request_of, processes=args.nproc_per_node)
    require_own_recipe(config)
    with join_processes(
        config, directory, is_stopping=lambda: arrived_signal() is not None, listener=display
    ) as world:
        request = request_of(world.run_on_each(prepare))
        stop.listen(arrived_signal, leave_terminal)
        return train(request, stop=stop, listener=display, world=world)


def request_factory(
    args: argparse.Namespace, config: "Config", directory: RunDirectory, *, run_id: str
) -> "Callable[[Any], Request]":
    """Return a function that makes the complete request from the data; all other parts are made here."""
    from trainyard.training.run.run_context import Request

    package = Path(trainyard.__file__).parent
    if not runs_code_of(REPOSITORY_ROOT, package):
        raise ConfigError(
            f"This script belongs to {REPOSITORY_ROOT}, but Python imports other code, "
            f"from {package}, so the recorded commit would not be that of the training. "
            "Run `make install` there, and unset PYTHONPATH."
        )
    origin = origin_of(args)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    expected = expectation_here(
        config.compute.network, network_devices(), os.environ, nodes=-(-world // here), processes=world
    )
    return lambda data: Request(
        config=config,
        directory=directory,
        data=data,
        resume=args.resume,
        run_id=run_id,
        provenance=origin,
        gpu_facts=gpu_sampler(seconds=10) if config.model.device != "cpu" else dict,
        **measures_of(config),
        on_outcome=output.print_json if args.json else lambda _: None,
        leave=lambda code: handler.end_at_once(lambda: report_exit_code(code)),
        network=NetworkWatch(expected),
    )
