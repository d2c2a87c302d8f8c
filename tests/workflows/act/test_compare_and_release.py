"""compare.yml and release.yml, played: a comment on what got worse, and a tag that becomes a release."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.act

JUDGED = """\
on:
  workflow_call:
jobs:
  ci:
    runs-on: ubuntu-24.04
    steps:
      - run: true
"""
GH = '#!/bin/sh\necho "$*" >> "$RECORD/gh"\n[ "$2" != view ] || { echo "release not found" >&2; exit 1; }\n'


@pytest.fixture
def branch(stage: Any, tmp_path: Path) -> Callable[..., str]:
    """Commits changed files, by their names, to the stage's own copy of the repository; gives the commit."""
    import subprocess

    def git(*arguments: str) -> str:
        person = ("-c", "user.name=S", "-c", "user.email=s@example.org", "-c", "commit.gpgsign=false")
        line = ["git", "-C", str(tmp_path / "own"), *person, *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    shutil.copytree(stage.repository, tmp_path / "own", symlinks=True)

    def change(files: dict[str, str], *more: tuple[str, ...]) -> str:
        for name, content in files.items():
            (tmp_path / "own" / name).write_text(content)
        git("add", "--all")
        git("commit", "--quiet", "--message", "Change")
        for command in more:
            git(*command)
        return git("rev-parse", "HEAD")

    return change


def test_a_change_that_makes_it_worse_is_red_and_said_in_the_comment(
    stage: Any, branch: Callable[..., str], tmp_path: Path
) -> None:
    rules = "config: configs/tiny.yaml\noverrides: []\nrepeats: 1\ntokens_per_second: 1000\nmemory: 1000\n"
    base = branch({".github/comparison.yml": rules})
    tiny = (tmp_path / "own/configs/tiny.yaml").read_text()
    head = branch(
        {
            "configs/tiny.yaml": tiny.replace("max_steps: 12", "max_steps: 12\n  learning_rate: 1.0e-9"),
            ".github/comparison.yml": rules + "loss: 1000\n",
        }
    )
    stage = replace(stage, repository=tmp_path / "own")
    side = {"repo": {"full_name": "stage/trainyard"}}
    pull = {"number": 57, "base": {"sha": base, **side}, "head": {"sha": head, **side}}
    played = stage.play(
        "pull_request",
        payload={"number": 57, "pull_request": pull, "repository": {"full_name": "stage/trainyard"}},
        environment={"PYTHONPATH": "head/src:src", "GITHUB_REPOSITORY": "stage/trainyard"},
        workflow="compare.yml",
        job="comment",
    )
    assert played.steps["Compare"] == "failure", played.log
    assert played.exit_code == 1
    assert played.summary.startswith(f"### ❌ Worse: loss, validation loss · `{base[:7]}` → `{head[:7]}`")
    assert [each["path"] for each in played.dispatched] == ["/repos/stage/trainyard/issues/57/comments"]
    assert played.summary.strip().split("\n\n")[1] in played.dispatched[0]["body"]
    record = json.loads((played.record / "artifacts" / "comparison" / "comparison.json").read_text())
    (base_run,), (head_run,) = record["base"]["runs"], record["head"]["runs"]
    assert head_run["loss"] > base_run["loss"]
    assert all(run["tokens_per_second"] > 0 and run["memory_bytes"] > 50e6 for run in (base_run, head_run))
    assert (played.record / "upload-artifact").read_text() == "comparison 30\n"


def test_a_tag_is_checked_built_attested_and_published(
    stage: Any, branch: Callable[..., str], tmp_path: Path
) -> None:
    log = (tmp_path / "own" / "CHANGELOG.md").read_text()
    branch(
        {
            # What ci.yml holds is judged by itself; here it is only called.
            ".github/workflows/ci.yml": JUDGED,
            "CHANGELOG.md": re.sub(r"^## (\S+), unreleased", r"## \1, 2026-11-21", log, flags=re.M),
            ".gitattributes": ".venv export-ignore\n",
        },
        ("tag", "v0.1.0"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
    )
    program = tmp_path / "programs" / "gh"
    program.write_text(GH)
    program.chmod(0o755)
    played = replace(stage, repository=tmp_path / "own").play(
        "push",
        payload={"ref": "refs/tags/v0.1.0", "repository": {"full_name": "stage/trainyard"}},
        workflow="release.yml",
        job="publish",
    )
    assert played.green, played.log
    dist = played.record / "artifacts" / "release" / "dist"
    names = sorted(path.name for path in dist.iterdir())
    assert names[0] == "SHA256SUMS"
    assert [name.rpartition("0.1.0")[2] for name in names[1:]] == [
        "-docs.tar.gz",
        "-py3-none-any.whl",
        ".tar.gz",
    ]
    assert (played.record / "attested").read_text() == (dist / "SHA256SUMS").read_text()
    asked = (played.record / "gh").read_text().splitlines()
    assert [line.split()[1] for line in asked] == ["view", "create", "upload", "edit"]
    assert "v0.1.0 --draft --verify-tag" in asked[1]
    assert asked[3] == "release edit v0.1.0 --draft=false"
