"""The shipped watchdog, played: an outage makes the run red and is posted to Slack."""

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


def test_a_runner_that_went_away_is_red_with_a_message(stage: Any) -> None:
    stage.github.answers.update({"/actions/runners?": {"runners": [OFFLINE]}})
    played = stage.play("schedule", workflow="watch_runners.yml", job="notify", variables=WATCHED)
    assert played.exit_code == 1
    assert played.steps["Check"] == "failure", played.log
    assert played.steps["Notify Slack"] == "success", played.log
    assert "❌ GPU runner gpu-1 is offline" in played.summary
    [message] = played.messages
    assert "gpu-1 is offline" in message
    assert played.dispatched == []
