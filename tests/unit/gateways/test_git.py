import subprocess
from pathlib import Path

import pytest

from trainyard.gateways.git import git_facts


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Begin")
    return tmp_path


def test_a_clean_tree_is_known_by_its_commit(repository: Path) -> None:
    assert git_facts(repository) == {
        "commit": git(repository, "rev-parse", "HEAD"),
        "dirty": False,
        "branch": "main",
    }


def test_changed_code_is_dirty_and_its_difference_has_a_digest(repository: Path) -> None:
    digests = set()
    for content in ("a = 2\n", "a = 3\n"):
        (repository / "src" / "a.py").write_text(content)
        facts = git_facts(repository)
        assert facts["dirty"] is True
        digests.add(facts["diff_sha256"])
    (repository / "src" / "a.py").write_text("a = 1\n")
    (repository / "src" / "new.py").write_text("")
    digests.add(git_facts(repository)["diff_sha256"])
    assert len(digests) == 3


def test_files_that_cannot_change_what_runs_are_not_dirt(repository: Path) -> None:
    (repository / "my-run").mkdir()
    (repository / "my-run" / "run.json").write_text("{}")
    assert git_facts(repository)["dirty"] is False


def test_outside_a_repository_nothing_is_known(tmp_path: Path) -> None:
    assert git_facts(tmp_path) == {}


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert "branch" not in git_facts(repository)
