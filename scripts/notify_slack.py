#!/usr/bin/env python3
"""Tell Slack that a run started, succeeded or failed. It says what is on record, and never fails a run.

Reads:   the run directory, if there is one; SLACK_WEBHOOK_URL, or SLACK_BOT_TOKEN with SLACK_CHANNEL or
         notifications.slack.channel; SLACK_API_URL (another server for the token); GitHub's variables.
Writes:  one Slack message; without webhook and token, or with --dry-run, stdout says what would be sent;
         --json prints the message and whether it was sent.
Exit codes: 0 sent, or not: trouble with Slack is a warning; 2 wrong usage.
Example: scripts/notify_slack.py succeeded --run-dir runs/20261120-214501-7c1f
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard import command
from trainyard.errors import ConfigError, TrainyardError

if TYPE_CHECKING:
    from trainyard.report.facts import RunFacts
    from trainyard.report.slack_message import SlackMessage

_logger = logging.getLogger("trainyard.notify_slack")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(__doc__)
    parser.add_argument("moment", choices=("started", "succeeded", "failed"), help="what to tell")
    parser.add_argument("--run-dir", type=Path, required=True, help="need not exist yet")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, and send nothing")
    parser.add_argument("--json", action="store_true", help="print the message as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    command.configure_logging(args.log_level)
    try:
        facts = facts_of(args.run_dir)
        message = message_for(args.moment, facts, args.run_dir)
        sent = False if args.dry_run else send(message, facts)
    except (TrainyardError, OSError) as error:
        _logger.warning("Slack was not told: %s", error)
        return 0
    if args.json:
        print(
            json.dumps(
                {"sent": bool(sent), "text": message.text, "blocks": message.blocks}, ensure_ascii=False
            )
        )
    elif sent is False:
        print(f"Slack would be told: {message.text}")
    return 0


def facts_of(run_dir: Path) -> "RunFacts | None":
    """None while there is no run directory: what came before it can start and fail, too."""
    from trainyard.report.facts import read_facts

    try:
        return read_facts(run_dir)
    except ConfigError:
        return None


def message_for(moment: str, facts: "RunFacts | None", run_dir: Path) -> "SlackMessage":
    from trainyard.report.slack_message import Moment, Surroundings, slack_message
    from trainyard.run.identity import ci_facts

    around = Surroundings(run_dir.name, ci_facts(), os.environ.get("RUNNER_NAME"))
    return slack_message(Moment(moment), facts, around)


def send(message: "SlackMessage", facts: "RunFacts | None") -> bool | None:
    """True: sent; False: there is neither webhook nor token; None: the configuration wants no messages."""
    from trainyard.report.resolved_config import config_value

    text = facts.config_text if facts is not None else None
    if config_value(text, "notifications.slack.enabled") is False:
        if not command.on_terminal():  # a person there has just read the result
            command.announce("slack", "notifications.slack.enabled is false: nothing sent")
        return None

    from trainyard.gateways.slack import post

    channel = config_value(text, "notifications.slack.channel")
    if not post(message.text, message.blocks, channel=channel if isinstance(channel, str) else None):
        command.announce("slack", "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set: nothing sent")
        return False
    command.announce("slack", message.text, "ok")
    return True


if __name__ == "__main__":
    sys.exit(command.exit_code_of(main))
