"""List the contents of a store: runs, their proofs, checkpoints, sizes, age and completeness.

Reads:  --store: all names and sizes; the manifests of the newest 100 runs, and the records of the newest 20
        that succeeded, which are judged; AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL)
Writes: a table on stdout, or JSON
Exit codes: 0 the runs that were read are complete; 1 something is missing or wrong; 2 wrong usage; 4 the
        store cannot be reached

Example: trainyard store ls --store s3://ml-runs
"""

import argparse
from collections.abc import Sequence

from trainyard.artifacts import inventory
from trainyard.artifacts.record.run_numbers import runs_in_question
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ExitCode
from trainyard.proof.stored_runs import failing_parts


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_store=True, json="the result")
    add_option(parser, "--run-number", "N", "only this run")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    store = open_store(args.store)
    runs = inventory.list_runs(store, runs_in_question(store, args.run_number), judge=failing_parts)
    data = {"store": store.url, "runs": [run.to_json() for run in runs]}
    output.print_result(data, lambda *_: [inventory.inventory_table(runs)], as_json=args.json)
    output.print_remarks(problem for run in runs for problem in run.problems)
    return ExitCode.DONE if all(run.ok for run in runs) else ExitCode.NO
