"""scripts/comment_pull_request.py against a local server that keeps comments as GitHub does."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainyard.report.change.change import ChangeRules, Comparison, Measured, Side
from trainyard.report.change.change_markdown import MARK

Program = Callable[..., Any]
TOKEN = "ghs_very-secret"
PLACE = "/repos/me/lab/issues/57/comments"


@dataclass
class Comments:
    """The comments of pull request 57; `refuses` answers every change with 403."""

    url: str = ""
    kept: list[dict[str, Any]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    refuses: bool = False

    def add(self, body: str, kind: str) -> None:
        self.kept.append({"id": 100 + len(self.kept), "body": body, "user": {"type": kind}})


@pytest.fixture
def comments(serve_github: Callable[..., str]) -> Comments:
    told = Comments()

    def answer(method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        if method == "GET":
            assert path.startswith(f"{PLACE}?")
            return 200, told.kept
        told.changes.append(f"{method} {path}")
        if told.refuses or headers["Authorization"] != f"Bearer {TOKEN}":
            return 403, {"message": "Resource not accessible by integration"}
        if method == "POST":
            assert path == PLACE
            told.add(body["body"], "Bot")
            return 201, told.kept[-1]
        wanted = int(path.rpartition("/issues/comments/")[2])
        found = next(comment for comment in told.kept if comment["id"] == wanted)
        found["body"] = body["body"]
        return 200, found

    told.url = serve_github(answer)
    return told


@pytest.fixture
def write(program: Program, comments: Comments, tmp_path: Path) -> Callable[..., Any]:
    """Writes the comment on a comparison whose head has a loss."""

    def call(loss: float = 2.5, *more: str) -> Any:
        sides = [
            Side(c * 40, (Measured(4, x, None, None, None, None),)) for c, x in (("a", 2.5), ("b", loss))
        ]
        (tmp_path / "c.json").write_text(json.dumps(Comparison(ChangeRules(), *sides).to_json()))
        return program(
            *("comment_pull_request.py", "--comparison", "c.json", "--pull-request", "57", *more),
            GITHUB_TOKEN=TOKEN,
            GITHUB_API_URL=comments.url,
            GITHUB_ACTIONS="true",
            GITHUB_REPOSITORY="me/lab",
            GITHUB_SERVER_URL="https://github.com",
            GITHUB_RUN_ID="99",
        )

    return call


def test_there_is_one_comment_and_it_is_kept_up_to_date(
    write: Callable[..., Any], comments: Comments
) -> None:
    comments.add("a word of somebody", "User")
    comments.add(f"{MARK}\nnot ours", "User")
    for loss, title in ((2.5, "✅ No regression"), (2.9, "❌ Worse: loss"), (2.9, "❌ Worse: loss")):
        assert write(loss).returncode == 0
        assert len(comments.kept) == 3
        assert comments.kept[2]["body"].startswith(f"{MARK}\n### {title} · `aaaaaaa` → `bbbbbbb`")
    assert comments.changes == [f"POST {PLACE}", "PATCH /repos/me/lab/issues/comments/102"]
    assert "[log](https://github.com/me/lab/actions/runs/99)" in comments.kept[2]["body"]
    assert comments.kept[1]["body"].endswith("not ours")


def test_a_refusal_is_a_warning_and_shows_no_token(write: Callable[..., Any], comments: Comments) -> None:
    comments.refuses = True
    done = write()
    assert done.returncode == 0
    assert "WARN  The comment was not written: GitHub refused POST" in done.stderr
    assert "::warning title=No comment written::" in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_a_dry_run_writes_nothing(write: Callable[..., Any], comments: Comments) -> None:
    done = write(2.5, "--dry-run")
    assert done.stdout.startswith(MARK)
    assert comments.changes == []


@pytest.mark.parametrize("content", ["{", "{}", '{"schema": 1}', "[" * 100_000])
def test_what_is_no_comparison_is_refused_before_anything_is_asked(
    program: Program, tmp_path: Path, content: str
) -> None:
    (tmp_path / "c.json").write_text(content)
    done = program("comment_pull_request.py", "--comparison", "c.json", "--pull-request", "57")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
