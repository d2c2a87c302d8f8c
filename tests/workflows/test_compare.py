"""compare.yml: it measures the merge of the change against the present base."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml


def git(folder: Path, *arguments: str) -> str:
    person = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    line = ["git", "-C", str(folder), *person, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_the_merge_is_compared_with_the_base_that_it_merges_into(root: Path, tmp_path: Path) -> None:
    text = (root / ".github" / "workflows" / "compare.yml").read_text()
    steps: list[dict[str, Any]] = yaml.load(text, Loader=yaml.BaseLoader)["jobs"]["measure"]["steps"]
    [checkout] = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkout["with"]["ref"] == "${{ inputs.commit || github.sha }}"
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


def test_new_locks_are_proposed_and_compared_only_where_they_changed(root: Path, expressions: Any) -> None:
    text = (root / ".github" / "workflows" / "update_locks.yml").read_text()
    jobs = yaml.load(text, Loader=yaml.BaseLoader)["jobs"]
    for changed, runs in (("true", True), ("false", False), ("", False)):
        needs = {"resolve": {"outputs": {"changed": changed}}}
        assert expressions.holds(jobs["propose"]["if"], needs=needs) is runs
    assert jobs["compare"]["needs"] == "propose"
    writes = [name for name, job in jobs.items() if job["permissions"].get("contents") == "write"]
    assert writes == ["propose"]
    lines = " ".join(step.get("run", "") for step in jobs["propose"]["steps"])
    assert "make" not in lines and "/setup" not in str(jobs["propose"]["steps"]), "no new package runs there"


def test_a_comparison_is_of_the_pull_request_or_of_what_the_caller_names(
    root: Path, expressions: Any
) -> None:
    text = (root / ".github" / "workflows" / "compare.yml").read_text()
    content = yaml.load(text, Loader=yaml.BaseLoader)
    ref = content["jobs"]["measure"]["steps"][0]["with"]["ref"]
    comment = content["jobs"]["comment"]
    number = comment["steps"][-1]["env"]["PULL_REQUEST"]
    event: dict[str, Any] = {"pull_request": {"number": 5, "head": {"repo": {"full_name": "o/r"}}}}
    of_pull = {"inputs": {}, "github": {"sha": "merge", "repository": "o/r", "event": event}}
    of_call = {
        "inputs": {"commit": "new", "pull_request": "57"},
        "github": {"sha": "main", "repository": "o/r", "event": {}},
    }
    for context, commit, pull in ((of_pull, "merge", 5), (of_call, "new", "57")):
        assert expressions.value(ref, **context) == commit
        assert expressions.value(number, **context) == pull
        assert expressions.holds(comment["if"], **context)
    event["pull_request"]["head"]["repo"]["full_name"] = "stranger/r"
    assert not expressions.holds(comment["if"], **of_pull)


@pytest.mark.parametrize("count", range(6))
def test_a_quota_that_is_used_up_is_no_red_coverage(
    root: Path, tmp_path: Path, shell: Any, count: int
) -> None:
    """Coverage is judged if the data of every group was stored; else a warning says that it was not."""
    text = (root / ".github" / "workflows" / "ci.yml").read_text()
    jobs = yaml.load(text, Loader=yaml.BaseLoader)["jobs"]
    groups = [each["group"] for each in jobs["test"]["strategy"]["matrix"]["include"]]
    [step] = [step for step in jobs["coverage"]["steps"] if step["name"] == "Judge the coverage"]
    assert step["env"]["GROUPS_OF_TESTS"] == str(len(groups))
    for name in groups[:count]:
        (tmp_path / f"coverage-{name}").touch()
    (tmp_path / "Makefile").write_text("coverage:\n\t@echo judged\n")
    done = shell(step["run"], tmp_path, **step["env"])
    assert ("judged" in done.stdout.splitlines()) is (count == len(groups))
    assert ("::warning" in done.stdout) is (count < len(groups))
