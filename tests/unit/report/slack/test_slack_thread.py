"""The thread of a lineage: where it is, which events were posted, and where each event goes."""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ServiceError
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.slack.slack_events import (
    DEGRADED,
    FAILED,
    RESUMED,
    SLACK_EVENTS,
    STARTED,
    STOPPED,
    SUCCEEDED,
    SlackEvent,
)
from trainyard.report.slack.slack_message import Surroundings, slack_message
from trainyard.report.slack.slack_thread import (
    PostResult,
    SlackThread,
    ThreadEvent,
    event_of,
    post_once,
    read_thread,
)

CI = {"run_id": "99", "run_attempt": "1", "run_number": "812"}


@dataclass
class Messenger:
    """Records what is sent; behaves like a bot token with `threads`, otherwise like a webhook."""

    threads: bool = True
    refuses_edits: bool = False
    is_configured: bool = True
    sent: list[tuple[str, str, bool]] = field(default_factory=list)
    """Per message: the text, the `ts` of the thread it replies to, and whether the channel shows it."""
    edited: list[str] = field(default_factory=list)

    def post(
        self,
        text: str,
        blocks: Sequence[Mapping[str, Any]],
        *,
        channel: str | None = None,
        thread: Any = None,
        broadcast: bool = False,
    ) -> SlackThread | None:
        if not self.is_configured:
            return None
        self.sent.append((text, thread.ts if self.threads else "", broadcast))
        return SlackThread("C1", f"1.{len(self.sent)}") if self.threads else SlackThread()

    def edit(self, message: Any, text: str, blocks: Sequence[Mapping[str, Any]]) -> bool:
        if self.refuses_edits:
            raise ServiceError("Slack refused the message for C1: message_not_found")
        self.edited.append(f"{message.ts} {text}")
        return True


def event(moment: SlackEvent, thread: SlackThread, **around: Any) -> ThreadEvent:
    found = event_of(moment, None, Surroundings("gh-99", **{"ci": CI, **around}), thread)
    assert found is not None
    return found


def test_any_first_message_begins_the_thread(tmp_path: Path) -> None:
    messenger, memory = Messenger(), tmp_path / "runs" / "gh-99" / "slack.json"
    _, first = post_once(event(FAILED, SlackThread()), messenger, memory)
    assert first.address == "C1:1.1"
    assert read_thread(memory) == first
    _, second = post_once(event(SUCCEEDED, first), messenger, memory)
    assert second.address == "C1:1.1"
    assert [answered for _, answered, _ in messenger.sent] == ["", "1.1"]
    assert len(messenger.edited) == 1
    assert messenger.edited[0].startswith("1.1 ")


def test_posted_events_are_remembered_even_if_the_first_message_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thread, memory = SlackThread("C1", "1.1"), tmp_path / "slack.json"
    told = event(STOPPED, thread)
    result, after = post_once(told, Messenger(refuses_edits=True), memory)
    assert result is PostResult.POSTED
    assert (after.address, told.key in after.posted) == ("C1:1.1", True)
    assert read_thread(memory) == after
    assert "message_not_found" in caplog.text


def test_the_same_event_is_posted_once(tmp_path: Path) -> None:
    messenger, memory = Messenger(), tmp_path / "slack.json"
    result, thread = post_once(event(STOPPED, SlackThread()), messenger, memory)
    assert (result, thread.address) == (PostResult.POSTED, "C1:1.1")
    again = post_once(event(STOPPED, read_thread(memory)), messenger, memory)
    assert again == (PostResult.POSTED_BEFORE, thread)
    assert len(messenger.sent) == 1


def test_nothing_is_remembered_while_slack_is_not_configured(tmp_path: Path) -> None:
    memory = tmp_path / "slack.json"
    posted = post_once(event(STOPPED, SlackThread()), Messenger(is_configured=False), memory)
    assert posted == (PostResult.NOT_CONFIGURED, SlackThread())
    assert not memory.exists()


def test_a_webhook_leaves_no_address_but_a_memory(tmp_path: Path) -> None:
    messenger, memory = Messenger(threads=False), tmp_path / "slack.json"
    _, thread = post_once(event(STARTED, SlackThread()), messenger, memory)
    assert (thread.address, bool(thread.posted), messenger.edited) == ("", True, [])
    assert event(STARTED, thread).key in thread.posted
    assert event(STARTED, thread, ci=CI | {"run_attempt": "2"}).kind is RESUMED


def test_events_differ_by_moment_attempt_and_text() -> None:
    thread = SlackThread()
    events = [
        event(RESUMED, thread),
        event(STOPPED, thread),
        event(RESUMED, thread, segment="2/3"),
        event(RESUMED, thread, ci=CI | {"run_attempt": "2"}),
        event(RESUMED, thread, ci=CI | {"run_id": "100"}),
    ]
    assert len({each.key for each in events}) == len(events)
    planned = {"estimate": {"seconds": 60.0}}
    assert event(STARTED, thread).key == event(STARTED, thread, plan=planned).key


def test_a_degradation_without_a_reason_is_no_event() -> None:
    assert event_of(DEGRADED, None, Surroundings("r"), SlackThread()) is None
    assert event(DEGRADED, SlackThread(), reason="TCP fallback").message.text.endswith("TCP fallback")


def test_the_memory_of_posted_events_is_bounded() -> None:
    thread = SlackThread()
    for number in range(600):
        thread = thread.after(str(number))
    assert (len(thread.posted), thread.posted[-1]) == (500, "599")


AROUND = Surroundings("gh-99", reason="the queue is full")


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> SlackEvent:
    event = SlackEvent("paused", explains=True)
    monkeypatch.setitem(SLACK_EVENTS, event.name, event)
    return event


def test_a_registered_event_has_a_message_and_a_place(paused: SlackEvent, new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train(100).path)
    message = slack_message(paused, facts, AROUND)
    assert "paused at step 100 of 600 (the queue is full)" in message.text
    assert "the queue is full" in json.dumps(message.blocks[1:]), "the reason and what to do next"
    posted = event_of(paused, facts, AROUND, SlackThread("C1", "1.0", posted=("started-1",)))
    assert posted is not None
    assert posted.key.startswith("paused-")
    assert posted.first.title == message.title


@pytest.mark.usefixtures("paused")
def test_the_script_takes_a_registered_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL"):
        monkeypatch.delenv(name, raising=False)
    script = importlib.import_module("trainyard.commands.notify")
    assert script.main(["paused", "--run-dir", str(tmp_path / "none"), "--dry-run", "--json"]) == 0
    assert "paused" in json.loads(capsys.readouterr().out)["text"]


def test_each_event_is_listed_under_its_own_name() -> None:
    assert {name: event.name for name, event in SLACK_EVENTS.items()} == {name: name for name in SLACK_EVENTS}
    assert [event.name for event in SLACK_EVENTS.values() if event.begins] == ["started"]
    assert all(event.explains for event in SLACK_EVENTS.values() if event.ends)
