"""Plan a run before it starts: parameters, memory by part, whether it fits, tokens, time, cost.

The plan is for the devices of --instance-type, or for those of this machine, as compute.strategy uses them.
Memory is computed for one device from the model's operations. Time and cost assume a share of the peak
(--mfu) and are only as good as this assumption. Unknown figures, such as the price of this machine, are left
out. The first lines name the parts of the proof that cannot hold: for --instance-type those of a job on such
nodes, else those of a run by hand.

Reads:      the configuration; without --instance-type nvidia-smi and the memory of this machine
Writes:     the plan on stdout; --json as JSON
Exit codes: 0 it fits; 1 it does not, with advice; 2 wrong configuration or unknown instance type
Example:    trainyard plan --config configs/training_configuration.yaml --instance-type g6.xlarge
"""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.local_machine import main_memory
from trainyard.gateways.nvidia import query_gpus
from trainyard.jobs.job_planning import network_in_pods
from trainyard.plan.cost import RentedMachines
from trainyard.plan.device import cpu, cpu_of, gpu, gpu_of
from trainyard.plan.instances import find_instance, room_of_type
from trainyard.plan.training_plan import plan_training
from trainyard.proof.reachable_parts import PlannedRun, unreachable_parts
from trainyard.report.plan.plan_text import plan_text_lines
from trainyard.training.weights.pretrained import load_with_weights

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.plan.device import Device


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True, json="the plan")
    add_option(parser, "--instance-type", "TYPE", "for example g6.xlarge; default: this machine")
    add_option(parser, "--num-nodes", "N", "machines; default: 1", type=arguments.positive, default=1)
    processes = "processes per machine; default: one per GPU"
    add_option(parser, "--nproc-per-node", "N", processes, type=arguments.processes)
    add_option(parser, "--mfu", "SHARE", "share of the device's peak, such as 0.4", type=arguments.share)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    config = load_with_weights(args.config, args.set).config
    instance = find_instance(args.instance_type) if args.instance_type else None
    if instance is None:
        device, devices = device_here(config)
    elif config.model.device == "cpu":
        device, devices = cpu_of(instance), 1
    else:
        device, devices = gpu_of(instance), instance.gpus
    rented = RentedMachines(instance, args.num_nodes, args.nproc_per_node or devices)
    plan = plan_training(config, device, rented=rented, mfu=args.mfu)
    data = {**plan.to_json(), "unproven": unproven(config, rented)}
    output.print_json(data) if args.json else print("\n".join(plan_text_lines(data)))
    return ExitCode.DONE if plan.fits else ExitCode.NO


def unproven(config: "Config", rented: RentedMachines) -> list[dict[str, str]]:
    """Return the parts of the proof that cannot hold; without artifacts.store a store is assumed."""
    nodes, network = rented.nodes, str(config.compute.network)
    if rented.instance:
        gpus = 0 if config.model.device == "cpu" else rented.devices
        network = network_in_pods(config, room_of_type(rented.instance.name), nodes=nodes, gpus=gpus)
    store, is_logged = config.artifacts.store or "file:///store", config.model.device != "cpu"
    run = PlannedRun(nodes, rented.devices, network, store, keeps_network_log=is_logged)
    return [part.to_json() for part in unreachable_parts(run)]


def device_here(config: "Config") -> "tuple[Device, int]":
    """Return the device of this machine that `model.device` names, and the number of such devices."""
    wanted, memory = config.model.device, main_memory().total_bytes
    gpus = () if wanted == "cpu" else query_gpus().gpus
    index = int(wanted.partition(":")[2] or 0)
    if index < len(gpus):
        here = gpu(gpus[index].name, int(gpus[index].memory_total_bytes or 0), host_bytes=memory // len(gpus))
        return here, len(gpus)
    if wanted.startswith("cuda"):
        raise ConfigError(
            f"model.device: {wanted} is not in this machine ({len(gpus)} GPUs). Name a machine with "
            "--instance-type, or plan for the processors of this machine with --set model.device=cpu"
        )
    return cpu(cores=config.compute.threads or os.cpu_count() or 1, memory_bytes=memory), 1
