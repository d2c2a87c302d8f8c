"""trainyard notify with a local server as Slack: it reports the record, and never fails a run."""

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainyard.command import handler
from trainyard.run.directory import RunDirectory
from trainyard.run.records import append_event

Program = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
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


@dataclass(frozen=True)
class Done:
    """The result of the script, with the fields of a process."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """Runs the script in this process, which saves forty starts, in the test's folder and outside CI."""
    script = importlib.import_module("trainyard.commands.notify")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "SLACK_", "RUNNER_", "CI"))]:
        monkeypatch.delenv(name)

    def run(_name: str, *arguments: str | Path, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = handler.exit_code_of(lambda: script.main([str(argument) for argument in arguments]))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


class FakeSlack(ThreadingHTTPServer):
    """Keeps the requests that it receives; answers with `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.methods: list[str] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeSlack

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.methods.append(self.path.rpartition("/")[2])
        self.send_response(self.server.status)
        self.end_headers()
        place = {"ok": True, "channel": "C0123", "ts": f"1700.{len(self.server.bodies):04}"}
        self.wfile.write(json.dumps(place).encode() if "/api/chat." in self.path else b"ok")

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
        *("notify", "started", "--run-dir", "runs/gh-99"),
        SLACK_WEBHOOK_URL=slack.url + "/s",
        **WORKFLOW,
    )
    assert done.returncode == 0
    assert slack.bodies[0]["text"] == "Training 812 started · main@3f2c1ab by push"
    assert "<https://github.com/me/lab/actions/runs/99|run>" in slack.bodies[0]["blocks"][0]["text"]["text"]
    assert "slack: Training 812 started" in done.stderr


def test_failed_before_there_is_a_run_is_told_too(program: Program, slack: FakeSlack) -> None:
    arguments = ("notify", "failed", "--run-dir", "runs/gh-99")
    assert program(*arguments, SLACK_WEBHOOK_URL=slack.url, **WORKFLOW).returncode == 0
    assert slack.bodies[0]["text"] == "❌ Training 812 failed, without a run directory"


def test_a_bot_token_posts_to_the_channel_of_the_configuration(
    program: Program, slack: FakeSlack, loud_run: RunDirectory
) -> None:
    done = program(
        *("notify", "succeeded", "--run-dir", loud_run.path, "--json"),
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
    done = program("notify", "succeeded", "--run-dir", finished_run.path, SLACK_WEBHOOK_URL=slack.url)
    assert done.returncode == 0
    assert slack.bodies == []
    assert "notifications.slack.enabled is false" in done.stderr


def test_without_webhook_and_token_it_prints_what_it_would_send(
    program: Program, loud_run: RunDirectory
) -> None:
    done = program("notify", "succeeded", "--run-dir", loud_run.path)
    assert done.returncode == 0
    assert done.stdout.startswith("Would be sent to Slack: ⚠ Training")
    assert "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set" in done.stderr


def test_a_dry_run_sends_nothing(program: Program, slack: FakeSlack, loud_run: RunDirectory) -> None:
    done = program(
        *("notify", "failed", "--run-dir", loud_run.path, "--dry-run"), SLACK_WEBHOOK_URL=slack.url
    )
    assert done.returncode == 0
    first, *others = done.stdout.splitlines()
    assert first.startswith("Would be sent to Slack: ")
    assert any(line.startswith("  Next: ") for line in others)
    assert slack.bodies == []


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_a_warning(
    program: Program, slack: FakeSlack, loud_run: RunDirectory, status: int
) -> None:
    slack.status = status
    done = program(
        *("notify", "succeeded", "--run-dir", loud_run.path),
        SLACK_WEBHOOK_URL=slack.url + "/verysecret",
    )
    assert done.returncode == 0
    assert f"WARN  No message was sent to Slack: Slack answered {status}" in done.stderr
    assert "verysecret" not in done.stderr + done.stdout


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/verysecret", "verysecret", "https://[verysecret"])
def test_a_slack_that_is_not_there_is_a_warning(
    program: Program, loud_run: RunDirectory, address: str
) -> None:
    done = program("notify", "succeeded", "--run-dir", loud_run.path, SLACK_WEBHOOK_URL=address)
    assert done.returncode == 0
    assert "WARN  No message was sent to Slack: " in done.stderr
    assert "verysecret" not in done.stderr + done.stdout


@pytest.mark.parametrize("state", ["answers", "refuses", "hangs up", "not set", "switched off"])
def test_the_output_says_whether_anybody_can_have_heard(
    program: Program, slack: FakeSlack, loud_run: RunDirectory, tmp_path: Path, state: str
) -> None:
    """A job that ends while Slack does not answer has not reported its end: the last job tries again."""
    output = tmp_path / "output"
    output.touch()
    slack.status = 500 if state == "refuses" else 200
    address = "http://127.0.0.1:9/x" if state == "hangs up" else slack.url
    variables = {} if state == "not set" else {"SLACK_WEBHOOK_URL": address}
    if state == "switched off":
        loud_run.config_file.write_text("notifications:\n  slack:\n    enabled: false\n")
    arguments = ("notify", "failed", "--run-dir", loud_run.path)
    done = program(*arguments, GITHUB_OUTPUT=str(output), GITHUB_ACTIONS="true", **variables)
    assert done.returncode == 0
    assert ("posted" in output.read_text()) is (state not in ("refuses", "hangs up"))


@pytest.mark.parametrize("content", ["{", "[]", '{"run_id": 3, "outcome": "x"}'])
def test_a_torn_record_still_makes_a_message(
    program: Program, slack: FakeSlack, loud_run: RunDirectory, content: str
) -> None:
    loud_run.run_file.write_text(content)
    loud_run.config_file.write_text("a: [")
    done = program("notify", "failed", "--run-dir", loud_run.path, SLACK_WEBHOOK_URL=slack.url)
    assert done.returncode == 0
    assert len(slack.bodies) == 1


def bot(slack: FakeSlack) -> dict[str, str]:
    return {
        "SLACK_BOT_TOKEN": "xoxb-verysecret",
        "SLACK_API_URL": slack.url + "/api/",
        "SLACK_CHANNEL": "#training",
    } | WORKFLOW


def attempt(number: int) -> dict[str, str]:
    return {"GITHUB_RUN_ATTEMPT": str(number)}


def test_a_lineage_is_one_thread_whose_first_message_shows_how_it_stands(
    program: Program, slack: FakeSlack, loud_run: RunDirectory, tmp_path: Path
) -> None:
    where = ("--run-dir", loud_run.path, "--lineage", "812")
    plan = json.dumps({"estimate": {"seconds": 22320.0, "usd": 209.6}})
    outputs = tmp_path / "outputs"
    assert (
        program(
            *("notify", "started", *where, "--plan", plan),
            **bot(slack) | {"GITHUB_OUTPUT": str(outputs)},
        ).returncode
        == 0
    )
    opening = slack.bodies[0]
    assert (slack.methods, opening["channel"]) == (["chat.postMessage"], "#training")
    assert "thread_ts" not in opening
    assert opening["text"].startswith("Training 812 started · main@0123456 by push · smoke-llama, 20 steps")
    assert "about 6 h 12 m, until " in opening["text"]
    assert opening["text"].endswith("about $ 210")
    assert "C0123:1700.0001" in outputs.read_text()

    reason = ("--segment", "2/3", "--reason", "runner's time limit")
    assert program("notify", "resumed", *where, *reason, **bot(slack)).returncode == 0
    answer, edited = slack.bodies[1:]
    assert slack.methods[1:] == ["chat.postMessage", "chat.update"]
    assert answer["text"] == "Training 812 resumed 2/3 at step 20 of 20 (runner's time limit)"
    assert (answer["channel"], answer["thread_ts"], answer["reply_broadcast"]) == (
        "C0123",
        "1700.0001",
        False,
    )
    assert (edited["channel"], edited["ts"]) == ("C0123", "1700.0001")
    state = edited["blocks"][0]["text"]["text"]
    assert state.startswith("*Training 812 resumed 2/3 at step 20 of 20 (runner's time limit)* · `main@")
    assert "smoke-llama, 20 steps" in state

    # Another machine does not know the thread; --thread names it.
    (loud_run.path / "slack.json").unlink()
    thread = ("--thread", "C0123:1700.0001")
    assert program("notify", "succeeded", *where, *thread, **bot(slack)).returncode == 0
    end, edited = slack.bodies[3:]
    assert (end["thread_ts"], end["reply_broadcast"]) == ("1700.0001", True)
    assert end["text"].startswith("⚠ Training 812: trained, not proven yet")
    assert edited["ts"] == "1700.0001"
    assert "by push" in edited["blocks"][0]["text"]["text"]


def test_the_same_event_is_told_once_and_one_of_a_later_attempt_again(
    program: Program, slack: FakeSlack, loud_run: RunDirectory
) -> None:
    say = ("notify", "degraded", "--run-dir", loud_run.path, "--reason", "TCP fallback on rank 12")
    for number, told in ((1, 1), (1, 1), (2, 2)):
        done = program(*say, **bot(slack) | attempt(number))
        assert done.returncode == 0
        assert slack.methods.count("chat.postMessage") == told
    assert slack.bodies[0]["text"] == "⚠ Training 812 degraded at step 20 of 20: TCP fallback on rank 12"


def test_a_webhook_has_no_thread_and_tells_the_same_event_once_too(
    program: Program, slack: FakeSlack, loud_run: RunDirectory
) -> None:
    hook = {"SLACK_WEBHOOK_URL": slack.url + "/hook"} | WORKFLOW
    for moment in ("started", "started", "stopped", "failed", "failed"):
        assert program("notify", moment, "--run-dir", loud_run.path, **hook).returncode == 0
    assert slack.methods == ["hook"] * 3
    assert slack.bodies[1]["text"] == "Training 812 stopped at step 20 of 20"
    assert "thread_ts" not in slack.bodies[2]


def test_a_second_attempt_that_starts_goes_on_in_the_thread(
    program: Program, slack: FakeSlack, tmp_path: Path
) -> None:
    say = ("notify", "started", "--run-dir", "runs/gh-99")
    for number in (1, 1, 2):
        assert program(*say, **bot(slack) | attempt(number)).returncode == 0
    assert slack.methods == ["chat.postMessage", "chat.postMessage", "chat.update"]
    assert slack.bodies[1]["text"] == "Training 812 resumed"
    assert slack.bodies[1]["thread_ts"] == "1700.0001"


def test_nothing_is_degraded_unless_somebody_or_the_record_says_so(
    program: Program, slack: FakeSlack, loud_run: RunDirectory
) -> None:
    say = ("notify", "degraded", "--run-dir", loud_run.path)
    done = program(*say, **bot(slack))
    assert (done.returncode, slack.bodies) == (0, [])
    assert "the run was not degraded: nothing sent" in done.stderr
    append_event(loud_run.events_file, "checkpoint_failed", step=15, reason="no space left")
    assert program(*say, **bot(slack)).returncode == 0
    assert (
        "degraded at step 20 of 20: checkpoint not saved, step 15: no space left" in slack.bodies[0]["text"]
    )


def test_what_the_caller_knows_of_a_failure_stands_in_the_message(program: Program, slack: FakeSlack) -> None:
    why = ("--reason", "the runner was lost", "--next-step", "gh run rerun 99 --failed", "--lineage", "7")
    done = program("notify", "failed", "--run-dir", "runs/none", *why, **bot(slack))
    assert done.returncode == 0
    assert slack.bodies[0]["text"] == "❌ Training 7 failed · the runner was lost"
    assert (
        slack.bodies[0]["blocks"][1]["text"]["text"] == "the runner was lost\nNext: gh run rerun 99 --failed"
    )


@pytest.mark.parametrize("memory", ["{", "[]", '{"posted": 3}'])
def test_a_torn_memory_is_as_good_as_none(
    program: Program, slack: FakeSlack, loud_run: RunDirectory, memory: str
) -> None:
    (loud_run.path / "slack.json").write_text(memory)
    assert program("notify", "resumed", "--run-dir", loud_run.path, **bot(slack)).returncode == 0
    assert len(slack.bodies) == 1
    assert json.loads((loud_run.path / "slack.json").read_text())["ts"] == "1700.0001"


@pytest.mark.parametrize("plan", ["nowhere.json", "{", "[3]"])
def test_a_plan_that_is_none_is_a_warning(program: Program, slack: FakeSlack, plan: str) -> None:
    done = program("notify", "started", "--run-dir", "r", "--plan", plan, **bot(slack))
    assert (done.returncode, slack.bodies) == (0, [])
    assert "WARN  No message was sent to Slack: --plan: " in done.stderr


def test_a_thread_that_is_none_is_wrong_usage(program: Program) -> None:
    done = program("notify", "started", "--run-dir", "r", "--thread", "#training")
    assert done.returncode == 2
    assert "C0123ABCD:1732140000.000100" in done.stderr


def test_wrong_usage_is_still_an_error(program: Program, tmp_path: Path) -> None:
    assert program("notify", "finished", "--run-dir", tmp_path).returncode == 2
    assert program("notify", "started").returncode == 2


NEEDS = {
    "plan": {"result": "success", "outputs": {"train": "true"}},
    "train": {"result": "cancelled", "outputs": {}},
}
TELL = ("notify", "failed", "--run-dir", "gh-99", "--lineage", "812", "--needs")


def noted(*messages: str, name: str = "Train and prove") -> Callable[..., tuple[int, Any]]:
    """GitHub's answers about a run with two jobs; the second has annotations."""

    def answer(method: str, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        place = path.removeprefix("/repos/me/lab").partition("?")[0]
        if place == "/actions/runs/99/jobs":
            return 200, {"jobs": [{"id": 1, "name": "Check and plan"}, {"id": 2, "name": name}]}
        if place == "/check-runs/2/annotations":
            return 200, [{"message": message} for message in messages]
        return 404, {"message": "Not Found"}

    return answer


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        (
            ["The run was canceled by @anna."],
            "Training 812 cancelled · the job Train and prove was cancelled (The run was canceled by @anna)",
        ),
        ([], "Training 812 failed · the job Train and prove was cancelled (GitHub names no cause)"),
    ],
)
def test_a_cancelled_job_is_reported_by_the_annotation_that_github_wrote(
    program: Program, slack: FakeSlack, serve_github: Callable[..., str], notes: list[str], said: str
) -> None:
    where = {"GITHUB_API_URL": serve_github(noted(*notes)), "GITHUB_TOKEN": "t", "GITHUB_RUN_ATTEMPT": "1"}
    done = program(*TELL, json.dumps(NEEDS), SLACK_WEBHOOK_URL=slack.url, **WORKFLOW, **where)
    assert done.returncode == 0, done.stderr
    [message] = slack.bodies
    assert message["text"].startswith(f"❌ {said}")
    assert '\\nNext: gh run rerun 99"' in json.dumps(message)


def test_the_annotations_of_a_called_workflow_are_found(
    program: Program, slack: FakeSlack, serve_github: Callable[..., str]
) -> None:
    needs = {
        "plan": {"result": "success"},
        "send": {"result": "cancelled"},
        "watch": {"result": "skipped"},
    }
    answer = noted("The run was canceled by @anna.", name="Train on EKS / Send the job")
    where = {"GITHUB_API_URL": serve_github(answer), "GITHUB_TOKEN": "t", "GITHUB_RUN_ATTEMPT": "1"}
    assert program(*TELL, json.dumps(needs), SLACK_WEBHOOK_URL=slack.url, **WORKFLOW, **where).returncode == 0
    assert "(The run was canceled by @anna): the job may have been sent" in slack.bodies[0]["text"]


@pytest.mark.parametrize("token", ["", "t"])
def test_a_github_that_does_not_answer_keeps_no_message_back(
    program: Program, slack: FakeSlack, serve_github: Callable[..., str], token: str
) -> None:
    refuses = serve_github(lambda *_: (403, {"message": "Resource not accessible by integration"}))
    where = {"GITHUB_API_URL": refuses, "GITHUB_TOKEN": token, "GITHUB_RUN_ATTEMPT": "1"}
    done = program(*TELL, json.dumps(NEEDS), SLACK_WEBHOOK_URL=slack.url, **WORKFLOW, **where)
    assert done.returncode == 0
    assert "GitHub names no cause" in slack.bodies[0]["text"]
    assert "which name the cause, were not read: " in done.stderr


def test_nothing_is_sent_where_each_job_reported_its_own_end(program: Program, slack: FakeSlack) -> None:
    needs = NEEDS | {"train": {"result": "cancelled", "outputs": {"reported": "1"}}}
    where = {"SLACK_WEBHOOK_URL": slack.url, "GITHUB_RUN_ATTEMPT": "1", **WORKFLOW}
    done = program(*TELL, json.dumps(needs), **where)
    assert (done.returncode, slack.bodies) == (0, [])
    assert "each job reported its own end: nothing sent" in done.stderr
    done = program(*TELL, "[]", **where)
    assert done.returncode == 2
    assert "--needs: '[]' is not the JSON" in done.stderr


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (480, "the job reached its time limit of 480 minutes"),
        (12, "somebody cancelled the run after 12 minutes, or its runner was shut down"),
        (None, "somebody cancelled the run, or its runner was shut down"),
    ],
)
def test_a_job_that_was_cancelled_reports_it_by_its_own_clock(
    program: Program, slack: FakeSlack, minutes: int | None, said: str
) -> None:
    started = {} if minutes is None else {"TRAINYARD_JOB_STARTED": str(int(time.time()) - 60 * minutes)}
    line = ("notify", "failed", "--run-dir", "gh-99", "--job-status")
    where = {"SLACK_WEBHOOK_URL": slack.url, **WORKFLOW, **started}
    assert program(*line, "cancelled", **where).returncode == 0
    assert said in slack.bodies[0]["text"]
    assert program(*line, "failure", "--reason", "gpu: none", **where).returncode == 0
    assert "gpu: none" in slack.bodies[1]["text"]
