"""`step notify-image` with a local server as Slack: one message per build, and never a failed build."""

import json
from typing import Any

import pytest
from tests.answering import Slack
from tests.scripts.test_notify import WORKFLOW
from tests.scripts.test_notify import slack as slack_server  # noqa: F401 - a fixture

from trainyard.command import handler
from trainyard.commands import step_notify_image

URI = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/fsdp@sha256:{'a' * 64}"
BUILT = {"image": URI, "built": "true"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL", "SLACK_CHANNEL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in WORKFLOW.items():
        monkeypatch.setenv(name, value)


def notify(status: str, **steps: Any) -> int:
    line = ["--dockerfile", "docker/fsdp/Dockerfile", "--status", status, "--steps", json.dumps(steps)]
    return handler.exit_code_of(lambda: step_notify_image.main(line))


def test_the_end_of_a_build_is_one_message(
    slack_server: Slack,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-verysecret")
    monkeypatch.setenv("SLACK_CHANNEL", "#images")
    monkeypatch.setenv("SLACK_API_URL", slack_server.url + "/api/")
    assert notify("success", build={"outcome": "success", "outputs": BUILT}) == 0
    (message,) = slack_server.bodies
    assert (message["text"], message["channel"]) == ("✅ Image fsdp built, checked and pushed", "#images")
    assert f"`{URI}`" in json.dumps(message)


REFUSED = {"outcome": "failure", "outputs": {"reason": "ECR refused <it> & more"}}
ENDS: list[tuple[str, dict[str, Any], str]] = [
    ("success", {"build": {"outputs": BUILT}}, "✅ *Image fsdp built, checked and pushed*"),
    ("success", {"build": {"outputs": BUILT | {"built": "false"}}}, "✅ *Image fsdp: nothing to build"),
    ("failure", {"build": REFUSED}, "❌ *Image fsdp was not built* · ECR refused &lt;it&gt; &amp; more"),
    ("failure", {"lint": {"outcome": "failure"}}, "the step lint failed; see its log"),
    ("failure", {}, "the step that sets the job up failed; see its log"),
    ("cancelled", {}, "somebody cancelled it"),
]


def test_a_message_states_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    for status, steps, said in ENDS:
        assert notify(status, **steps) == 0
        printed = capsys.readouterr().out
        assert said in printed and "<https://github.com/me/lab/actions/runs/99|run>" in printed
