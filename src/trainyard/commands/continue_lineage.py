"""Dispatch the next segment of a run that stopped before its last step; it resumes from what was stored.

The segment uses the same commit and inputs. The number of segments is limited, and each must make progress. A
segment that exists already, because this job was run again, is not dispatched twice.

Reads:      the results of the plan job and of the training job, as flags; GITHUB_TOKEN,
            GITHUB_REPOSITORY, GITHUB_API_URL; TRAINYARD_WORKFLOW (training_ci.yml)
Writes:     one workflow dispatch, unless --dry-run; the job summary; the output `reason` if there is
            no further segment; --json prints the decision
Exit codes: 0 dispatched, now or before; 1 the run is not done, but there is no further segment, with
            the reason; 2 wrong usage; 4 GitHub refuses
Example:    scripts/continue_lineage.py --plan "$PLAN" --exit-code 75 --step 500 --stored true --manifest NAME
"""

import argparse
import json
import os
from collections.abc import Sequence

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--plan", required=True, metavar="JSON", help="plan that scripts/plan_run.py resolved"
    )
    code = "exit code of scripts/train.py"
    parser.add_argument("--exit-code", type=arguments.natural_number, required=True, metavar="N", help=code)
    which = "the last step; empty if unknown"
    parser.add_argument("--step", type=arguments.step_if_known, default="", metavar="N", help=which)
    parser.add_argument(
        "--stored", default="", choices=("true", "false", ""), help="whether the store holds it"
    )
    parser.add_argument("--manifest", default="", metavar="NAME", help="the newest stored manifest")
    parser.add_argument("--thread", default="", metavar="CHANNEL:TS", help="the lineage's thread in Slack")
    parser.add_argument("--dry-run", action="store_true", help="print the decision, dispatch nothing")
    parser.add_argument("--json", action="store_true", help="print the decision as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways.github import Level, annotate, append_summary, set_output
    from trainyard.gateways.github_api import github_from
    from trainyard.github.continuation import SegmentEnd, dispatch_once, next_segment
    from trainyard.run.segment import read_handover

    plan = read_handover(args.plan)
    ended = SegmentEnd(
        plan.segment, args.exit_code, args.step, stored=args.stored == "true" and bool(args.manifest)
    )
    decision = next_segment(ended, most=plan.most_segments)
    if args.json:
        following = None if decision.next is None else json.loads(decision.next.to_text())
        output.print_json({"next": following, "reason": decision.reason})
    if decision.next is None:
        annotate(Level.ERROR, decision.reason, title="The run is not done, and there is no further segment")
        again = f"gh run rerun {os.environ.get('GITHUB_RUN_ID', 'RUN_ID')} --failed"
        append_summary(f"### ❌ Not continued\n\n{decision.reason}.\n\nNext: `{again}`\n")
        set_output("reason", f"no further segment: {decision.reason}")
        output.announce("next", decision.reason, "failed")
        return ExitCode.NO
    inputs = plan.inputs_of(decision.next.with_thread(args.thread), manifest=args.manifest)
    if args.dry_run:
        output.print_json({"ref": plan.ref, "inputs": inputs})
        return ExitCode.DONE
    # The workflow that trains, not one that calls it.
    api, file = github_from(), os.environ.get("TRAINYARD_WORKFLOW") or "training_ci.yml"
    address, new = dispatch_once(api, file, decision.next, ref=plan.ref, inputs=inputs)
    why = decision.reason if new else "it was dispatched before and is not dispatched again"
    text = f"segment {decision.next.number} of at most {plan.most_segments}: {why}"
    append_summary(f"### Continued: {text}\n\n{address}\n")
    output.announce("next", f"{text} {address}".rstrip(), "ok")
    return ExitCode.DONE
