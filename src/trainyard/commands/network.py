"""Judge by the logs of NCCL which network joined the machines of a job.

The verdict depends only on NCCL's channels, which the log of every rank must show. NCCL logs them with
NCCL_DEBUG=INFO, in a run of several machines to logs/nccl-*.log of the run directory.

Reads:      the logs of one job, of any trainer, in any order; - is stdin
Writes:     the verdict, what shows it, and for a fallback its cause and the fix, on stdout; --json prints
            {"verdict", "evidence", "cause", "fix", "ranks_seen", "world_size", "nics"}. A verdict is
            efa-gpudirect, efa-no-gpudirect, efa-undetermined, tcp-fallback, tcp, infiniband,
            single-node or unknown
Exit codes: 0 the network is shown to be one that these machines should use; 1 it is not: tcp-fallback,
            efa-undetermined, unknown, or efa-no-gpudirect on a type that has GPUDirect; 2 wrong usage, or a
            log that cannot be read
Example:    trainyard network --log runs/a/logs/nccl-rank-*.log --instance-type p5.48xlarge
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ConfigError, DamagedFileError, ExitCode
from trainyard.plan.instances import find_instance
from trainyard.run.untrusted_files import open_regular
from trainyard.watch.network_verdict import Expectation, Network, NetworkLog


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the verdict")
    add_option(
        parser, "--log", "FILE", "the logs of all ranks", type=arguments.path, nargs="+", required=True
    )
    instance_type = "type of the machines, such as p5.48xlarge; its network is expected"
    add_option(parser, "--instance-type", "TYPE", instance_type)
    add_option(parser, "--num-nodes", "N", "number of machines of the job, if known", type=arguments.positive)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    known = find_instance(args.instance_type) if args.instance_type else None
    expected = Expectation(
        efa=None if known is None else known.efa,
        rdma=None if known is None else known.rdma,
        nodes=args.num_nodes,
    )
    log = NetworkLog()
    for path in args.log:
        try:
            with nullcontext(sys.stdin.buffer) if str(path) == "-" else open_regular(path) as file:
                log.read_file(file)
        except (OSError, DamagedFileError) as error:
            raise ConfigError(f"{error}; name the logs of the ranks") from None
    found = log.judge(expected)
    names = ", ".join(map(str, args.log[:3])) + (" …" if len(args.log) > 3 else "")
    lines = [f"{found.verdict}: {found.evidence[0]} ({names})"]
    lines += [f"  {line}" for line in found.evidence[1:]]
    lines += [f"  cause: {found.cause}", f"  fix:   {found.fix}"] if found.cause else []
    output.print_result(found.to_json(), lambda *_: lines, as_json=args.json)
    good = {Network.EFA_GPUDIRECT, Network.TCP, Network.INFINIBAND, Network.SINGLE_NODE}
    good |= set() if expected.rdma else {Network.EFA_NO_GPUDIRECT}
    return ExitCode.DONE if found.verdict in good else ExitCode.NO
