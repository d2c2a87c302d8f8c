"""compare.yml: what is measured is what the change makes of the base as it is now."""

import subprocess
from pathlib import Path
from typing import Any

import yaml


def git(folder: Path, *arguments: str) -> str:
    person = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    line = ["git", "-C", str(folder), *person, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_the_merge_is_compared_with_the_base_that_it_merges_into(root: Path, tmp_path: Path) -> None:
    text = (root / ".github" / "workflows" / "compare.yml").read_text()
    steps: list[dict[str, Any]] = yaml.load(text, Loader=yaml.BaseLoader)["jobs"]["measure"]["steps"]
    [checkout] = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkout["with"]["ref"] == "${{ github.sha }}"
    origin, head = tmp_path / "origin", tmp_path / checkout["with"]["path"]
    origin.mkdir()
    git(origin, "init", "--quiet", "--initial-branch=main")
    git(origin, "commit", "--quiet", "--allow-empty", "--message", "where the branch began")
    git(origin, "checkout", "--quiet", "-b", "change")
    git(origin, "commit", "--quiet", "--allow-empty", "--message", "the change")
    git(origin, "checkout", "--quiet", "main")
    git(origin, "commit", "--quiet", "--allow-empty", "--message", "what the base got since")
    base = git(origin, "rev-parse", "HEAD")
    git(origin, "merge", "--quiet", "--no-ff", "--no-edit", "change")
    depth = f"--depth={checkout['with']['fetch-depth']}"
    git(tmp_path, "clone", "--quiet", depth, origin.as_uri(), str(head))
    [beside] = [step["run"] for step in steps if "worktree" in step.get("run", "")]
    subprocess.run(["bash", "-ec", beside], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert git(tmp_path / "base", "rev-parse", "HEAD") == base
