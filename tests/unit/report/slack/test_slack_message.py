"""Slack messages and threads: they follow the run's record, are escaped, and keep Slack's limits."""

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ServiceError
from trainyard.report.facts.run_facts import RunFacts, read_facts
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
from trainyard.report.slack.slack_message import SlackMessage, Surroundings, mrkdwn, slack_message
from trainyard.report.slack.slack_thread import (
    PostResult,
    SlackThread,
    ThreadEvent,
    event_of,
    post_once,
    read_thread,
)
from trainyard.run.records import append_event

NewRun = Callable[[], Any]
CI = {"server": "https://github.com", "repository": "me/lab", "run_id": "99", "run_number": "812"}
CI |= {"event": "push", "ref": "refs/heads/main", "sha": "3f2c1ab" + "0" * 33}
AROUND = Surroundings("gh-99", CI, "gpu-runner")
REPORT = "<https://github.com/me/lab/actions/runs/99|run and report>"
LINK = "<https://github.com/me/lab/actions/runs/99|run>"


def full_text(message: SlackMessage) -> str:
    """All text of the blocks, checked against Slack's limits on the way."""
    assert 1 <= len(message.blocks) <= 50
    texts = []
    for block in message.blocks:
        for item in [block["text"]] if "text" in block else block["elements"]:
            assert item["type"] == "mrkdwn"
            assert 1 <= len(item["text"]) <= 3000
            texts.append(item["text"])
    assert 1 <= len(message.text) <= 3000
    json.dumps(message.blocks)
    return "\n".join(texts)


def facts(run: Any) -> RunFacts:
    return read_facts(run.path)


def test_started_before_there_is_a_run_directory() -> None:
    message = slack_message(STARTED, None, AROUND)
    assert (
        full_text(message)
        == f"*Training 812 started* · `main@3f2c1ab` by push · on gpu-runner · {LINK}\ngh-99"
    )
    assert message.text == "Training 812 started · main@3f2c1ab by push · on gpu-runner"


def test_degraded_lists_the_newest_trouble_of_each_kind_in_this_segment(new_run: NewRun) -> None:
    run = new_run().train(100)
    events = run.layout.events_file
    append_event(events, "checkpoint_failed", step=10, reason="of the segment before")
    append_event(events, "resumed", step=100)
    append_event(events, "network_degraded", step=101, ranks=[0, 8], reason="TCP between machines")
    for step, reason in ((120, "an older one"), (140, "no space left")):
        append_event(events, "checkpoint_failed", step=step, reason=reason)
    text = slack_message(DEGRADED, facts(run), AROUND).text
    assert text == (
        "⚠ Training 812 degraded at step 100 of 600: "
        "checkpoint not saved, step 140: no space left; network: TCP between machines"
    )


def test_started_names_who_what_and_where_by_the_record_or_else_by_the_plan(new_run: NewRun) -> None:
    run = facts(new_run())
    text = full_text(slack_message(STARTED, run, AROUND))
    assert "`main@0123456` by push · smoke-llama, 600 steps on gpu-runner" in text, "the recorded commit"
    on_a_laptop = full_text(slack_message(STARTED, run, Surroundings("r")))
    assert "`main@0123456`" in on_a_laptop and "|run>" not in on_a_laptop
    around = dataclasses.replace(AROUND, ci=CI | {"actor": "anna"}, plan={"model": "tiny", "steps": 8})
    message = slack_message(STARTED, None, around)
    assert message.text == "Training 812 started · main@3f2c1ab by anna (push) · tiny, 8 steps on gpu-runner"
    daily = dataclasses.replace(around, ci={**around.ci, "event": "schedule"})
    assert "by schedule ·" in slack_message(STARTED, None, daily).text


def test_a_proven_run(new_run: NewRun) -> None:
    message = slack_message(SUCCEEDED, facts(new_run().train().succeed().prove()), AROUND)
    assert message.text == (
        "✅ Training 812 proven · loss 5.52 → 1.01, 1.71 bits/byte · 600 steps in 1:48 · on cpu"
    )
    text = full_text(message)
    assert "✅ stored: 6 of 6 objects" in text
    assert REPORT in text
    assert "Next" not in text


def test_an_unproven_run_never_reads_as_proven(new_run: NewRun) -> None:
    run = new_run().train().succeed()
    message = slack_message(SUCCEEDED, facts(run), AROUND)
    assert message.text.startswith("⚠ Training 812: trained, not proven yet")
    assert "Next: `trainyard prove --run-dir runs/" in full_text(message)
    run.prove(failing="stored")
    for moment in (SUCCEEDED, FAILED):
        message = slack_message(moment, facts(run), AROUND)
        assert message.text.startswith("❌ Training 812: not proven: stored · loss 5.52")
        text = full_text(message)
        assert "❌ stored: 5 of 6 objects verified" in text
        assert "Next: `trainyard store sync" in text


def test_a_failed_run_gives_reason_and_command(new_run: NewRun) -> None:
    run = new_run().train(120).end("failed", 1, "Step 121: loss nan is not finite in batch 120")
    message = slack_message(FAILED, facts(run), AROUND)
    assert message.text.startswith("❌ Training 812: failed in step 121 of 600")
    text = full_text(message)
    assert "loss nan is not finite in batch 120" in text
    assert "Step 121" not in text
    assert "--resume auto`" in text


def test_a_failed_run_shows_the_lines_around_the_root_error(new_run: NewRun) -> None:
    root, lines = "CUDA error: misaligned address", [f"line {number} <`>" for number in range(9)]
    failure = {"class": "other", "error": root}
    run = new_run().train(120).end("failed", 1, "exit code 1", failure=failure)
    log = run.layout.logs / "node-0.log"
    for place in range(10):
        log.write_text("\n".join([*lines[:place], "", f"E: {root}", *lines[place:]]))
        *_, shown, _ = slack_message(FAILED, facts(run), AROUND).blocks
        around = [*lines[max(0, place - 3) : place], f"E: {root}", *lines[place : place + 2]]
        escaped = "\n".join(around).replace("<`>", "&lt;'&gt;")
        assert shown["text"]["text"] == f"```{escaped}```", place
    log.unlink()
    assert "```" not in full_text(slack_message(FAILED, facts(run), AROUND))


def test_failed_before_there_is_a_run_directory() -> None:
    message = slack_message(FAILED, None, AROUND)
    assert message.text == "❌ Training 812 failed, without a run directory"
    told = dataclasses.replace(AROUND, reason="nothing follows: the store does not hold it")
    message = slack_message(FAILED, None, told)
    assert message.text == "❌ Training 812 failed · nothing follows: the store does not hold it"


def test_a_step_that_fails_after_the_proof_leaves_the_run_proven(new_run: NewRun) -> None:
    message = slack_message(FAILED, facts(new_run().train().succeed().prove()), AROUND)
    assert message.text.startswith("⚠ Training 812 is proven, but a later step failed")


def test_a_run_cut_off_by_the_time_limit_reads_as_failed(new_run: NewRun) -> None:
    run = new_run().train(120).end("stopped", 75, "Stopped at step 120 of 600: deadline. x is whole.")
    message = slack_message(FAILED, facts(run), AROUND)
    assert message.text.startswith("❌ Training 812 failed: stopped at step 120 of 600")


def test_hostile_text_is_escaped_and_cut(new_run: NewRun) -> None:
    hostile = "<!channel> & <https://evil|click> " + "&" * 9000
    run = new_run().train(12).end("failed", 1, hostile)
    run.layout.config_file.write_text(f'model: {{name: "{"<" * 4000}"}}\n')
    around = Surroundings(
        "<" * 5000, CI | {"ref": "refs/heads/a`<b>", "event": "<!here>", "run_number": "&" * 4000}
    )
    for moment in SLACK_EVENTS.values():
        text = full_text(slack_message(moment, facts(run), around))
        assert "<!" not in text
        assert text.replace(LINK, "").replace(REPORT, "").count("<") == 0
        assert not any(piece.split(";")[0] not in ("amp", "lt", "gt") for piece in text.split("&")[1:])


def test_an_escape_is_never_cut_in_two() -> None:
    for limit in range(2, 20):
        text = mrkdwn("a&<>b&&&&", limit)
        assert len(text) <= limit
        assert text.rstrip("…").count("&") == text.count(";")


def test_a_resumption_says_segment_step_and_reason(new_run: NewRun) -> None:
    around = Surroundings("gh-99", CI, segment="2/2", reason="runner's time limit", lineage="800")
    message = slack_message(RESUMED, facts(new_run().train(340)), around)
    assert message.text == "Training 800 resumed 2/2 at step 340 of 600 (runner's time limit)"
    assert "Next" not in full_text(message)


def test_a_stop_gives_reason_and_command(new_run: NewRun) -> None:
    run = new_run().train(120).end("stopped", 75, "Stopped at step 120 of 600: the deadline is near")
    text = full_text(slack_message(STOPPED, facts(run), Surroundings("gh-99", CI, segment="1/3")))
    assert text.startswith("*Training 812 stopped 1/3 at step 120 of 600*")
    assert "the deadline is near\nNext: `trainyard train" in text


def test_an_invalid_estimate_is_left_out() -> None:
    for plan in (
        {"estimate": 3},
        {"estimate": {"seconds": "x", "usd": None}},
        {"estimate": {"seconds": 1e12}},
    ):
        message = slack_message(STARTED, None, Surroundings("r", CI, plan=plan))
        assert message.text == "Training 812 started · main@3f2c1ab by push"


ATTEMPT = {"run_id": "99", "run_attempt": "1", "run_number": "812"}


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
    found = event_of(moment, None, Surroundings("gh-99", **{"ci": ATTEMPT, **around}), thread)
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
    assert event(STARTED, thread, ci=ATTEMPT | {"run_attempt": "2"}).kind is RESUMED


def test_events_differ_by_moment_attempt_and_text() -> None:
    thread = SlackThread()
    events = [
        event(RESUMED, thread),
        event(STOPPED, thread),
        event(RESUMED, thread, segment="2/3"),
        event(RESUMED, thread, ci=ATTEMPT | {"run_attempt": "2"}),
        event(RESUMED, thread, ci=ATTEMPT | {"run_id": "100"}),
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


QUEUE_FULL = Surroundings("gh-99", reason="the queue is full")


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> SlackEvent:
    event = SlackEvent("paused", explains=True)
    monkeypatch.setitem(SLACK_EVENTS, event.name, event)
    return event


def test_a_registered_event_has_a_message_and_a_place(paused: SlackEvent, new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train(100).path)
    message = slack_message(paused, facts, QUEUE_FULL)
    assert "paused at step 100 of 600 (the queue is full)" in message.text
    assert "the queue is full" in json.dumps(message.blocks[1:]), "the reason and what to do next"
    posted = event_of(paused, facts, QUEUE_FULL, SlackThread("C1", "1.0", posted=("started-1",)))
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
