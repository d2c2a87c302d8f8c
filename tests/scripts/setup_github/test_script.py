"""The script as a person runs it, with the real `gh`, against a stand-in of GitHub."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
STORE = "file:///mnt/storage/store"
REGISTRATION = "AREGISTRATIONTOKEN"


@pytest.mark.slow
def test_a_copy_comes_to_green_and_every_step_is_checked(github: Any, setup_github: Any) -> None:
    value = "wandb-very-secret"
    begun = setup_github("--store", STORE, "--secret", "WANDB_API_KEY", WANDB_API_KEY=value)
    assert begun.returncode == 1, begun.stdout + begun.stderr
    assert github.variables == {"TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]', "TRAINYARD_STORE": STORE}
    names = {place: [policy["name"] for policy in found] for place, found in github.policies.items()}
    assert names == {
        "training": ["main"],
        "watch": ["main"],
        "release": ["v*"],
        "images": ["main"],
        "eks": ["main"],
        "locks": ["main"],
    }
    assert len(github.secrets["training"]["WANDB_API_KEY"]) > len(value), "sealed by gh"
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
    ended = setup_github("--secret", "WANDB_API_KEY")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("All 15 steps are checked.\n")
    assert github.variables["TRAINYARD_WATCH"] == "on"
    assert len(github.changes()) == before + 1
    assert REGISTRATION not in ended.stdout


def test_the_calls_that_a_dry_run_prints_do_what_the_run_would(
    github: Any, setup_github: Any, environment: dict[str, str]
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
    assert [policy["name"] for policy in github.policies["training"]] == ["main"]
    assert REGISTRATION not in done.stdout
    assert " --labels gpu,h100" in done.stdout


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"fork": True, "parent": {"full_name": "them/lab"}}, 2, "fork of them/lab"),
        (
            {"fork": True},
            2,
            "git remote rename origin upstream; gh repo create OWNER/NAME --private --source . --push",
        ),
        ({"archived": True}, 2, "is archived"),
        ({"permissions": {"admin": False}}, 4, "not an administrator of me/lab"),
        ({"full_name": "me/other"}, 4, "has no repository me/lab"),
    ],
)
def test_a_repository_that_cannot_be_set_up_is_named_at_once(
    github: Any, setup_github: Any, change: dict[str, Any], code: int, words: str
) -> None:
    github.repository |= change
    done = setup_github("--store", STORE)
    assert (done.returncode, done.stdout, github.changes()) == (code, "", [])
    assert words in done.stderr


@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        ({"GH_ENTERPRISE_TOKEN": ""}, 2, "gh auth login --hostname localhost:"),
        ({"GH_ENTERPRISE_TOKEN": "revoked"}, 4, "401 Bad credentials. Log in again: gh auth login"),
        ({"PATH": "/nowhere"}, 2, "gh: not found"),
    ],
)
def test_a_login_that_is_missing_says_what_to_do(
    setup_github: Any, variables: dict[str, str], code: int, words: str
) -> None:
    done = setup_github("--store", STORE, **variables)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_a_rate_limit_ends_it(github: Any, setup_github: Any) -> None:
    github.faults = {"GET .*/actions/variables": ["limit"]}
    done = setup_github("--store", STORE)
    assert done.returncode == 4
    assert "rate limit" in done.stdout
    assert github.calls.count("GET /repos/me/lab/actions/variables") == 1, "asking again would prolong it"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--store", "ftp://x"), "is not a store such as"),
        (("--store", "file://relative"), "is not a store such as"),
        (("--labels", '["gpu"'), "is not a JSON list of labels"),
        (("--labels", "gpu,a  b"), "a label has letters"),
        (("--variable", "TRAINYARD_NOTHING=1"), "is not a variable that the workflows read"),
        (("--variable", "TRAINYARD_STORE=file:///x"), "has a flag of its own: --store"),
        (("--variable", "TRAINYARD_DEADLINE"), "is not NAME=VALUE"),
        (("--variable", "WANDB_API_KEY=x"), "is a secret: --secret WANDB_API_KEY"),
        (("--secret", "AWS_SECRET_ACCESS_KEY"), "is not a secret that the workflows read"),
        (("--secret", "prod/WANDB_API_KEY"), "is not an environment"),
        (("--aws-role", "trainyard-ci"), "is not a role such as"),
        (("--repository", "lab"), "is not OWNER/REPO"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_asked(
    github: Any, setup_github: Any, arguments: tuple[str, ...], words: str
) -> None:
    done = setup_github(*arguments)
    assert (done.returncode, done.stdout, github.calls) == (2, "", [])
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def copied(tmp_path: Path, remote: str) -> Path:
    """A clone in a folder with a space, with nothing but what the script needs."""
    root = tmp_path / "a copy"
    root.mkdir()
    subprocess.run(["git", "init", "--quiet", root], check=True)
    if remote:
        subprocess.run(["git", "-C", root, "remote", "add", "origin", remote], check=True)
    return root


def in_copy(root: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-S", "-m", "trainyard", "init", "github", *arguments]
    variables = environment | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(line, cwd=root, env=variables, capture_output=True, text=True, timeout=60)


def test_the_repository_is_that_of_the_remote_and_its_login_is_shown_to_nobody(
    github: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    github.repository["archived"] = True
    for remote in (
        f"https://me:hidden-token@{github.address}/me/lab.git",
        f"https://{github.address}/me/lab",
    ):
        done = in_copy(copied(tmp_path, remote), environment, "--dry-run")
        assert "me/lab is archived" in done.stderr
        assert "hidden" not in done.stdout + done.stderr
        shutil.rmtree(tmp_path / "a copy")


@pytest.mark.parametrize("version", [(3, 6, 8), (3, 9, 6), (3, 10, 13)])
def test_a_python_that_is_too_old_is_told_what_to_do(version: tuple[int, ...]) -> None:
    begun = f"import runpy, sys; sys.version_info = {version}; runpy.run_module('trainyard')"
    done = subprocess.run([sys.executable, "-c", begun], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs Python 3.11 or newer" in done.stderr
    assert ".venv/bin/trainyard COMMAND" in done.stderr


@pytest.mark.parametrize("remote", ["", "/srv/git/lab.git", "https://me:hidden-token@example.org"])
def test_a_copy_without_a_repository_on_github_is_told_how_to_push_it(
    environment: dict[str, str], tmp_path: Path, remote: str
) -> None:
    done = in_copy(copied(tmp_path, remote), environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--repository OWNER/" in done.stderr
    assert "hidden" not in done.stderr


@pytest.mark.parametrize(("typed", "kept"), [("y\n", False), ("\x04", True)])
def test_what_differs_is_shown_and_asked_for_on_a_terminal(
    github: Any, complete: Any, environment: dict[str, str], tmp_path: Path, typed: str, kept: bool
) -> None:
    complete(github)
    github.faults = {"GET .*/environments/.*": ["limit"]}  # another test covers the rest
    main, side = pty.openpty()
    line = [sys.executable, "-S", "-m", "trainyard", "init", "github"]
    line += ["--repository", f"{github.address}/me/lab", "--store", "s3://ml-runs/phase2"]
    process = subprocess.Popen(
        line,
        stdin=side,
        stdout=subprocess.PIPE,
        stderr=side,
        env=environment | {"PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
    )
    os.close(side)
    said = b""
    while b"change it? [y/N]" not in said:
        said += os.read(main, 4096)
    words = " ".join(said.decode().split())  # of a terminal of 80 columns
    assert "TRAINYARD_STORE: file:///mnt/storage/store → s3://ml-runs/phase2" in words
    os.write(main, typed.encode())
    out, _ = process.communicate(timeout=60)
    os.close(main)
    assert process.returncode == 4
    assert (github.variables["TRAINYARD_STORE"] == STORE) is kept
    assert (b"not changed; --yes changes it" in b" ".join(out.split())) is kept
