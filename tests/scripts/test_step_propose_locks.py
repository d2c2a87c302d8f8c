"""The script that proposes new locks, against a stand-in of GitHub's API for git and pull requests."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trainyard.command import handler
from trainyard.commands import step_propose_locks


class Repository:
    """GitHub's repository: a branch that may exist, and its pull request."""

    def __init__(self, *, exists: bool, refuses: str = "") -> None:
        self.exists, self.refuses = exists, refuses
        self.calls: list[tuple[str, Any]] = []

    def answer(self, method: str, path: str, body: Any, _headers: Mapping[str, str]) -> tuple[int, Any]:
        call = f"{method} {path.partition('?')[0].removeprefix('/repos/o/r')}"
        self.calls.append((call, body))
        if self.refuses and self.refuses in call:
            return 403, {"message": "GitHub Actions is not permitted to create or approve pull requests."}
        found = {"number": 57, "html_url": "https://github.invalid/pull/57"}
        branch = [{"ref": f"refs/heads/trainyard/locks{'' if self.exists else '-2'}"}]
        answers = {
            "GET /git/commits/base": {"tree": {"sha": "tree of base"}},
            "POST /git/trees": {"sha": "tree"},
            "POST /git/commits": {"sha": "commit"},
            "GET /git/matching-refs/heads/trainyard/locks": branch,
            "GET /git/matching-refs/heads/trainyard/facts": [],
            "GET /pulls": [found] if self.exists else [],
            "POST /pulls": found,
            "PATCH /pulls/57": found,
        }
        return 200, answers.get(call)

    def body_of(self, call: str) -> Any:
        return next((body for name, body in self.calls if name == call), None)


@pytest.fixture
def propose(
    serve_github: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Repository], int]:
    def run(repository: Repository, *words: str) -> int:
        known = {"GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t", "GITHUB_SHA": "base"}
        known |= {"GITHUB_REF_NAME": "main", "GITHUB_OUTPUT": str(tmp_path / "output")}
        known |= {"GITHUB_API_URL": serve_github(repository.answer)}
        for name, value in known.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "requirements-core.txt").write_text("a==2\n")
        (tmp_path / "notes.md").write_text("### Changes\n")
        return int(handler.exit_code_of(lambda: step_propose_locks.main(["--notes", "notes.md", *words])))

    return run


@pytest.mark.parametrize("exists", [False, True])
def test_one_pull_request_holds_the_newest_locks(
    propose: Callable[..., int], tmp_path: Path, exists: bool
) -> None:
    repository = Repository(exists=exists)
    assert propose(repository, "--dry-run") == 0
    assert repository.calls == []
    assert propose(repository) == 0
    [entry] = repository.body_of("POST /git/trees")["tree"]
    assert (entry["path"], entry["content"]) == ("requirements-core.txt", "a==2\n")
    assert repository.body_of("POST /git/trees")["base_tree"] == "tree of base"
    assert repository.body_of("POST /git/commits")["parents"] == ["base"]
    if exists:
        assert repository.body_of("PATCH /git/refs/heads/trainyard/locks") == {"sha": "commit", "force": True}
        assert repository.body_of("PATCH /pulls/57") == {"body": "### Changes\n"}
    else:
        assert repository.body_of("POST /git/refs") == {"ref": "refs/heads/trainyard/locks", "sha": "commit"}
        opened = repository.body_of("POST /pulls")
        place = {"head": "trainyard/locks", "base": "main", "body": "### Changes\n"}
        assert place.items() <= opened.items()
    output = (tmp_path / "output").read_text()
    assert "commit" in output and "57" in output
    assert repository.calls[-1][0] == "POST /actions/workflows/ci.yml/dispatches"
    assert repository.calls[-1][1]["ref"] == "trainyard/locks"


def test_a_repository_that_does_not_let_actions_open_pull_requests_gets_the_setting_named(
    propose: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(exists=False, refuses="POST /pulls")
    assert propose(repository) == 4
    error = capsys.readouterr().err
    assert "Settings, Actions, General" in error and "gh pr create --head trainyard/locks" in error


def test_tables_are_proposed_on_a_branch_of_their_own(propose: Callable[..., int], tmp_path: Path) -> None:
    table = tmp_path / "src" / "trainyard" / "image" / "facts" / "torch.yaml"
    table.parent.mkdir(parents=True)
    table.write_text("- {}\n")
    repository = Repository(exists=False)
    assert propose(repository, "--what", "facts") == 0
    [entry] = repository.body_of("POST /git/trees")["tree"]
    assert (entry["path"], entry["content"]) == ("src/trainyard/image/facts/torch.yaml", "- {}\n")
    assert repository.body_of("POST /git/refs")["ref"] == "refs/heads/trainyard/facts"
    assert repository.body_of("POST /pulls")["head"] == "trainyard/facts"
    assert repository.calls[-1][1]["ref"] == "trainyard/facts"
