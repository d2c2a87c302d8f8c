"""Post the state of a run to Slack, in one thread per lineage. A failure of Slack never fails a run.

With a bot token, `started` opens a thread in the channel. `resumed`, `degraded` and `stopped` reply in it;
`succeeded` and `failed` reply in it and in the channel. The first message always shows the current state. A
webhook has no threads, so its messages are separate. An event is posted once. A `started` in a lineage that
has started before is posted as `resumed`. A `degraded` without a reason, and without trouble on record, is
not posted.

Reads:   the run directory, if there is one, and its slack.json (the thread and the posted events);
         SLACK_BOT_TOKEN with SLACK_CHANNEL or notifications.slack.channel, or SLACK_WEBHOOK_URL;
         SLACK_API_URL (another server for the token); TRAINYARD_USD_PER_HOUR (the price of the machine);
         GitHub's variables.
Writes:  a Slack message and slack.json; in GitHub Actions the outputs slack_thread (CHANNEL:TS) and
         posted (true, or not set where Slack did not take the message). Without webhook and token, or with
         --dry-run, the message is printed on stdout. --json prints the message, the thread, and whether it
         was sent.
Exit codes: 0 sent or not, because trouble with Slack is a warning; 2 wrong usage.
Example: trainyard notify resumed --run-dir runs/gh-99 --segment 2/3 --reason "runner's time limit"
"""

import argparse
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import output, terminal
from trainyard.command.parser import add_option, add_run, script_parser
from trainyard.errors import ConfigError, ExitCode, TrainyardError
from trainyard.gateways import slack
from trainyard.gateways.github import set_output
from trainyard.gateways.github_api import github_from
from trainyard.github.job_end import job_of_call, unreported_end
from trainyard.github.job_times import JOB_MINUTES
from trainyard.report.facts.run_facts import facts_if_any
from trainyard.report.plan.plan_text import read_plan
from trainyard.report.slack.slack_events import SLACK_EVENTS
from trainyard.report.slack.slack_message import Surroundings
from trainyard.report.slack.slack_thread import (
    FILE_NAME,
    PostResult,
    SlackThread,
    event_of,
    post_once,
    read_thread,
)
from trainyard.run.identity import ci_facts
from trainyard.run.run_settings import setting

if TYPE_CHECKING:
    from trainyard.report.facts.run_facts import RunFacts
    from trainyard.report.slack.slack_thread import ThreadEvent

_logger = logging.getLogger("trainyard.notify_slack")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the message, send nothing", json="the message")
    parser.add_argument("event", choices=tuple(SLACK_EVENTS), help="the event")
    add_run(parser, required=True, text="the run's directory; need not exist")
    add_option(parser, "--lineage", "NAME", "the run's name; default: its number")
    add_option(parser, "--segment", "K/N", "this segment, and how many there are", default="")
    parser.add_argument("--reason", default="", help="the reason, if it is not on record")
    add_option(parser, "--fix", "TEXT", "what to do next; default: as recorded", default="")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    known = {name: getattr(args, name) for name in ("event", "run_dir", "lineage", "segment", "reason")}
    notify(Notice(**known, next_step=args.fix), dry_run=args.dry_run, as_json=args.json)
    return ExitCode.DONE


@dataclass(frozen=True, kw_only=True)
class Notice:
    """An event of a run to post, and what is known about it beside the records of the run."""

    event: str
    run_dir: Path
    lineage: str | None = None
    """The name of the run; None for its number."""
    segment: str = ""
    """`K/N`: this segment, and how many there are."""
    reason: str = ""
    next_step: str = ""
    needs: Mapping[str, Any] | None = None
    """GitHub's context `needs`, if the results of its jobs decide what is posted."""
    job_status: str = ""
    plan: str = ""
    """What a run is expected to take, as JSON (`report.plan.run_plan_summary`)."""
    thread: str = ""
    """`CHANNEL:TS` of the thread, if another machine started it."""


def notice_of_plan(
    job_plan: Mapping[str, Any],
    event: str,
    run_dir: Path,
    *,
    reason: str = "",
    next_step: str = "",
    plan: str = "",
) -> Notice:
    """Return a notice about the run of a workflow's plan (`RunPlan.job_plan`)."""
    return Notice(
        event=event,
        run_dir=run_dir,
        lineage=str(job_plan["title"]),
        segment=f"{job_plan['segment']}/{job_plan['most_segments']}",
        reason=reason,
        next_step=next_step,
        plan=plan,
        thread=str(job_plan["thread"]),
    )


@dataclass(frozen=True)
class Posted:
    """The result of posting a notice."""

    notice: Notice
    """With the reason and the next step that were found."""
    thread: str
    """The address of the thread."""
    is_done: bool = True
    """False if another job must try again."""


def notify(notice: Notice, *, dry_run: bool = False, as_json: bool = False) -> Posted:
    """Post an event of a run to Slack, or print it; trouble with Slack is a warning."""
    thread_file = notice.run_dir / FILE_NAME
    thread = read_thread(thread_file)
    if notice.thread and not thread.ts:
        channel, _, ts = notice.thread.partition(":")
        if not channel or not ts:
            raise ConfigError(f"--thread {notice.thread}: not CHANNEL:TS, the address of a Slack thread")
        thread = SlackThread(channel, ts)
    if notice.needs is not None:
        ended = add_end(notice, notice.needs)
        if ended is None:
            output.announce("slack", "each job reported its own end: nothing sent")
            set_output("posted", "true")
            return Posted(notice, thread.address)
        notice = ended
    if notice.job_status == "cancelled" and not notice.reason:
        started, limit = (os.environ.get(name, "") for name in ("TRAINYARD_JOB_STARTED", "JOB_MINUTES"))
        notice = replace(notice, reason=cancellation(started, limit, now=time.time()))
    result = PostResult.NOT_CONFIGURED
    try:
        facts = facts_if_any(notice.run_dir)
        event = event_of(SLACK_EVENTS[notice.event], facts, surroundings_of(notice), thread)
        if event is not None and not dry_run:
            result, thread = post(event, facts, thread_file)
    except (TrainyardError, OSError) as error:
        _logger.warning("No message was sent to Slack: %s", error)
        return Posted(notice, thread.address, is_done=False)
    set_output("posted", "true")
    if as_json:
        message = {"text": event.message.text, "blocks": event.message.blocks} if event else {}
        is_sent = result is PostResult.POSTED
        output.print_json({"sent": is_sent, "thread": thread.address, **message})
    elif event is None:
        output.announce("slack", "the run was not degraded: nothing sent")
    elif result is PostResult.NOT_CONFIGURED:
        output.print_text(f"Would be sent to Slack: {event.message.text}")
        if dry_run:
            output.print_text("\n".join(details(event.message.blocks)))
    return Posted(notice, thread.address)


def details(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a message's sections after the first."""
    sections = [block["text"]["text"] for block in blocks if block.get("type") == "section"]
    return [f"  {line}" for section in sections[1:] for line in str(section).splitlines()]


def add_end(notice: Notice, needs: Mapping[str, Any]) -> Notice | None:
    """Return the notice with the reason and the next step of the jobs; None if no message is due."""
    run, attempt = (os.environ.get(name, "") for name in ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"))
    end = unreported_end(needs, run=run, attempt=attempt, records=lambda title: job_record(run, title))
    if end is None:
        return None if notice.event == "failed" else notice
    event = "cancelled" if end.by_person and notice.event == "failed" else notice.event
    return replace(notice, event=event, reason=end.reason, next_step=end.next_step)


def job_record(run: str, title: str) -> dict[str, Any]:
    """Return the job `title` of a workflow run with its annotations; nothing if GitHub does not answer."""
    try:
        api = github_from()
        jobs = api.pages(f"/actions/runs/{run}/jobs", "jobs", filter="latest")
        if job := job_of_call(jobs, title, os.environ.get("RUNNER_NAME", "")):
            return {**job, "annotations": list(api.pages(f"/check-runs/{job['id']}/annotations"))}
    except TrainyardError as error:
        _logger.warning("GitHub's annotations, which name the cause, were not read: %s", error)
    return {}


def cancellation(started: str, limit: str, *, now: float) -> str:
    """Return why the job that runs here was cancelled, judged by how long it has run.

    `started` is the Unix time of its start, `limit` its time limit in minutes; each may be empty.
    """
    most = int(limit) if limit.isdigit() else JOB_MINUTES
    minutes = (now - float(started)) / 60 if started.isdigit() else None
    if minutes is not None and minutes >= most - 1:
        return f"the job reached its time limit of {most} minutes"
    after = "" if minutes is None else f" after {minutes:.0f} minutes"
    return f"somebody cancelled the run{after}, or its runner was shut down"


def surroundings_of(notice: Notice) -> Surroundings:
    known = {name: getattr(notice, name) for name in ("lineage", "segment", "reason", "next_step")}
    known["plan"] = read_plan(notice.plan) if notice.plan else {}
    return Surroundings(notice.run_dir.name, ci_facts(), os.environ.get("RUNNER_NAME"), **known)


def post(
    event: "ThreadEvent", facts: "RunFacts | None", thread_file: Path
) -> "tuple[PostResult, SlackThread]":
    """Send the event, unless the configuration of the run disables it, and announce the result."""
    settings = facts.settings if facts is not None else {}
    if setting(settings, "notifications.slack.enabled") is False:
        if not terminal.on_terminal():  # at a terminal the person has just read the result
            output.announce("slack", PostResult.SWITCHED_OFF)
        return PostResult.SWITCHED_OFF, event.thread
    channel = setting(settings, "notifications.slack.channel")
    named = channel if isinstance(channel, str) else None
    result, thread = post_once(event, slack, thread_file, channel=named)
    if result is PostResult.POSTED:
        set_output("slack_thread", thread.address)
        output.announce("slack", event.message.text, "ok")
    elif result is PostResult.NOT_CONFIGURED and event.kind.begins:
        _logger.debug("slack: %s", result)  # the message at the end of the run reports it
    else:
        output.announce("slack", result)
    return result, thread
