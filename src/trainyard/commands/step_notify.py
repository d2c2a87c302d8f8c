"""Report the end of a workflow run that no job has reported, and delete the tag of a lineage that is over.

It runs last, in a job of its own, so that somebody hears of a job that died.

Reads:      TRAINYARD_PLAN; NEEDS and STEPS, GitHub's contexts as JSON; GitHub's annotations, with
            GITHUB_TOKEN; Slack's variables
Writes:     a Slack message and the job summary; at GitHub the deletion of the tag, unless --dry-run
Exit codes: 0 reported, or there was nothing to report; 4 Slack refused
Example:    trainyard step notify
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.command import output
from trainyard.command.parser import script_parser
from trainyard.commands.notify import Notice, notify
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.github import append_summary
from trainyard.gateways.github_api import github_from
from trainyard.github.continuation import delete_tag
from trainyard.github.job_end import outputs_of
from trainyard.github.variables import read_json
from trainyard.run.segment import read_handover

Json = Mapping[str, Any]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return script_parser(__doc__, dry_run="delete no tag").parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    plan, needs, steps = (read_json(os.environ, name) for name in ("TRAINYARD_PLAN", "NEEDS", "STEPS"))
    needs["continue"] = end_of_continue(steps.get("continue") or {})
    code = report(plan, needs)
    if plan.get("trains") and is_over(needs) and not args.dry_run:
        try:
            delete_tag(github_from(), read_handover(os.environ["TRAINYARD_PLAN"]).segment)
        except (ServiceError, ConfigError) as error:
            output.announce("tag", f"not deleted: {error}")
    return code


def report(plan: Json, needs: Json) -> int:
    """Report the end in Slack and in the summary, if no job has reported its own."""
    run, handed = os.environ.get("GITHUB_RUN_ID", ""), outputs_of(needs, "train")
    number = str(plan.get("title") or os.environ.get("GITHUB_RUN_NUMBER", ""))
    folder = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / f"gh-{run}"
    thread = handed.get("thread") or plan.get("thread") or ""
    posted = notify(Notice(event="failed", run_dir=folder, lineage=number, needs=needs, thread=thread))
    if posted.notice.reason:
        append_summary(f"### ❌ {posted.notice.reason}\n\nNext: `{posted.notice.next_step}`\n")
    return ExitCode.DONE if posted.is_done else ExitCode.REFUSED


def is_over(needs: Json) -> bool:
    """Return whether no segment follows: the tag of a lineage whose runner died is needed to continue it."""
    is_reported = outputs_of(needs, "train").get("reported") == os.environ.get("GITHUB_RUN_ATTEMPT", "1")
    return is_reported and needs["continue"]["result"] == "skipped"


def end_of_continue(step: Json) -> Json:
    """Return the step that dispatches a segment in the form of a job; `success` only if it dispatched."""
    outputs, outcome = step.get("outputs") or {}, step.get("outcome")
    if outcome == "success" and outputs.get("dispatched") != "true":
        outcome = "skipped"
    return {"result": outcome or "skipped", "outputs": outputs}
