"""GitHub's REST API with a local server: requests, retries and secrets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.answering import answering

from trainyard.errors import ConfigError, ServiceError
from trainyard.gateways import bounded_calls
from trainyard.gateways.github_api import GitHub, github_from

TOKEN = "ghs_very-secret"


@dataclass
class Server:
    """Answers by method and path; records the requests."""

    url: str = ""
    answers: dict[str, list[tuple[int, Any, dict[str, str]]]] = field(default_factory=dict)
    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)

    def say(self, call: str, *answers: tuple[int, Any] | tuple[int, Any, dict[str, str]]) -> None:
        self.answers[call] = [(*a, {}) if len(a) == 2 else a for a in answers]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.0)
    told = Server()

    def answer(method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[Any, ...]:
        call = f"{method} {path}"
        told.asked.append((call, body, headers.get("Authorization")))
        answers = told.answers.get(call) or [(404, {"message": "Not Found"}, {})]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    with answering(answer) as told.url:
        yield told


def repository(server: Server) -> GitHub:
    return GitHub("owner/name", TOKEN, server=server.url)


def test_a_dispatch_sends_branch_and_inputs_and_returns_the_new_run(server: Server) -> None:
    call = "POST /repos/owner/name/actions/workflows/training_ci.yml/dispatches"
    server.say(call, (200, {"workflow_run_id": 9, "html_url": "https://example.org/runs/9"}))
    address = repository(server).dispatch("training_ci.yml", ref="main", inputs={"resume": "auto"})
    assert address == "https://example.org/runs/9"
    body = {"ref": "main", "inputs": {"resume": "auto"}, "return_run_details": True}
    assert server.asked == [(call, body, f"Bearer {TOKEN}")]


def test_a_dispatch_is_never_sent_twice_and_its_answer_may_lack_the_url(server: Server) -> None:
    server.say("POST /repos/owner/name/actions/workflows/x.yml/dispatches", (502, None), (204, None))
    with pytest.raises(ServiceError, match="502"):
        repository(server).dispatch("x.yml", ref="main", inputs={})
    assert len(server.asked) == 1
    assert repository(server).dispatch("x.yml", ref="main", inputs={}) == ""


def test_a_read_is_retried_after_errors_that_can_heal(server: Server) -> None:
    server.say("GET /repos/owner/name/actions/runs?status=queued", (502, None), (200, {"ok": 1}))
    assert repository(server).get("/actions/runs", status="queued") == {"ok": 1}


def test_a_refusal_quotes_github_and_never_the_token(server: Server) -> None:
    refused = {"message": "Resource not accessible by integration"}
    server.say("POST /repos/owner/name/actions/runs/5/cancel", (403, refused))
    with pytest.raises(ServiceError, match="403 Resource not accessible by integration") as caught:
        repository(server).post("/actions/runs/5/cancel")
    assert TOKEN not in str(caught.value)
    assert len(server.asked) == 1


def test_all_pages_of_a_list_are_read(server: Server) -> None:
    first, second = [{"id": n} for n in range(100)], [{"id": 100}]
    server.say("GET /repos/owner/name/actions/runs?per_page=100&page=1", (200, {"workflow_runs": first}))
    server.say("GET /repos/owner/name/actions/runs?per_page=100&page=2", (200, {"workflow_runs": second}))
    assert len(list(repository(server).pages("/actions/runs", "workflow_runs"))) == 101
    server.say("GET /repos/owner/name/issues?per_page=100&page=1", (200, second))
    assert list(repository(server).pages("/issues")) == second


def test_an_answer_that_is_no_json_and_an_unreachable_server_are_named(server: Server) -> None:
    server.say("GET /repos/owner/name/issues/1", (200, b"<html>"))
    with pytest.raises(ServiceError, match="not JSON"):
        repository(server).get("/issues/1")
    with pytest.raises(ServiceError, match="could not be reached"):
        GitHub("owner/name", TOKEN, server="http://127.0.0.1:9").get("/actions/runs")


def test_repository_and_token_come_from_the_workflows_variables() -> None:
    with pytest.raises(ConfigError, match="GITHUB_REPOSITORY is not set"):
        github_from({"GITHUB_TOKEN": "x"})
    with pytest.raises(ConfigError, match="WATCH_TOKEN is not set"):
        github_from({"GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "x"}, variable="WATCH_TOKEN")
    with pytest.raises(ConfigError, match="owner/name"):
        github_from({"GITHUB_REPOSITORY": "a/b/../c", "GITHUB_TOKEN": "x"})
    with pytest.raises(ConfigError, match="GITHUB_API_URL"):
        github_from({"GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "x", "GITHUB_API_URL": "file:///etc"})
    assert github_from({"GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "x"})
