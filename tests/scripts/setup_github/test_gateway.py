"""The gateway to `gh`, with the real `gh`: its answers, its retries, and secrets that stay hidden."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.scripts.setup_github.stand_in import GitHub

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.gateways import github_cli
from trainyard.gateways.github_cli import GitHubCli

LAB = "repos/me/lab"


@pytest.fixture
def gh(github: GitHub, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> GitHubCli:
    monkeypatch.setattr(github_cli, "PAUSES", (0.0, 0.0))
    coloured = {"CLICOLOR_FORCE": "1", "GH_FORCE_TTY": "80", "GH_DEBUG": "api", "GH_REPO": "them/other"}
    return GitHubCli(github.address, environment | coloured)


def test_a_refusal_is_an_answer_and_only_what_can_recover_is_requested_again(
    github: GitHub, gh: GitHubCli
) -> None:
    for fault, calls, message in (
        (403, 1, "403 Resource not accessible"),
        (404, 1, "404 Not Found"),
        (422, 1, "422 Failed"),
        (500, 3, "500 S"),
    ):
        github.calls.clear()
        github.faults = {f"GET /{LAB}": [fault]}
        answer = gh.ask("GET", LAB)
        assert (answer.ok, answer.status, len(github.calls)) == (False, fault, calls)
        assert answer.message.startswith(message)
    github.faults = {f"GET /{LAB}": [502, "cut", 0]}
    answer = gh.ask("GET", LAB)
    assert (answer.ok, answer.content) == (True, github.repository), "without colours"


@pytest.mark.parametrize(("fault", "status"), [(0, 201), (500, 500)])
def test_a_change_is_asked_for_once_with_its_body(
    github: GitHub, gh: GitHubCli, fault: int, status: int
) -> None:
    call, body = f"POST /{LAB}/actions/variables", {"name": "A", "value": 'is "quoted" → ü\n$(x)'}
    github.faults = {call: [fault]}
    assert gh.ask("POST", f"{LAB}/actions/variables", body).status == status
    assert (github.calls, [json.loads(text) for text in github.bodies]) == ([call], [body])
    assert github.variables == ({"A": body["value"]} if status == 201 else {})


@pytest.mark.parametrize(("method", "calls"), [("GET", 3), ("PUT", 1)])
def test_no_answer_is_trouble_and_says_so(github: GitHub, gh: GitHubCli, method: str, calls: int) -> None:
    github.faults = {".*": ["cut"]}
    with pytest.raises(ServiceTroubleError, match=r"localhost:\d+ could not be reached: .*EOF"):
        gh.ask(method, LAB)
    assert len(github.calls) == calls


def test_an_address_where_nobody_answers_is_trouble(environment: dict[str, str], monkeypatch: Any) -> None:
    monkeypatch.setattr(github_cli, "PAUSES", ())
    with pytest.raises(ServiceTroubleError, match="connection refused"):
        GitHubCli("localhost:1", environment).ask("GET", LAB)


@pytest.mark.parametrize(
    "headers", ["X-Ratelimit-Remaining: 0\nX-Ratelimit-Reset: 1795345200", "Retry-After: 60"]
)
def test_a_rate_limit_is_named(headers: str) -> None:
    output = f'HTTP/2.0 403 Forbidden\n{headers}\n\n{{"message": "API rate limit exceeded"}}'
    with pytest.raises(ServiceTroubleError, match="rate limit is reached"):
        github_cli._parse_answer(output)


def test_a_secret_is_sealed_by_gh_and_its_value_is_said_nowhere(github: GitHub, gh: GitHubCli) -> None:
    place = ["--env", "training", "--repo", f"{github.address}/me/lab"]
    value = "-----BEGIN KEY-----\nvery secret\n-----END KEY-----"
    gh.set_secret("TRAINYARD_SIGNING_KEY", place, value)
    assert list(github.secrets["training"]) == ["TRAINYARD_SIGNING_KEY"]
    assert "secret" not in "".join(github.bodies)
    github.faults = {"PUT .*": [403]}
    with pytest.raises(ServiceError, match=r"gh secret set TRAINYARD_SIGNING_KEY: .*403") as refused:
        gh.set_secret("TRAINYARD_SIGNING_KEY", place, value)
    assert "very" not in str(refused.value)


def test_a_missing_program_is_a_usage_error(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"cli\.github\.com"):
        GitHubCli("github.com", environment | {"PATH": "/nowhere"}).require_login()


def test_a_person_types_a_secret_into_gh_itself(
    github: GitHub, environment: dict[str, str], terminal: Callable[..., tuple[int, str]]
) -> None:
    program = (
        "import os, sys; from trainyard.gateways.github_cli import GitHubCli; "
        "GitHubCli(sys.argv[1], os.environ).set_secret('WANDB_API_KEY', sys.argv[2:], None)"
    )
    place = ["--env", "training", "--repo", f"{github.address}/me/lab"]
    line = [sys.executable, "-c", program, github.address, *place]
    code, screen = terminal(line, environment, "typed-secret\r")
    assert (code, list(github.secrets["training"])) == (0, ["WANDB_API_KEY"])
    assert "typed-secret" not in screen
