import hashlib
import os
import shutil
from pathlib import Path

import pytest
from tests.git_repository import git

from trainyard.gateways import git as gateway
from trainyard.gateways.git import (
    changed_modules,
    git_facts,
    is_cleaned,
    repository_facts,
    untracked_inputs,
    untracked_modules,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Begin")
    return tmp_path


def test_a_clean_tree_is_identified_by_its_commit(repository: Path) -> None:
    assert git_facts(repository) == {
        "commit": git(repository, "rev-parse", "HEAD"),
        "dirty": False,
        "branch": "main",
    }


def test_git_in_a_container_trusts_its_workspace(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the checkout belongs to another user."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    assert repository_facts(repository) == {}
    monkeypatch.setenv("GITHUB_WORKSPACE", str(repository))
    assert repository_facts(repository)["dirty"] is False


def digests_of_changes(repository: Path) -> set[str]:
    """The digests of two trees with changed code; both trees must be dirty."""
    digests = set()
    for content in ("a = 2\n", "a = 3\n"):
        (repository / "src" / "a.py").write_text(content)
        facts = git_facts(repository)
        assert facts["dirty"] is True
        digests.add(facts["diff_sha256"])
    return digests


def test_changed_code_is_dirty_and_its_difference_has_a_digest(repository: Path) -> None:
    digests = digests_of_changes(repository)
    (repository / "src" / "a.py").write_text("a = 1\n")
    (repository / "src" / "new.py").write_text("")
    digests.add(git_facts(repository)["diff_sha256"])
    assert len(digests) == 3


def test_files_that_cannot_change_what_runs_do_not_make_it_dirty(repository: Path) -> None:
    (repository / "my-run").mkdir()
    (repository / "my-run" / "run.json").write_text("{}")
    assert git_facts(repository)["dirty"] is False


def test_outside_a_repository_nothing_is_known(tmp_path: Path) -> None:
    assert git_facts(tmp_path) == {}


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert "branch" not in git_facts(repository)


@pytest.fixture
def stubborn(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in PATH, for a `git` that fails for one command and runs the real git for others."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def write_stubborn_git(folder: Path, refused: str, act: str) -> None:
    real = shutil.which("git")
    program = folder / "git"
    program.write_text(f'#!/bin/sh\n[ "$3" = {refused} ] && {act}\nexec {real} "$@"\n')
    program.chmod(0o755)


@pytest.mark.parametrize("refused", ["status", "ls-files", "diff"])
@pytest.mark.parametrize("changed", [True, False])
def test_a_state_that_git_does_not_report_is_not_clean(
    repository: Path, stubborn: Path, refused: str, changed: bool
) -> None:
    if changed:
        (repository / "src" / "a.py").write_text("a = 2\n")
    write_stubborn_git(stubborn, refused, "exit 128")
    facts = git_facts(repository)
    assert {"dirty", "diff_sha256"} & facts.keys() == set()
    assert len(facts["commit"]) == 40


def test_a_state_that_takes_git_too_long_is_not_clean(
    repository: Path, stubborn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_SECONDS", 1)
    write_stubborn_git(stubborn, "status", "exec sleep 20")
    assert "dirty" not in git_facts(repository)


def test_a_broken_index_is_not_a_clean_tree(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(b"torn")
    assert git_facts(repository).keys() == {"commit", "branch"}


def test_the_content_of_untracked_code_is_in_the_digest(repository: Path) -> None:
    digests = []
    for content in ("b = 1\n", "b = 2\n", "b = 1\n"):
        (repository / "src" / "new file.py").write_text(content)
        digests.append(git_facts(repository)["diff_sha256"])
    assert digests[0] == digests[2] != digests[1]


def test_untracked_code_that_cannot_be_read_leaves_the_state_unknown(repository: Path) -> None:
    (repository / "src" / "linked").symlink_to("/usr", target_is_directory=True)
    assert "dirty" not in git_facts(repository)
    (repository / "src" / "linked").unlink()
    git(repository, "init", "-q", "src/inner")
    (repository / "src" / "inner" / "b.py").write_text("b = 1\n")
    assert "dirty" not in git_facts(repository)


def test_a_broken_link_is_identified_by_its_target(repository: Path) -> None:
    digests = set()
    for target in ("nothing", "nowhere"):
        (repository / "src" / ".#a.py").symlink_to(target)
        digests.add(git_facts(repository)["diff_sha256"])
        (repository / "src" / ".#a.py").unlink()
    assert len(digests) == 2


def test_differences_in_binary_files_give_different_digests(repository: Path) -> None:
    digests = set()
    for content in (b"\xe4\n", b"\xe9\n", b"\0\xe4", b"\0\xe9"):
        (repository / "src" / "a.py").write_bytes(content)
        digests.add(git_facts(repository)["diff_sha256"])
    assert len(digests) == 4


SETTINGS = (
    *("diff.noprefix=true", "diff.mnemonicPrefix=true", "diff.external=echo", "color.ui=always"),
    *("diff.context=9", "diff.algorithm=histogram", "diff.renames=copies", "status.renames=true"),
    *("status.branch=true", "status.short=true", "diff.relative=true", "core.pager=cat"),
)


def test_the_users_configuration_does_not_change_the_digest(repository: Path) -> None:
    lines = [f"a{number} = {number}\n" for number in range(30)]
    (repository / "src" / "b.py").write_text("".join(lines))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "More")
    git(repository, "mv", "src/b.py", "src/c.py")
    (repository / "src" / "c.py").write_text("".join([*lines[5:15], "x = 1\n", *lines[:5], *lines[15:]]))
    before = git_facts(repository)
    for setting in SETTINGS:
        name, value = setting.split("=", 1)
        git(repository, "config", name, value)
        assert git_facts(repository) == before, setting
        git(repository, "config", "--unset", name)


def test_a_filter_of_the_user_does_not_hide_a_change(repository: Path) -> None:
    (repository / ".git" / "info" / "attributes").write_text("*.py diff=same\n")
    git(repository, "config", "diff.same.textconv", "echo same; true")
    test_changed_code_is_dirty_and_its_difference_has_a_digest(repository)


@pytest.mark.parametrize("flag", ["assume-unchanged", "skip-worktree"])
def test_code_that_git_was_told_not_to_compare_is_compared(repository: Path, flag: str) -> None:
    git(repository, "update-index", f"--{flag}", "src/a.py")
    assert len(digests_of_changes(repository)) == 2


def test_a_sparse_checkout_leaves_files_out_and_is_clean(repository: Path) -> None:
    git(repository, "update-index", "--skip-worktree", "src/a.py")
    (repository / "src" / "a.py").unlink()
    assert git_facts(repository)["dirty"] is False


def test_ignored_files_that_python_can_import_make_it_dirty(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text("*_local.*\n")
    for name, dirty in (
        ("src/__pycache__/a_local.pyc", False),
        ("src/a_local.txt", False),
        ("tests/a_local.py", False),
        ("src/deep/er/a_local.py", True),
        ("scripts/a_local.py", True),
        ("src/deep/a_local.so", True),
    ):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("a = 2\n")
        assert git_facts(repository)["dirty"] is dirty, name
        (repository / name).unlink()


def test_what_git_does_not_see_and_a_program_may_read_is_known_by_its_bytes(repository: Path) -> None:
    """Named files, and ignored code beside tracked files or in a package; no environment, and no output."""
    (repository / ".git" / "info" / "exclude").write_text("*_local.py\nwandb/\nvenv/\nown/\n")
    files = ("src/_local.py", "own/__init__.py", "own/deep_local.py", "wandb/run/code.py", "src/other.py")
    for name in ("exp7.yaml", *files, "venv/lib/a_local.py", "src/pkg/__init__.py", "src/pkg/v_local.py"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(name)
    (repository / "src" / "v_local.py").write_text("")
    named = [repository / "exp7.yaml", repository / "src" / "a.py"]
    found = untracked_inputs(repository / "src", named)
    ignored = {
        "own/__init__.py",
        "own/deep_local.py",
        "src/_local.py",
        "src/pkg/v_local.py",
        "src/v_local.py",
    }
    assert found.keys() == {"exp7.yaml", *ignored}, "src/other.py makes the tree dirty, src/a.py is tracked"
    assert found["exp7.yaml"] == hashlib.sha256(b"exp7.yaml").hexdigest()
    (repository / "exp7.yaml").write_text("changed")
    assert untracked_inputs(repository, named)["exp7.yaml"] != found["exp7.yaml"]


def test_modules_that_were_imported_are_tracked_ignored_or_neither(repository: Path) -> None:
    """With them, untracked modules that were not imported do not make the tree dirty; other code does."""
    (repository / ".git" / "info" / "exclude").write_text("*_local.py\n")
    for name in ("a_local.py", "b_local.py", "new.py", "old.py"):
        (repository / name).write_text("")
    imported = {str(repository / name): name for name in ("a_local.py", "new.py", "src/a.py")}
    assert untracked_modules(repository / "src", imported) == (
        {"a_local.py": "a_local.py"},
        {"new.py": "new.py"},
    )
    assert [repository_facts(repository, with_modules=known)["dirty"] for known in (True, False)] == [
        True,
        False,
    ]
    (repository / "kernel.cu").write_text("")
    assert repository_facts(repository, with_modules=False)["dirty"]
    named = [repository / "exp.yaml"]
    named[0].write_text("")
    assert untracked_inputs(repository, named, with_modules=False).keys() == {"exp.yaml"}


@pytest.mark.parametrize("now", ["a = 1\n", "a = 2\n", "a = 3\n"])
@pytest.mark.parametrize("then", ["a = 1\n", "a = 2\n"])
@pytest.mark.parametrize("commits", [False, True])
def test_a_module_is_changed_that_was_imported_with_other_contents_than_the_commit_has(
    repository: Path, then: str, now: str, commits: bool
) -> None:
    """Also if it was restored or committed later; what was only edited later is not changed."""
    commit, module = git(repository, "rev-parse", "HEAD"), repository / "src" / "a.py"
    module.write_text(now)
    if commits:
        git(repository, "commit", "-q", "--allow-empty", "-am", "Edit")
    (repository / "new.py").write_text("")
    imported = {
        (str(module), hashlib.sha256(then.encode()).hexdigest()),
        (str(repository / "new.py"), "0" * 64),
    }
    assert changed_modules(repository / "src", commit, imported) == ["src/a.py"] * (then != "a = 1\n")


@pytest.mark.parametrize("then", [b"", b"a = 1\r\n", b"a = '\xe9'\n"])
def test_a_module_of_any_bytes_is_unchanged_by_an_edit_after_import(repository: Path, then: bytes) -> None:
    module = repository / "src" / "a.py"
    module.write_bytes(then)
    git(repository, "commit", "-q", "-am", "Edit")
    commit, imported = git(repository, "rev-parse", "HEAD"), (str(module), hashlib.sha256(then).hexdigest())
    module.write_text("a = 2\n")
    edited = (str(module), hashlib.sha256(b"a = 2\n").hexdigest())
    assert changed_modules(repository, commit, {imported}) == []
    assert changed_modules(repository, commit, {imported, edited}) == ["src/a.py"] * (b"\xe9" not in then)


@pytest.mark.parametrize("ignored", [True, False])
def test_a_copy_that_lies_in_another_repository_is_not_of_its_commit(repository: Path, ignored: bool) -> None:
    if ignored:
        (repository / ".git" / "info" / "exclude").write_text("copies/\n")
    copy = repository / "copies" / "trainyard"
    shutil.copytree(repository / "src", copy / "src")
    assert git_facts(copy) == {}


PLACES = {
    "link": False,
    "runs": False,
    "runs/gh-1": False,
    "my_runs/gh-1": True,
    "src": True,
    "src/runs/gh-1": False,
    "~/runs-of-mine": True,
    "../outside": False,
}


def test_git_clean_deletes_what_is_in_the_tree_and_not_ignored(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / ".gitignore").write_text("runs/\n")
    (root / "src" / "a.py").touch()
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "Begin")
    (tmp_path / "large disk").mkdir()
    (root / "link").symlink_to(tmp_path / "large disk")
    for place, expected in PLACES.items():
        file = root / place / "run.json"
        assert is_cleaned(root / place) is expected, f"{place}, not there yet"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        assert is_cleaned(root / place) is expected, place
        git(root, "clean", "-ffdq")
        assert file.exists() is not expected or place == "link", "as git does it"
