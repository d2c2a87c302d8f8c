#!/usr/bin/env python3
"""Tell Slack how a build of an image goes, in one thread. It never fails a build.

With a bot token, `started` opens a thread in the channel; `succeeded` and `failed` answer there and in the
channel, and the first message then shows how it ended. A webhook has no threads: its messages follow each
other.

Reads:   --result, which build_image.py --output wrote; --memory (the thread, what was told); SLACK_BOT_TOKEN
         with SLACK_CHANNEL, or SLACK_WEBHOOK_URL; SLACK_API_URL (another server for the token); GitHub's
         variables
Writes:  a Slack message and --memory; the output slack_thread (CHANNEL:TS) in GitHub Actions; without webhook
         and token, or with --dry-run, stdout says what would be sent; --json prints the message
Exit codes: 0 sent, or not: trouble with Slack is a warning; 2 wrong usage
Example: scripts/notify_image.py started --dockerfile docker/fsdp/Dockerfile --memory slack.json
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import TrainyardError

if TYPE_CHECKING:
    from trainyard.report.slack.image_message import ImageBuild

MOMENTS = ("started", "succeeded", "failed")
_logger = logging.getLogger("trainyard.notify_image")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("moment", choices=MOMENTS, help="what to tell")
    parser.add_argument("--dockerfile", type=arguments.path, required=True, metavar="FILE", help="built")
    parser.add_argument("--image", default="", metavar="NAME", help="default: the folder of the Dockerfile")
    parser.add_argument(
        "--memory", type=arguments.path, required=True, metavar="FILE", help="need not exist yet"
    )
    parser.add_argument("--result", type=arguments.path, metavar="FILE", help="of build_image.py --output")
    parser.add_argument("--reason", default="", help="why it failed")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, and send nothing")
    parser.add_argument("--json", action="store_true", help="print the message as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways import slack
    from trainyard.gateways.github import set_output
    from trainyard.report.slack.image_message import image_event
    from trainyard.report.slack.slack_events import SLACK_EVENTS
    from trainyard.report.slack.slack_thread import read_thread, tell

    thread, sent = read_thread(args.memory), False
    event = image_event(SLACK_EVENTS[args.moment], build_of(args), thread)
    try:
        if event.key in thread.said:
            output.announce("slack", "told already: nothing sent")
            return 0
        if not args.dry_run and (after := tell(event, slack, args.memory)) is not None:
            thread, sent = after, True
            set_output("slack_thread", thread.address)
    except (TrainyardError, OSError) as error:
        _logger.warning("Slack was not told: %s", error)
        return 0
    message = event.message
    if args.json:
        output.print_json(
            {"sent": sent, "thread": thread.address, "text": message.text, "blocks": message.blocks}
        )
    elif sent:
        output.announce("slack", message.text, "ok")
    else:
        print(f"Slack would be told: {message.text}")
    return 0


def build_of(args: argparse.Namespace) -> "ImageBuild":
    """What is known; a result that cannot be read is left out, for the message matters more."""
    from trainyard.report.slack.image_message import ImageBuild
    from trainyard.run.identity import ci_facts
    from trainyard.run.untrusted_files import read_json_object

    results = []
    if args.result:
        try:
            found = read_json_object(args.result).get("builds")
            results = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        except (TrainyardError, OSError) as error:
            _logger.warning("%s was left out: %s", args.result, error)
    name = args.image or args.dockerfile.parent.name or str(args.dockerfile)
    return ImageBuild(name, str(args.dockerfile), ci_facts(), results, args.reason)


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
