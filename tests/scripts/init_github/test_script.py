"""The script as a person runs it, with the real `gh`, against a stand-in of GitHub."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.init_github.stand_in import ENVIRONMENTS, REGISTRATION, GitHub, complete

from trainyard.command import handler
from trainyard.commands import init_github

STORE = "file:///mnt/storage/store"


@pytest.mark.slow
def test_a_copy_comes_to_green_and_every_step_is_checked(github: GitHub, setup_github: Any) -> None:
    value = "wandb-very-secret"
    begun = setup_github("--store", STORE, "--secret", "PROGRAM_ENV", PROGRAM_ENV=value)
    assert begun.returncode == 1, begun.stdout + begun.stderr
    assert github.variables == {"TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]', "TRAINYARD_STORE": STORE}
    names = {place: [policy["name"] for policy in found] for place, found in github.policies.items()}
    limits = {"release": ["v*"], **{key: ["main", "trainyard-lineage-*"] for key in ("training", "eks")}}
    assert names == {place: limits.get(place, ["main"]) for place in ENVIRONMENTS}
    assert len(github.secrets["training"]["PROGRAM_ENV"]) > len(value), "sealed by gh"
    assert value not in begun.stdout + begun.stderr + "".join(github.bodies)
    assert begun.stdout.count(REGISTRATION) == 1
    assert "the token in it is for one hour, until 11:12 UTC" in begun.stdout.replace("\n   ", " ")
    assert "gh workflow run training_ci.yml --repo" in begun.stdout
    rows = begun.stdout.partition("Your remaining")[0].splitlines()
    assert [line for line in rows if len(line) > 80] == []
    assert [line.split()[-1] for line in rows if line.startswith("  runner  ")] == ["you"]

    github.runners = [github.runner()]
    github.train()
    before = len(github.changes())
    ended = setup_github("--secret", "PROGRAM_ENV", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("All 16 steps are checked.\n")
    assert github.variables["TRAINYARD_WATCH"] == "on"
    assert "\n  schedule:" in github.files["watch_runners.yml"]
    assert len(github.changes()) == before + 2
    assert REGISTRATION not in ended.stdout


def test_the_calls_that_a_dry_run_prints_do_what_the_run_would(
    github: GitHub, setup_github: Any, environment: dict[str, str]
) -> None:
    done = setup_github("--store", STORE, "--labels", "self-hosted,gpu,h100", "--dry-run", "--json")
    assert done.returncode == 1
    assert github.changes() == []
    told = json.loads(done.stdout)
    assert (told["ready"], told["repository"]) == (False, "me/lab")
    calls = [call for step in told["steps"] if step["verdict"] == "would do" for call in step["calls"]]
    script = "\n".join(["set -e", *calls])
    ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert github.variables["TRAINYARD_RUNNER_LABELS"] == '["self-hosted","gpu","h100"]'
    assert [policy["name"] for policy in github.policies["training"]] == ["main", "trainyard-lineage-*"]
    assert REGISTRATION not in done.stdout
    assert " --labels gpu,h100" in done.stdout


def test_a_repository_or_login_that_cannot_set_up_is_named_at_once(github: GitHub, setup_github: Any) -> None:
    repository = dict(github.repository)
    forked = "git remote rename origin upstream; gh repo create OWNER/NAME --private --source . --push"
    cases: tuple[tuple[dict[str, Any], int, str], ...] = (
        ({"fork": True, "parent": {"full_name": "them/lab"}}, 2, "fork of them/lab"),
        ({"fork": True}, 2, forked),
        ({"archived": True}, 2, "is archived"),
        ({"permissions": {"admin": False}}, 4, "not an administrator of me/lab"),
        ({"full_name": "me/other"}, 4, "has no repository me/lab"),
        ({"GH_ENTERPRISE_TOKEN": ""}, 2, "gh auth login --hostname localhost:"),
        ({"GH_ENTERPRISE_TOKEN": "revoked"}, 4, "401 Bad credentials. Log in again: gh auth login"),
        ({"PATH": "/nowhere"}, 2, "gh: not found"),
    )
    for change, code, words in cases:
        variables = {name: value for name, value in change.items() if name.isupper()}
        github.repository = repository | {name: change[name] for name in change.keys() - variables.keys()}
        done = setup_github("--store", STORE, **variables)
        assert (done.returncode, done.stdout, github.changes()) == (code, "", []), change
        assert words in done.stderr


def test_a_secret_that_github_refuses_is_hidden_and_one_without_a_value_is_a_command(
    github: GitHub, setup_github: Any
) -> None:
    complete(github)
    value = "-----BEGIN KEY-----\nvery secret\n-----END KEY-----"
    github.faults = {"PUT .*/secrets/.*": 403}
    coloured = {"CLICOLOR_FORCE": "1", "GH_FORCE_TTY": "80", "GH_DEBUG": "api", "GH_REPO": "them/other"}
    done = setup_github("--secret", "TRAINYARD_SIGNING_KEY", TRAINYARD_SIGNING_KEY=value, **coloured)
    assert done.returncode == 4 and "403" in done.stdout
    assert "very" not in done.stdout + done.stderr + "".join(github.bodies)
    asked = setup_github("--secret", "TRAINYARD_SIGNING_KEY")
    assert asked.returncode == 1
    assert "gh secret set TRAINYARD_SIGNING_KEY --env training --repo localhost:" in asked.stdout


WRONG = (
    ("--store ftp://x", "is not a store such as"),
    ("--store file://relative", "is not a store such as"),
    ("""--labels '["gpu"'""", "is not a JSON list of labels"),
    ("--labels 'gpu,a  b'", "a label has letters"),
    ("--variable TRAINYARD_NOTHING=1", "is not a variable that the workflows read"),
    ("--variable TRAINYARD_STORE=file:///x", "has a flag of its own: --store"),
    ("--variable TRAINYARD_DEADLINE", "is not NAME=VALUE"),
    ("--variable PROGRAM_ENV=x", "is a secret: --secret PROGRAM_ENV"),
    ("--secret AWS_SECRET_ACCESS_KEY", "is not a secret that the workflows read"),
    ("--secret prod/PROGRAM_ENV", "is not an environment"),
    ("--aws-role trainyard-ci", "is not a role such as"),
    ("--repository lab", "is not OWNER/REPO"),
)


def test_wrong_usage_is_refused_before_gh_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for arguments, words in WRONG:
        repository = [] if "--repository" in arguments else ["--repository", "me/lab"]
        line = [*shlex.split(arguments), *repository]
        assert handler.exit_code_of(lambda line=line: init_github.main(line)) == 2  # type: ignore[misc]
        printed = capsys.readouterr()
        assert (printed.out, len(printed.err.splitlines())) == ("", 1)
        assert words in printed.err


def copied(folder: Path, remote: str) -> Path:
    """A clone in a folder with a space."""
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    if remote:
        subprocess.run(["git", "-C", folder, "remote", "add", "origin", remote], check=True)
    return folder


def test_the_repository_is_that_of_the_remote_and_its_login_is_shown_to_nobody(
    github: GitHub, setup_github: Any, tmp_path: Path
) -> None:
    github.repository["archived"] = True
    ours, elsewhere = f"{github.address}/me/lab", "--repository OWNER/"
    for number, (remote, words) in enumerate(
        (
            (f"https://me:hidden-token@{ours}.git", "me/lab is archived"),
            (f"https://{ours}", "me/lab is archived"),
            ("", elsewhere),
            ("/srv/git/lab.git", elsewhere),
            ("https://me:hidden-token@example.org", elsewhere),
        )
    ):
        done = setup_github("--dry-run", folder=copied(tmp_path / f"copy {number}", remote))
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr and "hidden" not in done.stderr


def test_a_python_that_is_too_old_is_reported_with_what_to_do() -> None:
    begun = "import runpy, sys; sys.version_info = (3, 10, 13); runpy.run_module('trainyard')"
    done = subprocess.run([sys.executable, "-c", begun], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs Python 3.11 or newer" in done.stderr
    assert ".venv/bin/trainyard COMMAND" in done.stderr
