"""Watch the GPU runners: report those offline or stuck and overdue jobs, resume trainings that died.

Nothing is remembered: an outage makes each poll red and is posted to Slack until it is over. A training whose
runner died continues in the next attempt of its run, from the runner's directory or from the store. Only
runs of this repository's own training workflow are resumed; the jobs of other workflows on the
same labels only show whether the runner takes jobs.

Reads:      GitHub's API: runs, jobs, annotations with GITHUB_TOKEN, runners with RUNNERS_TOKEN (needs
            administration: read; without it, and of an organisation, they are judged by the waiting jobs);
            GITHUB_REPOSITORY, GITHUB_API_URL; --tell: SLACK_BOT_TOKEN with SLACK_CHANNEL, or
            SLACK_WEBHOOK_URL
Writes:     re-runs, unless --dry-run; the step output alerts; the job summary; --json
            prints what was found; --tell TEXT: one Slack message, and nothing else
Exit codes: 0 no outage; 1 an outage, which is named; 2 wrong usage; 4 GitHub refuses
Example:    trainyard step watch-runners --labels '["self-hosted","gpu"]' --dry-run
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.github import Level, annotate, append_summary, set_output
from trainyard.gateways.github_api import github_from
from trainyard.github import runner_watchdog
from trainyard.github.trust_policy import WORKFLOW
from trainyard.github.variables import selector_in_json

if TYPE_CHECKING:
    from trainyard.github.runner_watchdog import DeadRun
    from trainyard.github.runners import Outage


LABELS = "the labels of your runner; without them only trainings that died are watched"
AGAIN = "poll again after this time, and keep only findings of both polls; default: 0, no second poll"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="report the findings, change nothing", json="what was found")
    add_option(parser, "--labels", "JSON", LABELS, default="")
    add_option(parser, "--tell", "TEXT", "send this text to Slack, and do nothing else", default="")
    add_option(parser, "--again", "SECONDS", AGAIN, type=arguments.pause, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.tell:
        return send_to_slack(args.tell)

    now, api = time.time(), github_from()
    lister = github_from(variable="RUNNERS_TOKEN") if os.environ.get("RUNNERS_TOKEN") else None
    labels = labels_of(args.labels)
    outages = runner_watchdog.find_outages(api, lister, WORKFLOW, labels, now=now)
    if args.again > 0 and outages:
        time.sleep(args.again)
        # Neither a job that was just queued nor a runner that only restarts is an outage.
        before = {outage.key for outage in outages}
        second = runner_watchdog.find_outages(api, lister, WORKFLOW, labels, now=time.time())
        outages = [outage for outage in second if outage.key in before]
    dead = runner_watchdog.find_dead_runs(api, WORKFLOW, now=now)
    resumed, failures = runner_watchdog.resume_all(api, dead, dry_run=args.dry_run)
    outages += [runner_watchdog.report_unresumed(each) for each in dead if not each.is_resumed] + failures
    report(outages, resumed)
    if args.json:
        found = {"outages": [asdict(each) for each in outages]}
        output.print_json({**found, "resumed": [asdict(each) for each in resumed]})
    return ExitCode.NO if outages else ExitCode.DONE


def labels_of(text: str) -> frozenset[str]:
    """Return the labels; none if the repository has no runner of its own."""
    if not text:
        output.announce("watch", "no labels are given: your own runners are not watched", "degraded")
        return frozenset()
    try:
        return frozenset(selector_in_json(text).labels)
    except ConfigError as error:
        raise ConfigError(f"--labels: {error}") from None


def report(outages: "Sequence[Outage]", resumed: "list[DeadRun]") -> None:
    """Report the findings in the log, in the job summary and as annotations."""
    for outage in outages:
        annotate(Level.ERROR, f"{outage.title}\nNext: {outage.next_step}", title="An outage")
    lines = [f"❌ {outage.title}. Next: {outage.next_step}" for outage in outages]
    lines += [f"⚠ {each.address} lost its runner and was resumed" for each in resumed]
    for line in lines or ["no outage"]:
        output.announce("watch", line)
    append_summary("".join(f"- {line}\n" for line in lines or ["No outage."]))
    set_output("alerts", "\n".join(f"{outage.title}. Next: {outage.next_step}" for outage in outages))


def send_to_slack(text: str) -> int:
    """Send one message. A failure of Slack is only a warning, because the red run has the same text."""
    # A job on a hosted runner that finds nothing installs no package.
    from trainyard.gateways import slack
    from trainyard.report.slack.slack_message import mrkdwn

    message = "\n".join(f"❌ {mrkdwn(line, 1000)}" for line in text.splitlines() if line.strip())[:2900]
    try:
        is_sent = slack.post(message, [{"type": "section", "text": {"type": "mrkdwn", "text": message}}])
    except ServiceError as error:
        output.announce("slack", f"no message was sent: {error}", "degraded")
        return ExitCode.DONE
    output.announce("slack", message if is_sent else "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set")
    return ExitCode.DONE
