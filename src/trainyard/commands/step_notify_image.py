"""Post the end of an image build to Slack, in one message. A failure of Slack never fails a build.

Reads:   GitHub's contexts in --steps, whose step `build` is trainyard image build, and --status;
         SLACK_BOT_TOKEN with SLACK_CHANNEL, or SLACK_WEBHOOK_URL; SLACK_API_URL (another server for the
         token); GitHub's variables
Writes:  a Slack message. Without webhook and token, or with --dry-run, the message is printed on stdout
Exit codes: 0 sent or not, because trouble with Slack is a warning; 2 wrong usage
Example: trainyard step notify-image --dockerfile docker/fsdp/Dockerfile --status success --steps "$STEPS"
"""

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ExitCode, TrainyardError
from trainyard.gateways import slack
from trainyard.report.slack.slack_message import mrkdwn, source_of, text_block
from trainyard.run.identity import ci_facts, run_address
from trainyard.run.untrusted_files import parse_json_object

_logger = logging.getLogger("trainyard.notify_image")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the message, send nothing")
    add_option(parser, "--dockerfile", "FILE", "Dockerfile of the image", type=arguments.path, required=True)
    add_option(parser, "--image", "NAME", "default: the folder of the Dockerfile", default="")
    steps = "GitHub's context `steps`, whose results show the image, or why it failed"
    add_option(parser, "--steps", "JSON", steps, default="{}")
    add_option(parser, "--status", "STATUS", "GitHub's job.status", required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    name = mrkdwn(args.image or args.dockerfile.parent.name or str(args.dockerfile), 200)
    steps = parse_json_object(args.steps, "--steps")
    if args.status == "success":
        built = (steps.get("build") or {}).get("outputs") or {}
        lines = [f"`{mrkdwn(str(built.get('image', '')).replace('`', chr(39)), 500)}`"]
        title = f"✅ *Image {name} built, checked and pushed*"
        if built.get("built") == "false":
            title = f"✅ *Image {name}: nothing to build, this content is in the registry*"
    else:
        reason = mrkdwn(reason_of(steps, args.status), 900)
        title, lines = f"❌ *Image {name} was not built* · {reason}", []
    address = run_address(ci_facts())
    parts = [title, *source_of(ci_facts()), *([f"<{address}|run>"] if address else [])]
    text = "\n".join([" · ".join(parts), *lines])
    try:
        is_sent = not args.dry_run and slack.post(title.replace("*", ""), [text_block(text)]) is not None
    except TrainyardError as error:
        _logger.warning("No message was sent to Slack: %s", error)
        return ExitCode.DONE
    if not is_sent:
        output.print_text(f"Would be sent to Slack: {text}")
    return ExitCode.DONE


def reason_of(steps: Mapping[str, Any], status: str) -> str:
    """Return why a job failed, from GitHub's `steps` and `job.status`."""
    if status == "cancelled":
        return "somebody cancelled it, or the job reached its time limit"
    failed = next((name for name, step in steps.items() if step.get("outcome") == "failure"), "")
    reason = (steps.get(failed, {}).get("outputs") or {}).get("reason")
    return str(reason or f"the step {failed or 'that sets the job up'} failed; see its log")
