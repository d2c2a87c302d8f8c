"""Post the state of an image build to Slack, in one thread. A failure of Slack never fails a build.

With a bot token, `started` opens a thread in the channel. `succeeded` and `failed` reply in it and in the
channel, and the first message then shows how the build ended. A webhook has no threads, so its messages
are separate. `ended` is one of the two, as --status and --steps of the workflow's job show.

Reads:   --result, written by trainyard image build --output; --memory (the thread and the posted events);
         SLACK_BOT_TOKEN with SLACK_CHANNEL, or SLACK_WEBHOOK_URL; SLACK_API_URL (another server for the
         token); GitHub's variables
Writes:  a Slack message and --memory; in GitHub Actions the output slack_thread (CHANNEL:TS). Without webhook
         and token, or with --dry-run, the message is printed on stdout. --json prints the message.
Exit codes: 0 sent or not, because trouble with Slack is a warning; 2 wrong usage
Example: trainyard step notify-image started --dockerfile docker/fsdp/Dockerfile --memory slack.json
"""

import argparse
import logging
from collections.abc import Sequence

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import TrainyardError
from trainyard.gateways import slack
from trainyard.gateways.github import set_output
from trainyard.report.slack.image_message import ImageBuild, image_event
from trainyard.report.slack.slack_events import SLACK_EVENTS
from trainyard.report.slack.slack_thread import PostResult, post_once, read_thread
from trainyard.run.identity import ci_facts
from trainyard.run.untrusted_files import parse_json_object, read_json_object

EVENTS = ("started", "succeeded", "failed", "ended")
_logger = logging.getLogger("trainyard.notify_image")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("event", choices=EVENTS, help="the event")
    parser.add_argument(
        "--dockerfile", type=arguments.path, required=True, metavar="FILE", help="Dockerfile of the image"
    )
    parser.add_argument("--image", default="", metavar="NAME", help="default: the folder of the Dockerfile")
    parser.add_argument(
        "--memory", type=arguments.path, required=True, metavar="FILE", help="thread and posted events"
    )
    parser.add_argument(
        "--result", type=arguments.path, metavar="FILE", help="result of trainyard image build --output"
    )
    parser.add_argument("--reason", default="", help="why it failed")
    steps = "with ended: GitHub's context `steps`, whose results show why it failed"
    parser.add_argument("--steps", default="{}", metavar="JSON", help=steps)
    parser.add_argument(
        "--status", default="failure", metavar="STATUS", help="with ended: GitHub's job.status"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the message, send nothing")
    parser.add_argument("--json", action="store_true", help="print the message as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    if args.event == "ended":
        args.event, args.reason = end_of(args.steps, args.status)
    thread, result = read_thread(args.memory), PostResult.NOT_CONFIGURED
    event = image_event(SLACK_EVENTS[args.event], build_of(args), thread)
    try:
        if not args.dry_run:
            result, thread = post_once(event, slack, args.memory)
    except (TrainyardError, OSError) as error:
        _logger.warning("No message was sent to Slack: %s", error)
        return 0
    message, sent = event.message, result is PostResult.POSTED
    if sent:
        set_output("slack_thread", thread.address)
    if args.json:
        output.print_json(
            {"sent": sent, "thread": thread.address, "text": message.text, "blocks": message.blocks}
        )
    elif sent:
        output.announce("slack", message.text, "ok")
    elif result is PostResult.POSTED_BEFORE:
        output.announce("slack", result)
    else:
        print(f"Would be sent to Slack: {message.text}")
    return 0


def end_of(steps: str, status: str) -> tuple[str, str]:
    """Return the event at the end of a job, and why it failed, from GitHub's `steps` and `job.status`."""
    if status == "success":
        return "succeeded", ""
    if status == "cancelled":
        return "failed", "somebody cancelled it, or the job reached its time limit"
    found = parse_json_object(steps, "--steps")
    failed = next((name for name, step in found.items() if step.get("outcome") == "failure"), "")
    if failed == "lint":
        return "failed", "trainyard image lint found faults"
    if failed == "build":
        reason = (found[failed].get("outputs") or {}).get("reason")
        return "failed", str(reason or "trainyard image build failed; see its log")
    return "failed", "a step before the build failed"


def build_of(args: argparse.Namespace) -> ImageBuild:
    """Return the facts about the build; a result that cannot be read is ignored with a warning."""
    results = []
    if args.result:
        try:
            found = read_json_object(args.result).get("builds")
            results = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        except (TrainyardError, OSError) as error:
            _logger.warning("%s was ignored: %s", args.result, error)
    name = args.image or args.dockerfile.parent.name or str(args.dockerfile)
    return ImageBuild(name, str(args.dockerfile), ci_facts(), results, args.reason)
