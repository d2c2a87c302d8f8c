"""The shipped watchdog, played: an outage is reported once, in an issue and in Slack."""

from typing import Any

import pytest

pytestmark = pytest.mark.act

OFFLINE = {
    "name": "gpu-1",
    "status": "offline",
    "busy": False,
    "labels": [{"name": "self-hosted"}, {"name": "gpu"}],
}


WATCHED = {"TRAINYARD_WATCH": "on"}


def test_nobody_is_watched_until_somebody_asks_for_it(stage: Any) -> None:
    stage.github.answers.update({"/actions/runners?": {"runners": [OFFLINE]}, "/issues?": []})
    played = stage.play("schedule", workflow="watch_runners.yml", job="watch", is_fresh=True)
    assert played.green
    assert (played.steps, played.dispatched) == ({}, [])


def test_a_runner_that_went_away_is_red_once_with_an_issue_and_a_message(stage: Any) -> None:
    stage.github.answers.update({"/actions/runners?": {"runners": [OFFLINE]}, "/issues?": []})
    first = stage.play("schedule", workflow="watch_runners.yml", job="notify", variables=WATCHED)
    assert first.exit_code == 1
    assert first.steps["Check"] == "failure", first.log
    assert first.steps["Notify Slack"] == "success", first.log
    assert "❌ GPU runner gpu-1 is offline" in first.summary
    [message] = first.messages
    assert "gpu-1 is offline" in message
    [issue] = first.dispatched
    assert issue["path"].endswith("/issues")
    assert issue["title"] == "GPU runner gpu-1 is offline and takes no jobs"

    known = {"number": 3, "body": issue["body"], "user": {"login": "github-actions[bot]"}}
    stage.github.answers["/issues?"] = [known]
    second = stage.play("schedule", workflow="watch_runners.yml", job="notify", variables=WATCHED)
    assert second.green, second.log
    assert "Notify Slack" not in second.steps
    assert (second.messages, second.dispatched) == ([], [])
