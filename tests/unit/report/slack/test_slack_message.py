"""Slack messages: they follow the run's record, are escaped, and keep Slack's limits."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from trainyard.report.facts.run_facts import RunFacts, read_facts
from trainyard.report.slack import slack_events
from trainyard.report.slack.slack_message import SlackMessage, Surroundings, mrkdwn, slack_message
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
    message = slack_message(slack_events.STARTED, None, AROUND)
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
    text = slack_message(slack_events.DEGRADED, facts(run), AROUND).text
    assert text == (
        "⚠ Training 812 degraded at step 100 of 600: "
        "checkpoint not saved, step 140: no space left; network: TCP between machines"
    )


def test_started_names_who_what_and_where_by_the_record_or_else_by_the_plan(new_run: NewRun) -> None:
    run = facts(new_run())
    text = full_text(slack_message(slack_events.STARTED, run, AROUND))
    assert "`main@0123456` by push · smoke-llama, 600 steps on gpu-runner" in text, "the recorded commit"
    on_a_laptop = full_text(slack_message(slack_events.STARTED, run, Surroundings("r")))
    assert "`main@0123456`" in on_a_laptop and "|run>" not in on_a_laptop
    around = dataclasses.replace(AROUND, ci=CI | {"actor": "anna"}, plan={"model": "tiny", "steps": 8})
    message = slack_message(slack_events.STARTED, None, around)
    assert message.text == "Training 812 started · main@3f2c1ab by anna (push) · tiny, 8 steps on gpu-runner"
    daily = dataclasses.replace(around, ci={**around.ci, "event": "schedule"})
    assert "by schedule ·" in slack_message(slack_events.STARTED, None, daily).text


def test_a_proven_run(new_run: NewRun) -> None:
    message = slack_message(slack_events.SUCCEEDED, facts(new_run().train().succeed().prove()), AROUND)
    assert message.text == (
        "✅ Training 812 proven · loss 5.52 → 1.01, 1.71 bits/byte · 600 steps in 1:48 · on cpu"
    )
    text = full_text(message)
    assert "✅ stored: 6 of 6 objects" in text
    assert REPORT in text
    assert "Next" not in text


def test_an_unproven_run_never_reads_as_proven(new_run: NewRun) -> None:
    run = new_run().train().succeed()
    message = slack_message(slack_events.SUCCEEDED, facts(run), AROUND)
    assert message.text.startswith("⚠ Training 812: trained, not proven yet")
    assert "Next: `trainyard prove --run-dir runs/" in full_text(message)
    run.prove(failing="stored")
    for moment in (slack_events.SUCCEEDED, slack_events.FAILED):
        message = slack_message(moment, facts(run), AROUND)
        assert message.text.startswith("❌ Training 812: not proven: stored · loss 5.52")
        text = full_text(message)
        assert "❌ stored: 5 of 6 objects verified" in text
        assert "Next: `trainyard store sync" in text


def test_a_failed_run_gives_reason_and_command(new_run: NewRun) -> None:
    run = new_run().train(120).end("failed", 1, "Step 121: loss nan is not finite in batch 120")
    message = slack_message(slack_events.FAILED, facts(run), AROUND)
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
        *_, shown, _ = slack_message(slack_events.FAILED, facts(run), AROUND).blocks
        around = [*lines[max(0, place - 3) : place], f"E: {root}", *lines[place : place + 2]]
        escaped = "\n".join(around).replace("<`>", "&lt;'&gt;")
        assert shown["text"]["text"] == f"```{escaped}```", place
    log.unlink()
    assert "```" not in full_text(slack_message(slack_events.FAILED, facts(run), AROUND))


def test_failed_before_there_is_a_run_directory() -> None:
    message = slack_message(slack_events.FAILED, None, AROUND)
    assert message.text == "❌ Training 812 failed, without a run directory"
    told = dataclasses.replace(AROUND, reason="nothing follows: the store does not hold it")
    message = slack_message(slack_events.FAILED, None, told)
    assert message.text == "❌ Training 812 failed · nothing follows: the store does not hold it"


def test_a_step_that_fails_after_the_proof_leaves_the_run_proven(new_run: NewRun) -> None:
    message = slack_message(slack_events.FAILED, facts(new_run().train().succeed().prove()), AROUND)
    assert message.text.startswith("⚠ Training 812 is proven, but a later step failed")


def test_a_run_cut_off_by_the_time_limit_reads_as_failed(new_run: NewRun) -> None:
    run = new_run().train(120).end("stopped", 75, "Stopped at step 120 of 600: deadline. x is whole.")
    message = slack_message(slack_events.FAILED, facts(run), AROUND)
    assert message.text.startswith("❌ Training 812 failed: stopped at step 120 of 600")


def test_hostile_text_is_escaped_and_cut(new_run: NewRun) -> None:
    hostile = "<!channel> & <https://evil|click> " + "&" * 9000
    run = new_run().train(12).end("failed", 1, hostile)
    run.layout.config_file.write_text(f'model: {{name: "{"<" * 4000}"}}\n')
    around = Surroundings(
        "<" * 5000, CI | {"ref": "refs/heads/a`<b>", "event": "<!here>", "run_number": "&" * 4000}
    )
    for moment in slack_events.SLACK_EVENTS.values():
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
    message = slack_message(slack_events.RESUMED, facts(new_run().train(340)), around)
    assert message.text == "Training 800 resumed 2/2 at step 340 of 600 (runner's time limit)"
    assert "Next" not in full_text(message)


def test_a_stop_gives_reason_and_command(new_run: NewRun) -> None:
    run = new_run().train(120).end("stopped", 75, "Stopped at step 120 of 600: the deadline is near")
    text = full_text(
        slack_message(slack_events.STOPPED, facts(run), Surroundings("gh-99", CI, segment="1/3"))
    )
    assert text.startswith("*Training 812 stopped 1/3 at step 120 of 600*")
    assert "the deadline is near\nNext: `trainyard train" in text


def test_an_invalid_estimate_is_left_out() -> None:
    for plan in (
        {"estimate": 3},
        {"estimate": {"seconds": "x", "usd": None}},
        {"estimate": {"seconds": 1e12}},
    ):
        message = slack_message(slack_events.STARTED, None, Surroundings("r", CI, plan=plan))
        assert message.text == "Training 812 started · main@3f2c1ab by push"
