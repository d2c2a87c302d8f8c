"""trainyard notify and `step notify-image` with a local server as Slack: they report, and fail nothing."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.answering import Slack, answering_slack
from tests.cases import each_case
from tests.scripts.conftest import Call

from trainyard.commands.notify import Notice, Posted, notify
from trainyard.run.directory import RunDirectory

WORKFLOW = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "me/lab",
}
WORKFLOW |= {"GITHUB_RUN_ID": "99", "GITHUB_RUN_NUMBER": "812", "GITHUB_EVENT_NAME": "push"}
WORKFLOW |= {"GITHUB_REF": "refs/heads/main", "GITHUB_SHA": "3f2c1ab" + "0" * 33}


@pytest.fixture
def slack() -> Iterator[Slack]:
    with answering_slack() as server:
        yield server


@pytest.fixture
def loud_run(finished_run: RunDirectory) -> RunDirectory:
    """A run whose configuration wants messages."""
    finished_run.config_file.write_text(
        "model: {name: smoke-llama}\nnotifications: {slack: {enabled: true, channel: '#config'}}\n"
    )
    return finished_run


def test_a_bot_token_posts_to_the_channel_of_the_configuration(
    called: Call, slack: Slack, loud_run: RunDirectory
) -> None:
    done = called(
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


def test_a_dry_run_sends_nothing(called: Call, slack: Slack, loud_run: RunDirectory) -> None:
    done = called(*("notify", "failed", "--run-dir", loud_run.path, "--dry-run"), SLACK_WEBHOOK_URL=slack.url)
    assert done.returncode == 0
    first, *others = done.stdout.splitlines()
    assert first.startswith("Would be sent to Slack: ")
    assert any(line.startswith("  Next: ") for line in others)
    assert slack.bodies == []


Notify = Callable[..., Posted]


@pytest.fixture
def posted(called: Call, monkeypatch: pytest.MonkeyPatch) -> Notify:
    """Posts an event as a step of a workflow does, whose environment is the second argument."""

    def post(event: str, environment: dict[str, str], **values: Any) -> Posted:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return notify(Notice(event=event, **values))

    return post


UNHEARD = "WARN  No message was sent to Slack: "
STATES: dict[str, tuple[int, str, bool]] = {
    "answers": (200, "", True),
    "refuses": (403, f"{UNHEARD}Slack answered 403", False),
    "is in trouble": (500, f"{UNHEARD}Slack answered 500", False),
    "http://127.0.0.1:9/verysecret": (200, UNHEARD, False),
    "verysecret": (200, UNHEARD, False),
    "not set": (200, "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set", True),
    "switched off": (200, "notifications.slack.enabled is false", True),
}
"""State of Slack, or its address -> its answers, what is logged, whether the end counts as reported."""


@each_case("state", STATES)
def test_no_state_of_slack_fails_the_run_and_the_output_says_whether_anybody_can_have_heard(
    called: Call, slack: Slack, loud_run: RunDirectory, tmp_path: Path, state: str
) -> None:
    """A job that ends while Slack does not answer has not reported its end: the last job tries again."""
    slack.requests.clear()
    (loud_run.path / "slack.json").unlink(missing_ok=True)
    slack.status, logged, is_posted = STATES[state]
    (output := tmp_path / "output").touch()
    address = state if "verysecret" in state else f"{slack.url}/verysecret"
    variables = {} if state == "not set" else {"SLACK_WEBHOOK_URL": address}
    enabled = str(state != "switched off").lower()
    loud_run.config_file.write_text(f"notifications: {{slack: {{enabled: {enabled}}}}}\n")
    arguments = ("notify", "failed", "--run-dir", loud_run.path)
    done = called(*arguments, GITHUB_OUTPUT=str(output), GITHUB_ACTIONS="true", **variables)
    assert done.returncode == 0
    assert logged in done.stderr and "verysecret" not in done.stderr + done.stdout
    assert done.stdout.startswith("Would be sent to Slack: ❌ Training") is (state == "not set")
    assert ("posted" in output.read_text()) is is_posted
    assert state != "switched off" or slack.bodies == []


@each_case("torn", ["{", "[]", '{"run_id": 3, "outcome": "x"}', '{"said": 3}'])
def test_torn_records_still_make_a_message(
    called: Call, slack: Slack, loud_run: RunDirectory, torn: str
) -> None:
    slack.requests.clear()
    for name, text in (("run.json", torn), ("slack.json", torn), ("config.yaml", "a: [")):
        (loud_run.path / name).write_text(text)
    assert called("notify", "failed", "--run-dir", loud_run.path, **bot(slack)).returncode == 0
    assert slack.methods == ["chat.postMessage"]
    assert json.loads((loud_run.path / "slack.json").read_text())["ts"] == "1700.0001"


def bot(slack: Slack) -> dict[str, str]:
    place = {"SLACK_API_URL": slack.url + "/api/", "SLACK_CHANNEL": "#training"}
    return {"SLACK_BOT_TOKEN": "xoxb-verysecret", **place, **WORKFLOW}


def test_a_lineage_is_one_thread_whose_first_message_shows_how_it_stands(
    called: Call, posted: Notify, slack: Slack, loud_run: RunDirectory, tmp_path: Path
) -> None:
    where = ("--run-dir", loud_run.path, "--lineage", "812")
    plan = json.dumps({"estimate": {"seconds": 22320.0, "usd": 209.6}})
    outputs = tmp_path / "outputs"
    known = {"run_dir": loud_run.path, "lineage": "812"}
    posted("started", bot(slack) | {"GITHUB_OUTPUT": str(outputs)}, **known, plan=plan)
    opening = slack.bodies[0]
    assert (slack.methods, opening["channel"]) == (["chat.postMessage"], "#training")
    assert "thread_ts" not in opening
    assert opening["text"].startswith("Training 812 started · main@0123456 by push · smoke-llama, 20 steps")
    assert opening["text"].endswith(" · about 6 h 12 m, about $ 210")
    assert "C0123:1700.0001" in outputs.read_text()

    reason = ("--segment", "2/3", "--reason", "runner's time limit")
    assert called("notify", "resumed", *where, *reason, **bot(slack)).returncode == 0
    answer, edited = slack.bodies[1:]
    assert slack.methods[1:] == ["chat.postMessage", "chat.update"]
    assert answer["text"] == "Training 812 resumed 2/3 at step 20 of 20 (runner's time limit)"
    place = (answer["channel"], answer["thread_ts"], answer["reply_broadcast"])
    assert place == ("C0123", "1700.0001", False)
    assert (edited["channel"], edited["ts"]) == ("C0123", "1700.0001")
    state = edited["blocks"][0]["text"]["text"]
    assert state.startswith("*Training 812 resumed 2/3 at step 20 of 20 (runner's time limit)* · `main@")
    assert "smoke-llama, 20 steps" in state

    # Another machine does not know the thread, but is given it.
    (loud_run.path / "slack.json").unlink()
    posted("succeeded", bot(slack), **known, thread="C0123:1700.0001")
    end, edited = slack.bodies[3:]
    assert (end["thread_ts"], end["reply_broadcast"]) == ("1700.0001", True)
    assert end["text"].startswith("⚠ Training 812: trained, not proven yet")
    assert edited["ts"] == "1700.0001"
    assert "by push" in edited["blocks"][0]["text"]["text"]


def test_what_the_caller_knows_of_a_failure_stands_in_the_message(called: Call, slack: Slack) -> None:
    why = ("--reason", "the runner was lost", "--fix", "gh run rerun 99 --failed", "--lineage", "7")
    done = called("notify", "failed", "--run-dir", "runs/none", *why, **bot(slack))
    assert done.returncode == 0
    assert slack.bodies[0]["text"] == "❌ Training 7 failed · the runner was lost"
    text = slack.bodies[0]["blocks"][1]["text"]["text"]
    assert text == "the runner was lost\nNext: gh run rerun 99 --failed"


@pytest.mark.parametrize("plan", ["nowhere.json", "{", "[3]"])
def test_a_plan_that_is_none_sends_nothing_and_fails_nothing(posted: Notify, slack: Slack, plan: str) -> None:
    assert not posted("started", bot(slack), run_dir=Path("r"), plan=plan).is_done
    assert slack.bodies == []


NEEDS = {
    "plan": {"result": "success", "outputs": {"train": "true"}},
    "train": {"result": "cancelled", "outputs": {}},
}


def noted(*messages: str, name: str = "Train and prove") -> Callable[..., tuple[int, Any]]:
    """GitHub's answers about a run with two jobs; the second has annotations."""

    def answer(method: str, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        place = path.removeprefix("/repos/me/lab").partition("?")[0]
        if place == "/actions/runs/99/jobs":
            train = {"id": 2, "name": name, "runner_name": "gpu-1"}
            return 200, {"jobs": [{"id": 1, "name": "Check and plan"}, train]}
        if place == "/check-runs/2/annotations":
            return 200, [{"annotation_level": "failure", "message": each} for each in messages]
        return 404, {"message": "Not Found"}

    return answer


@each_case("is_called", [False, True])
def test_a_cancelled_job_is_reported_by_the_annotation_that_github_wrote(
    called: Call, slack: Slack, serve_github: Callable[..., str], tmp_path: Path, is_called: bool
) -> None:
    """`test_job_ends.py` has the causes. GitHub names the job of a called workflow behind its caller."""
    slack.requests.clear()
    name = "Training / Train and prove" if is_called else "Train and prove"
    address = serve_github(noted("The run was canceled by @anna.", name=name))
    where = {"GITHUB_API_URL": address, "GITHUB_TOKEN": "t", "GITHUB_RUN_ATTEMPT": "1"}
    where |= {"RUNNER_TEMP": str(tmp_path / str(is_called))}
    done = called("step notify", NEEDS=json.dumps(NEEDS), SLACK_WEBHOOK_URL=slack.url, **WORKFLOW, **where)
    assert done.returncode == 0, done.stderr
    [message] = slack.bodies
    assert message["text"].startswith("❌ Training 812 cancelled")
    assert "(The run was canceled by @anna)" in message["text"]
    assert '\\nNext: gh run rerun 99"' in json.dumps(message)


@pytest.mark.parametrize("token", ["", "t"])
def test_a_github_that_does_not_answer_keeps_no_message_back(
    called: Call, slack: Slack, serve_github: Callable[..., str], tmp_path: Path, token: str
) -> None:
    refuses = serve_github(lambda *_: (403, {"message": "Resource not accessible by integration"}))
    where = {"GITHUB_API_URL": refuses, "GITHUB_TOKEN": token, "GITHUB_RUN_ATTEMPT": "1"}
    where |= {"RUNNER_TEMP": str(tmp_path)}
    done = called("step notify", NEEDS=json.dumps(NEEDS), SLACK_WEBHOOK_URL=slack.url, **WORKFLOW, **where)
    assert done.returncode == 0
    assert "GitHub names no cause" in slack.bodies[0]["text"]
    assert "which name the cause, were not read: " in done.stderr


def test_nothing_is_sent_where_each_job_reported_its_own_end(called: Call, slack: Slack) -> None:
    needs = NEEDS | {"train": {"result": "cancelled", "outputs": {"reported": "1"}}}
    where = {"SLACK_WEBHOOK_URL": slack.url, "GITHUB_RUN_ATTEMPT": "1", **WORKFLOW}
    done = called("step notify", NEEDS=json.dumps(needs), **where)
    assert (done.returncode, slack.bodies) == (0, [])
    assert "each job reported its own end: nothing sent" in done.stderr
    assert called("step notify", NEEDS="[]", **where).returncode == 2


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (480, "the job reached its time limit of 480 minutes"),
        (12, "somebody cancelled the run after 12 minutes, or its runner was shut down"),
        (None, "somebody cancelled the run, or its runner was shut down"),
    ],
)
def test_a_job_that_was_cancelled_reports_it_by_its_own_clock(
    posted: Notify, slack: Slack, minutes: int | None, said: str
) -> None:
    started = {} if minutes is None else {"TRAINYARD_JOB_STARTED": str(int(time.time()) - 60 * minutes)}
    where = {"SLACK_WEBHOOK_URL": slack.url, **WORKFLOW, **started}
    posted("failed", where, run_dir=Path("gh-99"), job_status="cancelled")
    assert said in slack.bodies[0]["text"]
    posted("failed", where, run_dir=Path("gh-99"), job_status="failure", reason="gpu: none")
    assert "gpu: none" in slack.bodies[1]["text"]


URI = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/fsdp@sha256:{'a' * 64}"
BUILT = {"image": URI, "built": "true"}


def end_of_build(status: str, **steps: Any) -> tuple[str, ...]:
    where = ("step notify-image", "--dockerfile", "docker/fsdp/Dockerfile")
    return (*where, "--status", status, "--steps", json.dumps(steps))


def test_the_end_of_a_build_is_one_message(called: Call, slack: Slack) -> None:
    words = end_of_build("success", build={"outcome": "success", "outputs": BUILT})
    assert called(*words, **{**bot(slack), "SLACK_CHANNEL": "#images"}).returncode == 0
    (message,) = slack.bodies
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


def test_a_message_states_the_result(called: Call) -> None:
    for status, steps, said in ENDS:
        done = called(*end_of_build(status, **steps), **WORKFLOW)
        assert done.returncode == 0
        assert said in done.stdout and "<https://github.com/me/lab/actions/runs/99|run>" in done.stdout
