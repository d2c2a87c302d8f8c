"""The scripts of a release on a repository made for it: checked, built twice alike, published by gh."""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Program = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
GH = """#!/bin/sh
printf '%s\\n' "$*" >> "$GH_RECORD"
if [ "$2" = view ]; then
  [ -f "$GH_VIEW" ] || { echo "${GH_TROUBLE:-release not found}" >&2; exit 1; }
  cat "$GH_VIEW"
fi
[ "$2" != "$GH_REFUSES" ] || { echo "HTTP 403: Resource not accessible" >&2; exit 1; }
"""


def git(folder: Path, *arguments: str) -> str:
    person = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    line = ["git", "-C", str(folder), *person, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout


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
    program: Program, repository: Path, tmp_path: Path
) -> None:
    where = ("--root", repository, "--branch", "main", "--notes", "notes.md")
    outputs = tmp_path / "outputs"
    done = program("check_release.py", "--tag", "v0.1.0", *where, GITHUB_OUTPUT=str(outputs))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "notes.md").read_text() == "- everything\n"
    assert "\n0.1.0\n" in outputs.read_text()
    assert "\nfalse\n" in outputs.read_text()
    git(repository, "checkout", "--quiet", "-b", "side")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Not merged")
    done = program("check_release.py", "--tag", "v0.1.0", *where)
    assert (done.returncode, "The commit is not on main: merge it first" in done.stderr) == (1, True)
    assert program("check_release.py", "--tag", "0.1.0", *where).returncode == 2


def test_a_commit_is_built_twice_to_the_same_bytes_and_without_what_is_not_committed(
    program: Program, repository: Path, tmp_path: Path
) -> None:
    sums = []
    for name in ("one", "two"):
        done = program("build_release.py", "--root", repository, "--output", name)
        assert done.returncode == 0, done.stderr
        sums.append((tmp_path / name / "SHA256SUMS").read_text())
        (repository / "src" / "trainyard" / "secret.py").write_text("TOKEN = 'x'\n")
    assert sums[0] == sums[1]
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    stem = "trainyard_ci-0.1.0"
    assert names == ["SHA256SUMS", f"{stem}-docs.tar.gz", f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"]
    with tarfile.open(tmp_path / "one" / f"{stem}-docs.tar.gz") as archive:
        assert f"{stem}-docs/docs/page.md" in archive.getnames()
    line = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(line, cwd=tmp_path / "one", check=True, timeout=60)
    again = program("build_release.py", "--root", repository, "--output", "one")
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


@dataclass(frozen=True)
class Hub:
    """A stand-in for gh: `record` has its calls, `view` its answer about the release."""

    record: Path
    view: Path
    environment: dict[str, str]

    def asked(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def has(self, *, draft: bool, names: list[str]) -> None:
        assets = [{"name": name} for name in names]
        self.view.write_text(json.dumps({"isDraft": draft, "assets": assets}))


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "gh").write_text(GH)
    (programs / "gh").chmod(0o755)
    record, view = tmp_path / "asked", tmp_path / "view.json"
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "GH_RECORD": str(record), "GH_VIEW": str(view)}
    return Hub(record, view, environment)


@pytest.fixture
def publish(program: Program, hub: Hub, tmp_path: Path) -> Callable[..., Any]:
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "a.whl").write_text("wheel")
    (tmp_path / "notes.md").write_text("- everything\n")
    sums = subprocess.run(["sha256sum", "a.whl"], cwd=dist, capture_output=True, text=True, check=True).stdout
    (dist / "SHA256SUMS").write_text(sums)
    line = ("publish_release.py", "--tag", "v0.1.0", "--dist", "dist", "--notes", "notes.md")
    return lambda *more, **environment: program(*line, *more, **hub.environment | environment)


def test_a_release_is_a_draft_until_every_file_is_there(publish: Callable[..., Any], hub: Hub) -> None:
    done = publish("--preliminary", "true")
    assert done.returncode == 0, done.stderr
    title = "--title Trainyard 0.1.0 --notes-file notes.md --prerelease"
    assert hub.asked() == [
        "release view v0.1.0 --json isDraft,assets",
        f"release create v0.1.0 --draft --verify-tag {title}",
        "release upload v0.1.0 --clobber dist/a.whl dist/SHA256SUMS",
        "release edit v0.1.0 --draft=false",
    ]


@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_a_release_without_an_attestation_says_so(
    publish: Callable[..., Any], hub: Hub, tmp_path: Path, outcome: str
) -> None:
    assert publish("--attested", outcome).returncode == 0
    notes = (tmp_path / "notes.md").read_text()
    assert ("GitHub did not attest these files" in notes) is (outcome == "failure")


def test_what_was_broken_off_goes_on_and_what_is_public_is_not_changed(
    publish: Callable[..., Any], hub: Hub
) -> None:
    hub.has(draft=True, names=["a.whl"])
    assert publish().returncode == 0
    assert [line.split()[1] for line in hub.asked()] == ["view", "upload", "edit"]
    hub.record.unlink()
    hub.has(draft=False, names=["a.whl", "SHA256SUMS"])
    assert publish().returncode == 0
    hub.has(draft=False, names=["other.whl"])
    done = publish()
    assert (done.returncode, "is public with other files" in done.stderr) == (1, True)
    assert {line.split()[1] for line in hub.asked()} == {"view"}


def test_a_refusal_of_github_is_one_and_leaves_a_draft(publish: Callable[..., Any], hub: Hub) -> None:
    done = publish(GH_REFUSES="upload")
    assert (done.returncode, "HTTP 403" in done.stderr) == (4, True)
    assert not any("--draft=false" in line for line in hub.asked())
    assert publish(GH_TROUBLE="HTTP 502").returncode == 4


def test_other_bytes_than_those_that_were_built_are_not_published(
    publish: Callable[..., Any], hub: Hub, tmp_path: Path
) -> None:
    assert publish("--dry-run").stdout == "v0.1.0 would be published with SHA256SUMS, a.whl\n"
    (tmp_path / "dist" / "a.whl").write_text("other")
    done = publish()
    assert (done.returncode, "not those of SHA256SUMS" in done.stderr) == (1, True)
    assert hub.asked() == []
