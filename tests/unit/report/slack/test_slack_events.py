"""An event that is registered by one line has a message, a place in the thread and a word in the script."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.report.facts.run_facts import read_facts
from trainyard.report.slack.slack_events import SLACK_EVENTS, SlackEvent
from trainyard.report.slack.slack_message import Surroundings, slack_message
from trainyard.report.slack.slack_thread import SlackThread, event_of

AROUND = Surroundings("gh-99", reason="the queue is full")


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> SlackEvent:
    event = SlackEvent("paused", explains=True)
    monkeypatch.setitem(SLACK_EVENTS, event.name, event)
    return event


def test_a_registered_event_has_a_message_and_a_place_in_the_thread(
    paused: SlackEvent, new_run: Callable[[], Any]
) -> None:
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
