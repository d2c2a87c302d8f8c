"""`step notify-image` with a local server as Slack: one thread per build, and never a failed build."""

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.answering import Slack
from tests.scripts.test_notify_slack import WORKFLOW, Done
from tests.scripts.test_notify_slack import slack as slack_server  # noqa: F401 - a fixture

from trainyard.command import handler
from trainyard.commands import step_notify_image

ROOT = Path(__file__).resolve().parents[2]
Program = Callable[..., Done]
DIGEST = "sha256:" + "a" * 64
URI = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/fsdp@{DIGEST}"
BUILT = {"uri": URI, "digest": DIGEST, "built": True, "seconds": 751.0, "attempts": 2, "log": "https://log"}
TITLES = {
    "started": "Image fsdp: build started",
    "built": "✅ Image fsdp built, checked and pushed",
    "there": "✅ Image fsdp: nothing to build, this content is in the registry",
    "no result": "⚠ Image fsdp: the build succeeded, but left no result",
    "failed": "❌ Image fsdp was not built",
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    script = importlib.import_module("trainyard.commands.step_notify_image")
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "SLACK_", "RUNNER_", "CI"))]:
        monkeypatch.delenv(name)
    for name, value in WORKFLOW.items():
        monkeypatch.setenv(name, value)

    def run(*words: str, result: Any = None, **variables: str) -> Done:
        line = [*words, "--dockerfile", "docker/fsdp/Dockerfile", "--memory", str(tmp_path / "slack.json")]
        if result is not None:
            (tmp_path / "result.json").write_text(json.dumps(result))
            line += ["--result", str(tmp_path / "result.json")]
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = handler.exit_code_of(lambda: script.main(line))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


def shown(body: dict[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False)


def test_a_build_is_one_thread_whose_first_message_shows_how_it_ended(
    program: Program,
    slack_server: Slack,  # noqa: F811 - the fixture
) -> None:
    bot = {"SLACK_BOT_TOKEN": "xoxb-verysecret", "SLACK_CHANNEL": "#images"}
    bot["SLACK_API_URL"] = slack_server.url + "/api/"
    assert program("started", **bot).returncode == 0
    done = program("succeeded", result={"builds": [BUILT]}, **bot)
    assert done.returncode == 0
    again = program("succeeded", result={"builds": [BUILT]}, **bot)
    assert "posted before" in again.stderr
    assert slack_server.methods == ["chat.postMessage", "chat.postMessage", "chat.update"]
    begun, ended, first = slack_server.bodies
    assert begun["text"] == f"{TITLES['started']} · main@3f2c1ab by push"
    assert begun["channel"] == "#images"
    assert ended["text"] == f"{TITLES['built']} · 12:31 · attempt 2"
    assert (ended["thread_ts"], ended["reply_broadcast"]) == ("1700.0001", True)
    assert f"`{URI}` · <https://log|log>" in shown(ended)
    assert first["ts"] == "1700.0001"
    assert f"{TITLES['built'].replace('Image', '*Image')}* · `main@3f2c1ab` by push" in shown(first)
    assert "verysecret" not in done.stdout + done.stderr


CASES: dict[str, tuple[tuple[str, ...], Any]] = {
    "started": (("started",), None),
    "built": (("succeeded",), {"builds": [BUILT]}),
    "there": (("succeeded",), {"builds": [BUILT | {"built": False}]}),
    "no result": (("succeeded",), {"image": URI}),
    "failed": (("failed", "--reason", "ECR refused <it> & more"), None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_message_says_what_happened(program: Program, case: str) -> None:
    words, result = CASES[case]
    done = program(*words, "--json", result=result)
    assert done.returncode == 0
    message = json.loads(done.stdout)
    assert message["sent"] is False
    assert message["text"].startswith(TITLES[case])
    assert "<https://github.com/me/lab/actions/runs/99|run>" in shown(message)
    if case == "failed":
        assert "ECR refused &lt;it&gt; &amp; more" in message["text"]


@pytest.mark.parametrize("wrong", ["[]", "{", '{"builds": 3}', '{"builds": [3]}'])
def test_a_result_that_cannot_be_read_is_no_claim_of_an_image(
    program: Program, tmp_path: Path, wrong: str
) -> None:
    (tmp_path / "wrong.json").write_text(wrong)
    done = program("succeeded", "--result", str(tmp_path / "wrong.json"))
    assert done.returncode == 0
    assert TITLES["no result"] in done.stdout


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/verysecret", "verysecret"])
def test_a_slack_that_is_not_there_is_a_warning(program: Program, address: str) -> None:
    done = program("failed", SLACK_WEBHOOK_URL=address)
    assert done.returncode == 0
    assert "No message was sent to Slack" in done.stderr
    assert "verysecret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("status", "steps", "event", "reason"),
    [
        ("success", {"build": {"outcome": "success"}}, "succeeded", ""),
        ("cancelled", {}, "failed", "somebody cancelled it, or the job reached its time limit"),
        ("failure", {"lint": {"outcome": "failure"}}, "failed", "trainyard image lint found faults"),
        ("failure", {"build": {"outcome": "failure", "outputs": {"reason": "quota"}}}, "failed", "quota"),
        ("failure", {"build": {"outcome": "failure"}}, "failed", "trainyard image build failed; see its log"),
        ("failure", {"lint": {"outcome": "success"}}, "failed", "a step before the build failed"),
    ],
)
def test_the_end_of_a_job_comes_from_its_steps(
    status: str, steps: dict[str, Any], event: str, reason: str
) -> None:
    assert step_notify_image.end_of(json.dumps(steps), status) == (event, reason)
