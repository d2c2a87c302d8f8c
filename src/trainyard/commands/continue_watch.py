"""Dispatch the next watch of a job on a cluster that has not ended yet. The job itself is not changed.

A watch ends with its runner or its time limit while the job continues. This workflow run then ends with exit
code 5, because nothing is proven yet, and the dispatched one follows the same job.

Reads:      the job and its cluster, as flags; GITHUB_TOKEN, GITHUB_REPOSITORY, GITHUB_API_URL,
            GITHUB_REF_NAME
Writes:     one workflow dispatch, unless --dry-run; the job summary; the outputs `reason` and `dispatched`;
            --json prints the inputs of the dispatch
Exit codes: 5 the job continues, and the next watch was dispatched; 1 the limit of watches is reached;
            2 wrong usage; 4 GitHub refuses; 0 with --dry-run
Example:    scripts/continue_watch.py --job gh-4711 --kind pytorchjob --namespace team-a --watch 1
"""

import argparse
import json
import os
from collections.abc import Sequence

from trainyard.command import arguments, output
from trainyard.command.cluster_options import add_target_options, check_cluster_options
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode

WORKFLOW = "deploy_eks.yml"
MOST_WATCHES = 200
"""The largest number of watches of one job."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    for flag, meaning in (("--job", "the job"), ("--kind", "its kind"), ("--namespace", "its namespace")):
        parser.add_argument(flag, type=arguments.text, required=True, metavar="NAME", help=meaning)
    parser.add_argument("--store", default="", metavar="URL", help="its store")
    title = "its configuration, shown in the title of the run"
    parser.add_argument("--config", type=arguments.path, metavar="FILE", help=title)
    parser.add_argument("--thread", default="", metavar="CHANNEL:TS", help="the thread in Slack")
    parser.add_argument(
        "--watch", type=arguments.positive, required=True, metavar="N", help="number of this watch"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the decision, dispatch nothing")
    parser.add_argument("--json", action="store_true", help="print the inputs of the dispatch as JSON")
    add_target_options(parser)
    args = parser.parse_args(argv)
    check_cluster_options(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways.github import set_output
    from trainyard.gateways.github_api import github_from
    from trainyard.run.suggested_commands import cluster_target

    if args.watch >= MOST_WATCHES:
        again = cluster_target(vars(args)).command("manage_training_job.py", "status", args.job, "--follow")
        return report_end(
            f"it was watched {args.watch} times and has not ended; follow it with {again}", ExitCode.NO
        )
    inputs = inputs_of(args)
    if args.json or args.dry_run:
        output.print_json(inputs)
    if args.dry_run:
        return ExitCode.DONE
    address = github_from().dispatch(WORKFLOW, ref=os.environ.get("GITHUB_REF_NAME", ""), inputs=inputs)
    set_output("dispatched", "true")
    text = f"the job continues; watch {args.watch + 1} was dispatched: {address or 'see the list of runs'}"
    return report_end(text, ExitCode.TIMED_OUT)


def inputs_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the inputs of a dispatch that follows the job and sends nothing."""
    from trainyard.github.variables import parse_store

    args.store = parse_store(args.store) if args.store else ""
    names = ("job", "kind", "namespace", "store", "thread")
    watch = {**{name: getattr(args, name) for name in names}, "watch": args.watch + 1}
    found = {"job_name": args.job, "takes_up": json.dumps(watch, separators=(",", ":"))}
    return {**found, "config": str(args.config)} if args.config else found


def report_end(text: str, code: ExitCode) -> int:
    from trainyard.gateways.github import Level, annotate, append_summary, set_output

    level = Level.WARNING if code is ExitCode.TIMED_OUT else Level.ERROR
    annotate(level, text, title="Not ended")
    append_summary(f"### ⏳ Not ended\n\n{text}\n")
    set_output("reason", text)
    output.announce("next", text, "degraded" if code is ExitCode.TIMED_OUT else "failed")
    return code
