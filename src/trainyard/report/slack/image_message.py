"""Slack messages about a build of an image, in one thread per workflow run. It sends nothing.

started            a message in the channel, which later shows how it ended
succeeded, failed  a reply in the thread that is also shown in the channel
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.report.facts.quantities import format_duration
from trainyard.report.slack import slack_events
from trainyard.report.slack.slack_events import SlackEvent
from trainyard.report.slack.slack_message import SlackMessage, mrkdwn, retitle_thread, source_of, text_block
from trainyard.report.slack.slack_thread import SlackThread, ThreadEvent
from trainyard.run.identity import run_address


@dataclass(frozen=True)
class ImageBuild:
    """The known facts about a build."""

    name: str
    """The name of the image."""
    dockerfile: str
    ci: Mapping[str, str] = field(default_factory=dict)
    """The result of `identity.ci_facts`."""
    results: Sequence[Mapping[str, Any]] = ()
    """The result of each image, from `trainyard image build`; empty until it is done."""
    reason: str = ""
    """Why it failed."""


def image_event(event: SlackEvent, build: ImageBuild, thread: SlackThread) -> ThreadEvent:
    """The event that `event` (started, succeeded, failed) adds to the thread."""
    message = image_message(event, build)
    about = thread.about or image_message(slack_events.STARTED, build).about
    first = retitle_thread(message.title, about, build.dockerfile)
    run = (build.ci.get("run_id", ""), build.ci.get("run_attempt", ""))
    return ThreadEvent(event, message, first, thread, "-".join((event.name, *run)))


def image_message(event: SlackEvent, build: ImageBuild) -> SlackMessage:
    """The message on its own."""
    title = _title(event, build)
    if event is slack_events.STARTED:
        parts = [*source_of(build.ci), *_link(build.ci)]
    else:
        parts = [*_outcome(event, build), *_link(build.ci)]
    blocks = [text_block(" · ".join([title, *parts]))]
    lines = [_line(one) for one in build.results] if event is slack_events.SUCCEEDED else []
    blocks += [text_block("\n".join(lines))] if lines else []
    name = mrkdwn(build.dockerfile, 300)
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": name}]})
    text = " · ".join([title, *(part for part in parts if not part.startswith("<"))])
    about = " · ".join(parts) if event.begins else ""
    return SlackMessage(re.sub(r"[*`]", "", text), blocks, title, about)


def _title(event: SlackEvent, build: ImageBuild) -> str:
    name = mrkdwn(build.name, 200)
    if event is slack_events.STARTED:
        return f"*Image {name}: build started*"
    if event is slack_events.FAILED:
        return f"❌ *Image {name} was not built*"
    if not build.results:
        return f"⚠ *Image {name}: the build succeeded, but left no result*"
    if not any(one.get("built") for one in build.results):
        return f"✅ *Image {name}: nothing to build, this content is in the registry*"
    return f"✅ *Image {name} built, checked and pushed*"


def _outcome(event: SlackEvent, build: ImageBuild) -> list[str]:
    if event is slack_events.FAILED:
        return [mrkdwn(build.reason, 900)] if build.reason else []
    attempts = max((int(one.get("attempts") or 1) for one in build.results), default=1)
    seconds = [float(one["seconds"]) for one in build.results if one.get("built") and one.get("seconds")]
    parts = [format_duration(max(seconds))] if seconds else []
    return [*parts, f"attempt {attempts}"] if attempts > 1 else parts


def _line(one: Mapping[str, Any]) -> str:
    """`123456789012.dkr…/fsdp@sha256:…`, which a job can be given."""
    log = str(one.get("log") or "")
    link = f" · <{log}|log>" if log.startswith("https://") else ""
    return f"`{mrkdwn(str(one.get('uri', '')).replace('`', chr(39)), 500)}`{link}"


def _link(ci: Mapping[str, str]) -> list[str]:
    address = run_address(ci)
    return [f"<{address}|run>"] if address else []
