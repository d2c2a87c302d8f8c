#!/usr/bin/env python3
"""Tell Slack how a run goes, one thread a lineage. It says what is on record, and never fails a run.

With a bot token, `started` opens a thread in the channel; `resumed`, `degraded` and `stopped` answer there;
`succeeded` and `failed` answer there and in the channel; the first message always shows the state of things.
A webhook has no threads: its messages follow each other. The same event is told once. A `started` in a
lineage that has begun is told as `resumed`; `degraded` without a reason or trouble on record, not at all.

Reads:   the run directory, if there is one, and its slack.json (the thread, what was told); SLACK_BOT_TOKEN
         with SLACK_CHANNEL or notifications.slack.channel, or SLACK_WEBHOOK_URL; SLACK_API_URL (another
         server for the token); TRAINYARD_USD_PER_HOUR (what the machine costs); GitHub's variables.
Writes:  a Slack message and slack.json; the output slack_thread (CHANNEL:TS) in GitHub Actions; without
         webhook and token, or with --dry-run, stdout says what would be sent; --json prints the message,
         the thread and whether it was sent.
Exit codes: 0 sent, or not: trouble with Slack is a warning; 2 wrong usage.
Example: scripts/notify_slack.py resumed --run-dir runs/gh-99 --segment 2/3 --reason "runner's time limit"
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import TrainyardError

if TYPE_CHECKING:
    from trainyard.report.facts.run_facts import RunFacts
    from trainyard.report.slack.slack_message import Surroundings
    from trainyard.report.slack.slack_thread import SlackThread, ThreadEvent

_logger = logging.getLogger("trainyard.notify_slack")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    from trainyard.report.slack.slack_events import SLACK_EVENTS

    parser = script_parser(__doc__)
    parser.add_argument("moment", choices=tuple(SLACK_EVENTS), help="what to tell")
    parser.add_argument("--run-dir", type=arguments.path, required=True, help="need not exist yet")
    parser.add_argument("--lineage", metavar="NAME", help="what the run is called; default: its number")
    parser.add_argument("--segment", metavar="K/N", default="", help="which segment of how many")
    parser.add_argument("--reason", default="", help="why, where the record does not say")
    parser.add_argument("--next-step", default="", metavar="TEXT", help="what to do; default: by the record")
    parser.add_argument("--plan", metavar="FILE|JSON", help="what plan_training.py --json printed")
    parser.add_argument("--thread", metavar="CHANNEL:TS", help="the thread that another machine began")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, and send nothing")
    parser.add_argument("--json", action="store_true", help="print the message as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.report.facts.run_facts import facts_if_any
    from trainyard.report.slack.slack_events import SLACK_EVENTS
    from trainyard.report.slack.slack_thread import FILE_NAME, event_of, parse_address, read_thread

    thread = read_thread(args.run_dir / FILE_NAME)
    if args.thread and not thread.ts:
        thread = parse_address(args.thread)
    sent: bool | None = False
    try:
        facts = facts_if_any(args.run_dir)
        event = event_of(SLACK_EVENTS[args.moment], facts, surroundings_of(args), thread)
        if event is not None and not args.dry_run:
            sent, thread = told(event, facts, args.run_dir / FILE_NAME)
    except (TrainyardError, OSError) as error:
        _logger.warning("Slack was not told: %s", error)
        return 0
    if args.json:
        message = {"text": event.message.text, "blocks": event.message.blocks} if event else {}
        print(json.dumps({"sent": bool(sent), "thread": thread.address, **message}, ensure_ascii=False))
    elif event is None:
        output.announce("slack", "no trouble is on record: nothing sent")
    elif sent is False:
        print(f"Slack would be told: {event.message.text}")
    return 0


def surroundings_of(args: argparse.Namespace) -> "Surroundings":
    from trainyard.report.plan.plan_text import read_plan
    from trainyard.report.slack.slack_message import Surroundings
    from trainyard.run.identity import ci_facts

    plan = read_plan(args.plan) if args.plan else {}
    told = {name: getattr(args, name) for name in ("lineage", "segment", "reason", "next_step")}
    return Surroundings(
        args.run_dir.name, ci_facts(), os.environ.get("RUNNER_NAME"), plan=plan, now=time.time(), **told
    )


def told(
    event: "ThreadEvent", facts: "RunFacts | None", thread_file: Path
) -> "tuple[bool | None, SlackThread]":
    """Whether it was sent, and the thread now. None: it is known already, or no messages are wanted."""
    from trainyard.gateways import slack
    from trainyard.gateways.github import set_output
    from trainyard.report.facts.resolved_config import config_value
    from trainyard.report.slack.slack_thread import tell

    text = facts.config_text if facts is not None else None
    if config_value(text, "notifications.slack.enabled") is False:
        if not output.on_terminal():  # a person there has just read the result
            output.announce("slack", "notifications.slack.enabled is false: nothing sent")
        return None, event.thread
    if event.key in event.thread.said:
        output.announce("slack", "told already: nothing sent")
        return None, event.thread
    channel = config_value(text, "notifications.slack.channel")
    thread = tell(event, slack, thread_file, channel=channel if isinstance(channel, str) else None)
    if thread is None:
        output.announce("slack", "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set: nothing sent")
        return False, event.thread
    set_output("slack_thread", thread.address)
    output.announce("slack", event.message.text, "ok")
    return True, thread


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
