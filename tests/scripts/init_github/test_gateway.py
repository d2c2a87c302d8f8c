"""The gateway to `gh`, with the real `gh`: secrets that stay hidden. test_script.py has its login."""

import sys
from collections.abc import Callable

import pytest
from tests.scripts.init_github.stand_in import GitHub as StandIn

from trainyard.errors import ServiceError
from trainyard.gateways.github_cli import GitHubCli


@pytest.fixture
def gh(github: StandIn, environment: dict[str, str]) -> GitHubCli:
    coloured = {"CLICOLOR_FORCE": "1", "GH_FORCE_TTY": "80", "GH_DEBUG": "api", "GH_REPO": "them/other"}
    return GitHubCli(github.address, environment | coloured)


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
