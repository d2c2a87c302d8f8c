"""Report a training job that no runner has taken after some minutes.

GitHub itself ends such a job only after 24 hours. It ends as soon as the job has a runner.

Reads:      the jobs of this workflow run with GITHUB_TOKEN; GITHUB_RUN_ID, GITHUB_REPOSITORY, GITHUB_API_URL;
            TRAINYARD_PLAN; Slack's variables
Writes:     after 15 minutes an annotation, the job summary and one Slack message: why the job waits
Exit codes: 0 it has a runner, or it was reported; 2 wrong usage; 4 GitHub refuses
Example:    trainyard step wait
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import output
from trainyard.command.parser import script_parser
from trainyard.commands.notify import notice_of_plan, notify
from trainyard.errors import ExitCode
from trainyard.gateways.github import Level, annotate, append_summary
from trainyard.gateways.github_api import github_from
from trainyard.github.job_end import TRAIN_JOB, job_of_call
from trainyard.github.variables import read_json

if TYPE_CHECKING:
    from trainyard.gateways.github_api import GitHub

POLL_SECONDS, MINUTES = 20.0, 15
CAUSES = {
    "waiting": "it waits for the approval of the environment `training`",
    "pending": "it is queued behind another training of this repository, which has the machine",
    "queued": "no runner with its labels ({labels}) has taken it: the runner is offline or busy, or none has "
    "these labels",
    "": "GitHub lists no such job yet: it is queued behind another training, or waits for an approval",
}
"""GitHub's status of a job -> why the job does not run."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return script_parser(__doc__, dry_run="report on stdout only").parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    plan, run = read_json(os.environ, "TRAINYARD_PLAN"), os.environ.get("GITHUB_RUN_ID", "")
    runner = os.environ.get("RUNNER_NAME", "")
    status = wait_for_start(github_from(), run, TRAIN_JOB, seconds=60 * MINUTES, runner=runner)
    if status is None:
        output.announce("runner", "the training job has a runner", "ok")
        return ExitCode.DONE
    cause = CAUSES.get(status, f"its status is {status}").format(labels=plan.get("runner", ""))
    text = f"the training job has waited for {MINUTES} minutes: {cause}"
    output.announce("runner", text, "degraded")
    if args.dry_run:
        return ExitCode.DONE
    runners = "gh api repos/{owner}/{repo}/actions/runners lists the runners"
    command = f"gh run view {run}; {runners}; gh run cancel {run} ends it"
    append_summary(f"### ⚠ {text[0].upper()}{text[1:]}\n\nNext: `{command}`\n")
    annotate(Level.WARNING, f"{text}\nNext: {command}", title="No runner has taken the job")
    folder = Path(os.environ.get("RUNNER_TEMP", ".")) / f"gh-{run}"
    notify(notice_of_plan(plan, "degraded", folder, reason=text, next_step=command))
    return ExitCode.DONE


def wait_for_start(api: "GitHub", run: str, name: str, *, seconds: float, runner: str = "") -> str | None:
    """Return None as soon as a runner has taken the job, else the status of the job after `seconds`.

    `runner` is the one that runs this job, which belongs to the same call of train.yml.
    """
    until = time.monotonic() + seconds
    while True:
        jobs = api.pages(f"/actions/runs/{run}/jobs", "jobs", filter="latest")
        job = job_of_call(jobs, name, runner)
        status = str(job.get("status") or "")
        if status in ("in_progress", "completed"):
            return None
        if time.monotonic() >= until:
            return status
        time.sleep(POLL_SECONDS)
