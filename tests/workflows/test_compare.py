"""compare.yml: it measures the merge of the change against the present base."""

import subprocess
from pathlib import Path
from typing import Any

from tests.cases import each_case
from tests.git_repository import git
from tests.workflows.conftest import shell, shipped_workflow


def test_the_merge_is_compared_with_the_base_that_it_merges_into(tmp_path: Path) -> None:
    steps = shipped_workflow("compare.yml").jobs["measure"]["steps"]
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


def test_new_locks_are_proposed_and_compared_only_where_they_changed(expressions: Any) -> None:
    jobs = shipped_workflow("update_locks.yml").jobs
    for changed, runs in (("true", True), ("false", False), ("", False)):
        needs = {"resolve": {"outputs": {"changed": changed}}}
        assert expressions.holds(jobs["propose"]["if"], needs=needs) is runs
    assert jobs["compare"]["needs"] == "propose"
    writes = [name for name, job in jobs.items() if job["permissions"].get("contents") == "write"]
    assert writes == ["propose"]
    lines = " ".join(step.get("run", "") for step in jobs["propose"]["steps"])
    assert "make" not in lines and "/setup" not in str(jobs["propose"]["steps"]), "no new package runs there"


def test_a_comparison_is_of_the_pull_request_or_of_what_the_caller_names(expressions: Any) -> None:
    jobs = shipped_workflow("compare.yml").jobs
    comment = jobs["comment"]
    event: dict[str, Any] = {"pull_request": {"number": 5, "head": {"repo": {"full_name": "o/r"}}}}
    needs = {"measure": {"result": "success", "outputs": {}}}
    of_pull = {"inputs": {}, "github": {"sha": "merge", "repository": "o/r", "event": event}}
    called = {"commit": "new", "pull_request": "57"}
    of_call = {"inputs": called, "github": {"sha": "main", "repository": "o/r", "event": {}}}
    for context, commit, pull in ((of_pull, "merge", 5), (of_call, "new", "57")):
        assert expressions.value(jobs["measure"]["steps"][0]["with"]["ref"], **context) == commit
        assert expressions.value(comment["steps"][-1]["env"]["PULL_REQUEST"], **context) == pull
        assert expressions.holds(comment["if"], needs=needs, **context)
        for status in ("failure", "cancelled"):
            assert not expressions.holds(comment["if"], status=status, needs=needs, **context)
    for head in ({"full_name": "stranger/r"}, None):  # a deleted fork has none
        event["pull_request"]["head"]["repo"] = head
        assert not expressions.holds(comment["if"], needs=needs, **of_pull), "own branches only"


def test_any_repository_gets_a_comment_on_its_own_branches_only(expressions: Any) -> None:
    """act/test_compare_and_release.py plays it."""
    jobs = shipped_workflow("comment.yml").jobs
    for repository, runs in (("o/r", True), ("stranger/r", False)):
        event = {"pull_request": {"number": 5, "head": {"repo": {"full_name": repository}}}}
        context = {"github": {"repository": "o/r", "event": event}}
        assert expressions.holds(jobs["compare"]["if"], **context) is runs, "own branches only"
    writing = [name for name, job in jobs.items() if "write" in job["permissions"].values()]
    assert (writing, jobs["comment"]["needs"]) == (["comment"], "compare")
    assert "uses: $/" not in str(jobs["comment"]), "no code of the change runs where a token may write"


@each_case("count", range(6))
def test_a_quota_that_is_used_up_is_no_red_coverage(tmp_path: Path, count: int) -> None:
    """Coverage is judged if the data of every group was stored; else a warning says that it was not."""
    jobs = shipped_workflow("ci.yml").jobs
    groups = [each["group"] for each in jobs["test"]["strategy"]["matrix"]["include"]]
    [step] = [step for step in jobs["coverage"]["steps"] if step["name"] == "Judge the coverage"]
    assert step["env"]["GROUPS_OF_TESTS"] == str(len(groups))
    for name in groups[:count]:
        (tmp_path / f"coverage-{name}").touch()
    (tmp_path / "Makefile").write_text("coverage:\n\t@echo judged\n")
    done = shell(step["run"], tmp_path, **step["env"])
    assert ("judged" in done.stdout.splitlines()) is (count == len(groups))
    assert ("::warning" in done.stdout) is (count < len(groups))
