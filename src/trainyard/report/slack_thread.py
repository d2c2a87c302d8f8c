"""The one Slack thread of a lineage: where it is, what was said there, and what an event adds to it.

    started  ->  a message in the channel, which later events change to their own title
    between  ->  an answer in its thread
    the end  ->  an answer in the thread, shown in the channel too

It decides and remembers; it sends nothing. The memory is a file in the run directory, so that every attempt
on the same machine has it; another machine is told `CHANNEL:TS`. Without threads (a webhook) it still keeps
the same event from being told twice.
"""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from trainyard.errors import ConfigError, DamagedFileError, ServiceError
from trainyard.report.facts import RunFacts
from trainyard.report.slack_message import (
    Moment,
    SlackMessage,
    Surroundings,
    retitled,
    slack_message,
)
from trainyard.report.troubles import degradation
from trainyard.run.files import write_json_atomically
from trainyard.run.outside import read_json_object

FILE_NAME = "slack.json"
_ADDRESS = re.compile(r"([A-Z0-9]{2,40}):(\d{1,20}\.\d{1,20})")
_REMEMBERED = 500
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlackThread:
    """What is known of a lineage's thread; empty before its first message."""

    channel: str = ""
    """The channel's ID."""
    ts: str = ""
    """Of the first message; empty while there is none, and when a webhook posted it."""
    about: str = ""
    """What the first message says behind its title."""
    said: tuple[str, ...] = ()
    """The keys of the events that were told, oldest first."""

    @property
    def address(self) -> str:
        """`C0123:1732140000.000100`, for another machine; empty when there is no thread."""
        return f"{self.channel}:{self.ts}" if self.channel and self.ts else ""

    @property
    def begun(self) -> bool:
        return bool(self.ts or self.said)

    def after(self, key: str, *, channel: str = "", ts: str = "", about: str = "") -> "SlackThread":
        """The thread once the event `key` was told; the first message that has a `ts` begins it."""
        said = (*self.said, key)[-_REMEMBERED:]
        if self.ts or not ts:
            return replace(self, said=said)
        return SlackThread(channel, ts, about, said)


def parse_address(text: str) -> SlackThread:
    """The thread at `CHANNEL:TS`. Raises ConfigError when the text is none."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--thread: {text[:80]!r} is no thread. It is the channel's ID and the first message's ts, "
            "such as C0123ABCD:1732140000.000100, as the output slack_thread says."
        )
    return SlackThread(match[1], match[2])


def read_thread(path: Path) -> SlackThread:
    """What `path` remembers; an empty thread when it is missing or torn, for a message must come about."""
    with suppress(FileNotFoundError, DamagedFileError, TypeError):
        value = read_json_object(path)
        texts = {name: str(value.get(name) or "") for name in ("channel", "ts", "about")}
        return SlackThread(**texts, said=tuple(str(key) for key in value.get("said") or ()))
    return SlackThread()


def write_thread(path: Path, thread: SlackThread) -> None:
    """Remember `thread`. Raises OSError when the file cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(path, asdict(thread))


@dataclass(frozen=True)
class Event:
    """What is to be told, and where."""

    moment: Moment
    message: SlackMessage
    first: SlackMessage
    """The thread's first message as it reads from now on."""
    thread: SlackThread
    key: str


class Messenger(Protocol):
    """What sends: `gateways.slack`."""

    def post(
        self,
        text: str,
        blocks: Sequence[Mapping[str, Any]],
        *,
        channel: str | None = None,
        thread: "Place | None" = None,
        broadcast: bool = False,
    ) -> "Place | None":
        """Send a message, as an answer where the thread has a `ts`; None without anything to send by."""

    def edit(self, message: "Place", text: str, blocks: Sequence[Mapping[str, Any]]) -> bool:
        """Change a message."""


class Place(Protocol):
    """Where a message is."""

    @property
    def channel(self) -> str: ...

    @property
    def ts(self) -> str: ...


def event_of(
    moment: Moment, facts: RunFacts | None, around: Surroundings, thread: SlackThread
) -> Event | None:
    """What `moment` adds to the thread; None for a degradation that nobody names and nothing has on record.

    In a lineage that has begun a further start is a resumption.
    """
    if moment is Moment.STARTED and thread.begun and _key(moment, "", around.ci) not in thread.said:
        moment = Moment.RESUMED
    if moment is Moment.DEGRADED and not (around.reason or degradation(facts)):
        return None
    message = slack_message(moment, facts, around)
    about = thread.about or slack_message(Moment.STARTED, facts, around).about
    first = retitled(message.title, about, around.name)
    return Event(moment, message, first, thread, _key(moment, message.text, around.ci))


def tell(
    event: Event, messenger: Messenger, memory: Path, *, channel: str | None = None
) -> SlackThread | None:
    """Send `event` and remember it in the file `memory`; the thread now, None when nothing can be sent by.

    Raises what `messenger.post` raises, and OSError when the file cannot be written. A first message that
    cannot be changed, because it was removed, is a warning: what was to be told has been.
    """
    message, thread = event.message, event.thread
    how: dict[str, Any] = {"channel": channel, "thread": thread, "broadcast": event.moment.ends}
    posted = messenger.post(message.text, message.blocks, **how)
    if posted is None:
        return None
    after = thread.after(event.key, channel=posted.channel, ts=posted.ts, about=message.about)
    write_thread(memory, after)
    if thread.ts:
        try:
            messenger.edit(thread, event.first.text, event.first.blocks)
        except ServiceError as error:
            _logger.warning("The first message of the thread stays as it was: %s", error)
    return after


def _key(moment: Moment, text: str, ci: Mapping[str, str]) -> str:
    """What is equal for the same event told twice: the moment, the attempt of the workflow run, the words.

    A start is one whatever it expects.
    """
    words = "" if moment is Moment.STARTED else text
    attempt = (ci.get("run_id", ""), ci.get("run_attempt", ""))
    digest = hashlib.sha256("\n".join([*attempt, words]).encode()).hexdigest()
    return f"{moment}-{digest[:16]}"
