"""Measure how fast the machines of a job sum a tensor, before it trains.

Torch's own all-reduce runs over all processes: NCCL with GPUs, gloo without. The bus bandwidth is that of
nccl-tests. It is compared with half of what AWS has published for the instance type; without a published
figure nothing is compared. Pods run it before training with `compute.network_test: true`.

Reads:      an operator's variables, as trainyard train; TRAINYARD_INSTANCE_TYPE
Writes:     the result on stdout; --output
Exit codes: 0 fast enough, or nothing to compare with; 1 slower than the floor, or it could not be measured;
            2 wrong usage; 130 interrupted
Example:    trainyard network measure --nproc-per-node 8 --instance-type p5.48xlarge
"""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import CheckFailedError, ConfigError, ExitCode
from trainyard.gateways.nvidia import processes_here
from trainyard.gateways.torchrun import launch, write_exit_code
from trainyard.plan.network_floor import judge_bandwidth
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.launch_environment import AGENT, VARIABLES, NodeLauncher, launcher_options, place_in_run
from trainyard.training.runtime.network_bandwidth import write_measurement

_logger = logging.getLogger(__name__)
_WORKER = "from trainyard.commands.network_measure import work; work()"
_GRACE_SECONDS = 30
SLOW = "the network between the machines is slow"
"""The text by which the table of causes finds this failure in the log of a pod."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the result")
    processes = "processes of this machine; default: from the operator's variables, else one per GPU"
    add_option(parser, "--nproc-per-node", "N", processes, type=arguments.processes)
    add_option(
        parser, "--size-mib", "MIB", "tensor size; default: 1024", type=arguments.positive, default=1024
    )
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto", help="cpu: gloo, not NCCL")
    add_option(parser, "--instance-type", "TYPE", "default: $TRAINYARD_INSTANCE_TYPE", default="")
    limit = "how long processes wait for each other; default: 5m"
    add_option(parser, "--timeout", "DURATION", limit, type=arguments.duration, default="5m")
    add_option(parser, "--output", "FILE", "write the result as JSON", type=arguments.path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    return measure_network(
        args.nproc_per_node,
        instance_type=args.instance_type,
        device=args.device,
        size_mib=args.size_mib,
        seconds=args.timeout,
        file=args.output,
        as_json=args.json,
    )


def measure_network(
    processes: int | None = None,
    *,
    instance_type: str = "",
    device: str = "auto",
    size_mib: int = 1024,
    seconds: float = 300.0,
    file: Path | None = None,
    as_json: bool = False,
) -> int:
    """Measure the network, compare it with the floor, report it (also into `file`); return the exit code.

    Without `processes` of this machine the operator's variables or the GPUs decide; without `instance_type`
    TRAINYARD_INSTANCE_TYPE. `seconds` is how long processes wait for each other.
    """
    instance_type = instance_type or os.environ.get("TRAINYARD_INSTANCE_TYPE", "")
    node, processes = node_of(processes, on_cpu=device == "cpu")
    if node.nodes * processes == 1:
        raise ConfigError("one process has no network to measure; start several with --nproc-per-node N")
    found = measure({"size": size_mib << 20, "seconds": seconds, "device": device}, node, processes)
    verdict = judge_bandwidth(
        found["bus_gb_per_second"], instance_type=instance_type, nodes=node.nodes, size=found["bytes"]
    )
    data = found | {"nodes": node.nodes, "instance_type": instance_type}
    data |= {"floor": verdict.floor, "ok": not verdict.is_slow}
    if file:
        write_json_atomically(file, data)
    which = f"{node.describe(processes)}, {found['backend']}, {found['bytes'] / 2**20:,.0f} MiB"
    output.print_json(data) if as_json else output.print_text(f"  {verdict.text} ({which})")
    if verdict.is_slow:
        _logger.error(
            "%s: %s. Read which network NCCL took with NCCL_DEBUG=INFO (trainyard network), place the "
            "machines in one cluster placement group, and replace a slow one",
            SLOW,
            verdict.text,
        )
    return ExitCode.NO if verdict.is_slow else ExitCode.DONE


def work() -> None:
    """Measure in a worker that `measure` has started, and leave the exit code to the launcher."""
    write_measurement(json.loads(sys.argv[1]))
    sys.exit(write_exit_code(ExitCode.DONE, output=lambda _name, _text: None))


def node_of(given: int | None, *, on_cpu: bool) -> tuple[NodeLauncher, int]:
    """Return this machine's place in the job, and the number of its processes.

    The workers meet at the port after that of the training, which must stay free for the training.
    """
    if os.environ.get("LOCAL_RANK"):
        raise ConfigError("this is a worker of a launcher already; measure once on each machine")
    place = place_in_run(os.environ, given, has_agent=shutil.which(AGENT) is not None)
    place = place or NodeLauncher(1, 0, "auto")
    if place.agent:
        raise ConfigError(f"{AGENT} starts the workers of a pod once, so they cannot measure before training")
    processes = processes_here(place.processes, on_cpu=on_cpu)
    moved = [_with_next_port(option) for option in place.rendezvous]
    return replace(place, rendezvous=tuple(moved)), processes


def _with_next_port(option: str) -> str:
    name, _, value = option.partition("=")
    if name == "--rdzv-id":
        return f"{option}-network"
    host, colon, port = value.rpartition(":")
    if name not in ("--rdzv-endpoint", "--master-port") or not port.isdecimal():
        return option
    return f"{name}={host}{colon}{int(port) + 1}"


def measure(given: Mapping[str, Any], node: NodeLauncher, processes: int) -> dict[str, Any]:
    """Start the workers of this machine, and return what they measured. Raises CheckFailedError.

    `given` are the keyword arguments of `write_measurement`, except for the file.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-network-") as folder:
        file = Path(folder, "result.json")
        code = launch(
            ["-c", _WORKER, json.dumps({**given, "file": str(file)})],
            processes,
            "network",
            options=launcher_options(node, processes, grace_seconds=_GRACE_SECONDS),
            grace_seconds=_GRACE_SECONDS,
            without=VARIABLES,
        )
        if code != ExitCode.DONE or not file.is_file():
            raise CheckFailedError(
                f"the all-reduce over {node.describe(processes)} did not end: the lines above name the cause"
            )
        found: dict[str, Any] = json.loads(file.read_text())
        return found
