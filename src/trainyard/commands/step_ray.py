"""Start a command once on each node of a Ray cluster, with the variables that other operators set.

Ray places one task on each node, with its GPUs. Each task runs the command as a separate process and shows
its output. The first node's address becomes PET_MASTER_ADDR. When one command fails, the others are ended,
because they would wait for it. After a failure all of them start again, at most --restarts times, on the
same Ray cluster: KubeRay reads no exit code, so it would repeat a failure that a restart cannot help.
This is the entrypoint of a RayJob; Ray must be installed.

Reads:      TRAINYARD_FILES (JSON, path -> text: files that every node needs); the variables of the driver
Writes:     these files on every node; what the command writes
Exit codes: 0 every command ended with 0; else the exit code of the first that did not; 2 wrong usage, no Ray;
            5 the nodes did not join in time
Example:    trainyard step ray --num-nodes 2 --nproc-per-node 8 --gpu-per-node 8 -- torchrun train.py
"""

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.gateways.ray_nodes import VARIABLE, NodeCommand, parse_job_files, run_on_nodes
from trainyard.jobs.final_exit_codes import restart_in_place
from trainyard.run.waiting import describe_wait

LOG = logging.getLogger(__name__)
HANDED_ON = ("TRAINYARD_", "NCCL_", "FI_", "TORCH_", "AWS_", "HF_", "WANDB_")
"""Variables of the driver that each node gets in addition to its own."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the plan, start nothing")
    add_option(parser, "--num-nodes", "N", "default: 1", type=arguments.positive, default=1)
    add_option(parser, "--nproc-per-node", "N", "processes per node", type=arguments.processes, default=1)
    gpus = "GPUs per node; default: 0"
    add_option(parser, "--gpu-per-node", "N", gpus, type=arguments.natural_number, default=0)
    wait = "how long to wait for the nodes; default: 30m"
    add_option(parser, "--wait-for-nodes", "DURATION", wait, type=arguments.duration, default="30m")
    place = "working directory of the command; default: this one"
    add_option(parser, "--directory", "DIR", place, type=arguments.path)
    restarts = "most restarts of all nodes' commands after a failure that a restart can help; default: 0"
    add_option(parser, "--restarts", "N", restarts, type=arguments.natural_number, default=0)
    parser.add_argument("own", nargs="+", metavar="COMMAND", help="after --: the command of each node")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    variables = {name: value for name, value in os.environ.items() if name.startswith(HANDED_ON)}
    files = parse_job_files(variables.pop(VARIABLE, ""))
    if args.dry_run:
        output.print_json({"nodes": args.num_nodes, "command": args.own, "files": sorted(files)})
        return 0

    command = NodeCommand(
        tuple(args.own),
        directory=str(args.directory or Path.cwd()),
        processes=args.nproc_per_node,
        gpus=args.gpu_per_node,
        environment=variables,
        files=files,
    )

    def run() -> int:
        return run_on_nodes(command, args.num_nodes, seconds=args.wait_for_nodes, describe_wait=describe_wait)

    return restart_in_place(run, args.restarts, lambda text: LOG.warning("the command %s", text))
