"""Run any training program on one machine, and keep a run directory for it.

`trainyard.program_training` describes what is read and recorded.

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
from collections.abc import Sequence

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.program_training import ProgramOrder, describe_start, train_program


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
    order = ProgramOrder(
        config=args.config,
        changes=args.set,
        run_dir=args.run_dir,
        program=args.program,
        resume=args.resume,
        processes=args.nproc_per_node,
        grace=args.grace,
        deadline=args.deadline,
    )
    if args.dry_run:
        output.print_json(describe_start(order))
        return 0
    return train_program(order, on_outcome=output.print_json if args.json else lambda _: None)
