"""The gateway to `gh`, with the real `gh`: its login, and secrets that stay hidden."""

import sys
from collections.abc import Callable

import pytest
from tests.scripts.init_github.stand_in import GitHub as StandIn

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.gateways.github_api import GitHub, server_of
from trainyard.gateways.github_cli import GitHubCli

LAB = "repos/me/lab"


@pytest.fixture
def gh(github: StandIn, environment: dict[str, str]) -> GitHubCli:
    coloured = {"CLICOLOR_FORCE": "1", "GH_FORCE_TTY": "80", "GH_DEBUG": "api", "GH_REPO": "them/other"}
    return GitHubCli(github.address, environment | coloured)


def test_the_login_is_that_of_gh_and_a_call_carries_it(
    github: StandIn, gh: GitHubCli, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", environment["SSL_CERT_FILE"])
    ask = GitHub("me/lab", gh.token(), server=server_of(github.address)).ask
    assert (ask("GET", LAB).status, ask("GET", LAB).content) == (200, github.repository)
    call, body = f"POST /{LAB}/actions/variables", {"name": "A", "value": 'is "quoted" → ü\n$(x)'}
    assert ask("POST", f"{LAB}/actions/variables", body).status == 200
    assert (github.variables, github.calls[-1]) == ({"A": body["value"]}, call)
    github.faults = {f"GET /{LAB}": [403]}
    assert ask("GET", LAB).message.startswith("403 Resource not accessible")
    github.faults = {f"GET /{LAB}": ["limit"]}
    with pytest.raises(ServiceTroubleError, match="rate limit is reached"):
        ask("GET", LAB)


def test_a_secret_is_sealed_by_gh_and_its_value_is_said_nowhere(github: StandIn, gh: GitHubCli) -> None:
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
        GitHubCli("github.com", environment | {"PATH": "/nowhere"}).token()


def test_a_person_types_a_secret_into_gh_itself(
    github: StandIn, environment: dict[str, str], terminal: Callable[..., tuple[int, str]]
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
