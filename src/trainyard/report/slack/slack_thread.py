"""The one Slack thread of a lineage: where it is, which events were posted, and what a new event adds.

    start    ->  a message in the channel; later events put their own title into it
    between  ->  a reply in its thread
    end      ->  a reply in the thread that is also shown in the channel

It decides what to post and remembers it; `gateways.slack` sends. The memory is a file in the run directory,
so that every attempt on the same machine has it; another machine gets `CHANNEL:TS`. Without threads (a
webhook) the memory still prevents posting the same event twice.
"""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainyard.errors import DamagedFileError, ServiceError
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.troubles import degradation
from trainyard.report.slack.slack_events import RESUMED, STARTED, SlackEvent
from trainyard.report.slack.slack_message import SlackMessage, Surroundings, retitle_thread, slack_message
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.untrusted_files import read_json_object

FILE_NAME = "slack.json"
_REMEMBERED = 500
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlackThread:
    """The known facts about a lineage's thread; empty before its first message."""

    channel: str = ""
    """The channel's ID."""
    ts: str = ""
    """The `ts` of the first message; empty while there is none, and when a webhook posted it."""
    about: str = ""
    """The first message's text after its title."""
    posted: tuple[str, ...] = ()
    """The keys of the events that were posted, oldest first."""

    @property
    def address(self) -> str:
        """`C0123:1732140000.000100`, for another machine; empty when there is no thread."""
        return f"{self.channel}:{self.ts}" if self.channel and self.ts else ""

    def after(self, key: str, *, channel: str = "", ts: str = "", about: str = "") -> "SlackThread":
        """The thread after posting the event `key`; the first message with a `ts` begins the thread."""
        posted = (*self.posted, key)[-_REMEMBERED:]
        if self.ts or not ts:
            return replace(self, posted=posted)
        return SlackThread(channel, ts, about, posted)


def read_thread(path: Path) -> SlackThread:
    """The thread in the file `path`; empty if that is missing or torn, so that a message is still sent."""
    with suppress(FileNotFoundError, DamagedFileError, TypeError):
        value = read_json_object(path)
        texts = {name: str(value.get(name) or "") for name in ("channel", "ts", "about")}
        return SlackThread(**texts, posted=tuple(str(key) for key in value.get("posted") or ()))
    return SlackThread()


@dataclass(frozen=True)
class ThreadEvent:
    """A message to post, and its thread."""

    kind: SlackEvent
    message: SlackMessage
    first: SlackMessage
    """The new text of the thread's first message."""
    thread: SlackThread
    key: str


def event_of(
    event: SlackEvent, facts: RunFacts | None, around: Surroundings, thread: SlackThread
) -> ThreadEvent | None:
    """The event that `event` adds to the thread; None for a degradation without a known reason.

    Another start in a lineage that has started counts as a resumption.
    """
    if event.begins and (thread.ts or thread.posted) and _key(event, "", around.ci) not in thread.posted:
        event = RESUMED
    if event.is_trouble and not (around.reason or degradation(facts)):
        return None
    message = slack_message(event, facts, around)
    about = thread.about or slack_message(STARTED, facts, around).about
    first = retitle_thread(message.title, about, around.name)
    return ThreadEvent(event, message, first, thread, _key(event, message.text, around.ci))


class PostResult(StrEnum):
    """Result of posting an event, in words for the log."""

    POSTED = "posted"
    POSTED_BEFORE = "posted before: nothing sent"
    SWITCHED_OFF = "notifications.slack.enabled is false: nothing sent"
    NOT_CONFIGURED = "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set: nothing sent"


def post_once(
    event: ThreadEvent, messenger: Any, memory: Path, *, channel: str | None = None
) -> tuple[PostResult, SlackThread]:
    """Send `event` unless the thread has it already, and remember it in the file `memory`; return the thread.

    `messenger` is `gateways.slack`. Raises what its `post` raises, and OSError when the file cannot be
    written. If the first message cannot be edited, for example because it was deleted, that is only a
    warning: the event has been posted.
    """
    message, thread = event.message, event.thread
    if event.key in thread.posted:
        return PostResult.POSTED_BEFORE, thread
    posted = messenger.post(
        message.text, message.blocks, channel=channel, thread=thread, broadcast=event.kind.ends
    )
    if posted is None:
        return PostResult.NOT_CONFIGURED, thread
    after = thread.after(event.key, channel=posted.channel, ts=posted.ts, about=message.about)
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(memory, asdict(after))
    if thread.ts:
        try:
            messenger.edit(thread, event.first.text, event.first.blocks)
        except ServiceError as error:
            _logger.warning("The first message of the thread was not updated: %s", error)
    return PostResult.POSTED, after


def _key(event: SlackEvent, text: str, ci: Mapping[str, str]) -> str:
    """A key that is equal for the same event: from the event, the workflow run's attempt and the text.

    The text of a start does not count, so that a lineage starts once.
    """
    words = "" if event.begins else text
    attempt = (ci.get("run_id", ""), ci.get("run_attempt", ""))
    digest = hashlib.sha256("\n".join([*attempt, words]).encode()).hexdigest()
    return f"{event}-{digest[:16]}"
