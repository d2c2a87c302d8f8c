"""scripts/notify_slack.py with a local server as Slack: it tells what is on record, and never fails a run."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainyard.run.directory import RunDirectory

Program = Callable[..., Any]
WORKFLOW = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "me/lab",
    "GITHUB_RUN_ID": "99",
    "GITHUB_RUN_NUMBER": "812",
    "GITHUB_EVENT_NAME": "push",
    "GITHUB_REF": "refs/heads/main",
    "GITHUB_SHA": "3f2c1ab" + "0" * 33,
}


class FakeSlack(ThreadingHTTPServer):
    """Keeps what it is sent; answers with `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeSlack

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b'{"ok": true}' if "chat.postMessage" in self.path else b"ok")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    server = FakeSlack()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def loud_run(finished_run: RunDirectory) -> RunDirectory:
    """A run whose configuration wants messages."""
    finished_run.config_file.write_text(
        "model: {name: smoke-llama}\nnotifications: {slack: {enabled: true, channel: '#config'}}\n"
    )
    return finished_run


def test_started_works_before_there_is_a_run(program: Program, slack: FakeSlack) -> None:
    done = program(
        *("notify_slack.py", "started", "--run-dir", "runs/gh-99"),
        SLACK_WEBHOOK_URL=slack.url + "/s",
        **WORKFLOW,
    )
    assert done.returncode == 0
    assert slack.bodies[0]["text"] == "Training 812 started · main@3f2c1ab by push"
    assert "<https://github.com/me/lab/actions/runs/99|run>" in slack.bodies[0]["blocks"][0]["text"]["text"]
    assert "slack: Training 812 started" in done.stderr


def test_failed_before_there_is_a_run_is_told_too(program: Program, slack: FakeSlack) -> None:
    arguments = ("notify_slack.py", "failed", "--run-dir", "runs/gh-99")
    assert program(*arguments, SLACK_WEBHOOK_URL=slack.url, **WORKFLOW).returncode == 0
    assert slack.bodies[0]["text"] == "❌ Training 812 failed, and left no run directory"


def test_a_bot_token_posts_to_the_channel_of_the_configuration(
    program: Program, slack: FakeSlack, loud_run: RunDirectory
) -> None:
    done = program(
        *("notify_slack.py", "succeeded", "--run-dir", loud_run.path, "--json"),
        SLACK_BOT_TOKEN="xoxb-verysecret",
        SLACK_API_URL=slack.url + "/api/",
    )
    assert done.returncode == 0
    assert slack.bodies[0]["channel"] == "#config"
    assert slack.bodies[0]["text"].startswith("⚠ Training 20261120-214501-7c1f: trained, not proven yet")
    said = json.loads(done.stdout)
    assert said["sent"] is True
    assert said["blocks"] == slack.bodies[0]["blocks"]
    assert "verysecret" not in done.stderr + done.stdout


def test_a_configuration_without_messages_is_obeyed(
    program: Program, slack: FakeSlack, finished_run: RunDirectory
) -> None:
    done = program(
        "notify_slack.py", "succeeded", "--run-dir", finished_run.path, SLACK_WEBHOOK_URL=slack.url
    )
    assert done.returncode == 0
    assert slack.bodies == []
    assert "notifications.slack.enabled is false" in done.stderr


def test_without_webhook_and_token_it_prints_what_it_would_send(
    program: Program, loud_run: RunDirectory
) -> None:
    done = program("notify_slack.py", "succeeded", "--run-dir", loud_run.path)
    assert done.returncode == 0
    assert done.stdout.startswith("Slack would be told: ⚠ Training")
    assert "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set" in done.stderr


def test_a_dry_run_sends_nothing(program: Program, slack: FakeSlack, loud_run: RunDirectory) -> None:
    done = program(
        *("notify_slack.py", "failed", "--run-dir", loud_run.path, "--dry-run"), SLACK_WEBHOOK_URL=slack.url
    )
    assert done.returncode == 0
    assert done.stdout.startswith("Slack would be told: ")
    assert slack.bodies == []


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_a_warning(
    program: Program, slack: FakeSlack, loud_run: RunDirectory, status: int
) -> None:
    slack.status = status
    done = program(
        *("notify_slack.py", "succeeded", "--run-dir", loud_run.path),
        SLACK_WEBHOOK_URL=slack.url + "/verysecret",
    )
    assert done.returncode == 0
    assert f"WARN  Slack was not told: Slack answered {status}" in done.stderr
    assert "verysecret" not in done.stderr + done.stdout


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/verysecret", "verysecret", "https://[verysecret"])
def test_a_slack_that_is_not_there_is_a_warning(
    program: Program, loud_run: RunDirectory, address: str
) -> None:
    done = program("notify_slack.py", "succeeded", "--run-dir", loud_run.path, SLACK_WEBHOOK_URL=address)
    assert done.returncode == 0
    assert "WARN  Slack was not told: " in done.stderr
    assert "verysecret" not in done.stderr + done.stdout


@pytest.mark.parametrize("content", ["{", "[]", '{"run_id": 3, "outcome": "x"}'])
def test_a_torn_record_still_makes_a_message(
    program: Program, slack: FakeSlack, loud_run: RunDirectory, content: str
) -> None:
    loud_run.run_file.write_text(content)
    loud_run.config_file.write_text("a: [")
    done = program("notify_slack.py", "failed", "--run-dir", loud_run.path, SLACK_WEBHOOK_URL=slack.url)
    assert done.returncode == 0
    assert len(slack.bodies) == 1


def test_wrong_usage_is_still_an_error(program: Program, tmp_path: Path) -> None:
    assert program("notify_slack.py", "finished", "--run-dir", tmp_path).returncode == 2
    assert program("notify_slack.py", "started").returncode == 2
