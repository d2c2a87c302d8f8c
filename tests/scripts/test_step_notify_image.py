"""`step notify-image` with a local server as Slack: one message per build, and never a failed build."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.answering import Slack
from tests.scripts.test_notify import WORKFLOW
from tests.scripts.test_notify import slack as slack_server  # noqa: F401 - a fixture

from trainyard.command import handler
from trainyard.commands import step_notify_image

URI = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/fsdp@sha256:{'a' * 64}"
BUILT = {"uri": URI, "built": True}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL", "SLACK_CHANNEL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in WORKFLOW.items():
        monkeypatch.setenv(name, value)


def notify(tmp_path: Path, status: str, result: Any = None, **more: Any) -> int:
    line = ["--dockerfile", "docker/fsdp/Dockerfile", "--status", status, "--steps", json.dumps(more)]
    if result is not None:
        (tmp_path / "result.json").write_text(result if isinstance(result, str) else json.dumps(result))
        line += ["--result", str(tmp_path / "result.json")]
    return handler.exit_code_of(lambda: step_notify_image.main(line))


def test_the_end_of_a_build_is_one_message(
    tmp_path: Path,
    slack_server: Slack,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-verysecret")
    monkeypatch.setenv("SLACK_CHANNEL", "#images")
    monkeypatch.setenv("SLACK_API_URL", slack_server.url + "/api/")
    assert notify(tmp_path, "success", {"builds": [BUILT]}) == 0
    (message,) = slack_server.bodies
    assert (message["text"], message["channel"]) == ("✅ Image fsdp built, checked and pushed", "#images")
    assert f"`{URI}`" in json.dumps(message)


@pytest.mark.parametrize(
    ("status", "result", "said"),
    [
        ("success", {"builds": [BUILT]}, "✅ *Image fsdp built, checked and pushed*"),
        ("success", {"builds": [BUILT | {"built": False}]}, "✅ *Image fsdp: nothing to build"),
        ("success", None, "⚠ *Image fsdp: the build succeeded, but left no result*"),
        *(("success", wrong, "left no result*") for wrong in ("[]", "{", '{"builds": 3}', '{"builds": [3]}')),
        ("failure", None, "❌ *Image fsdp was not built* · ECR refused &lt;it&gt; &amp; more"),
    ],
)
def test_a_message_states_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, result: Any, said: str
) -> None:
    build = {"outcome": "failure", "outputs": {"reason": "ECR refused <it> & more"}}
    assert notify(tmp_path, status, result, build=build) == 0
    printed = capsys.readouterr().out
    assert said in printed and "<https://github.com/me/lab/actions/runs/99|run>" in printed
