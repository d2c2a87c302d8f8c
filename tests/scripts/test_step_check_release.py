"""A release: what is checked in a repository made for it, and how the workflow publishes it with gh."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.git_repository import git
from tests.scripts.conftest import ROOT, Call

GH = """#!/bin/sh
printf '%s\\n' "$*" >> "$GH_RECORD"
case "$*" in
  "release view"*) [ "$DRAFT" != none ] || { echo "release not found" >&2; exit 1; }; echo "$DRAFT" ;;
  "api repos/{owner}/{repo}/releases/latest"*) echo "$LATEST" ;;
  "api --method "*) case " $REFUSED " in *" $3 "*) exit 1 ;; esac ;;
esac
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that can be released: committed on main, with a dated section in the changelog."""
    root = tmp_path / "repository"
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root)
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0, 2026-11-21\n\n- everything\n")
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text("# Page\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def test_a_tag_of_main_is_released_and_one_of_another_branch_is_not(
    called: Call, repository: Path, tmp_path: Path
) -> None:
    where = ("--root", repository, "--branch", "main", "--notes", "notes.md")
    outputs = tmp_path / "outputs"
    done = called("step check-release", "--tag", "v0.1.0", *where, GITHUB_OUTPUT=str(outputs))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "notes.md").read_text() == "- everything\n"
    assert "\n0.1.0\n" in outputs.read_text()
    assert "\nfalse\n" in outputs.read_text()
    git(repository, "checkout", "--quiet", "-b", "side")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Not merged")
    done = called("step check-release", "--tag", "v0.1.0", *where)
    assert (done.returncode, "The commit is not on main: merge it first" in done.stderr) == (1, True)
    assert called("step check-release", "--tag", "0.1.0", *where).returncode == 2


def run_step(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the job of release.yml that publishes, with a stand-in for gh that records its calls."""
    (folder / "gh").write_text(GH)
    (folder / "gh").chmod(0o755)
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    step = next(step for step in jobs["publish"]["steps"] if step["name"] == name)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "GITHUB_REF_NAME": "v0.1.0", "ATTESTED": "success"}
    environment |= {"PRELIMINARY": "false", "GH_RECORD": str(folder / "record"), **variables}
    line = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_the_newest_release_moves_the_tag_of_its_major_version(tmp_path: Path) -> None:
    base, where = "repos/{owner}/{repo}", {"MOVING": "v0", "GITHUB_SHA": "a" * 40}
    moves = [f"api --method PATCH {base}/git/refs/tags/v0 -f sha={'a' * 40} -F force=true --silent"]
    makes = [*moves, f"api --method POST {base}/git/refs -f ref=refs/tags/v0 -f sha={'a' * 40} --silent"]
    # The latest release, what GitHub refuses -> the calls that change something, the exit code.
    for number, (latest, refused, calls, code) in enumerate(
        (
            ("v0.1.0", "", moves, 0),
            ("v0.1.0", "PATCH", makes, 0),  # there is none yet
            ("v0.1.0", "PATCH POST", makes, 1),
            ("v0.2.0", "", [], 0),
        )
    ):
        (folder := tmp_path / str(number)).mkdir()
        variables = where | {"LATEST": latest, "REFUSED": refused}
        done = run_step("Move the tag of the major version", folder, **variables)
        asked = (folder / "record").read_text().splitlines()
        assert (done.returncode, [line for line in asked if "--method" in line]) == (code, calls)
        assert ("git push --force origin " in done.stdout) is bool(code)


def test_a_release_is_public_once_and_with_the_files_that_were_built(tmp_path: Path) -> None:
    """What GitHub has -> the calls of gh."""
    wrong: list[object] = []
    created = "release create v0.1.0 dist/a.whl dist/a.tar.gz dist/SHA256SUMS --verify-tag"
    created += " --title Trainyard 0.1.0 --notes-file notes.md --prerelease=false"
    calls = {"none": [created], "true": ["release delete v0.1.0 --yes", created], "false": []}
    for draft, expected in calls.items():
        for changed in (False, True):
            folder = tmp_path / f"{draft}-{changed}"
            (folder / "dist").mkdir(parents=True)
            for name in ("a.whl", "a.tar.gz"):
                (folder / "dist" / name).write_text(name)
            subprocess.run(
                "sha256sum *.whl *.tar.gz > SHA256SUMS",
                shell=True,
                cwd=folder / "dist",
                check=True,
                timeout=60,
            )
            if changed:
                (folder / "dist" / "a.whl").write_text("other")
            (folder / "notes.md").write_text("- everything\n")
            done = run_step(
                "Publish", folder, DRAFT=draft, ATTESTED="failure" if draft == "none" else "success"
            )
            record = folder / "record"
            lines = record.read_text().splitlines() if record.exists() else []
            asked = [line for line in lines if " view " not in line]
            if (done.returncode != 0, asked) != (changed, [] if changed else expected):
                wrong.append((draft, changed, done, asked))
            if ("GitHub did not attest" in (folder / "notes.md").read_text()) != (
                draft == "none" and not changed
            ):
                wrong.append((draft, changed, "notes"))
    assert wrong == [], "\n".join(map(repr, wrong))
