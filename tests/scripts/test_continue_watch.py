"""The script that dispatches the next watch of a job: what it asks GitHub for, and when it does not."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trainyard.command import handler

JOB = ["--job", "gh-4711", "--kind", "pytorchjob", "--namespace", "team", "--store", "s3://ml-runs"]
Asked = list[tuple[str, Any]]


@pytest.fixture(scope="module")
def continue_watch(load_script: Any) -> Any:
    return load_script("continue_watch")


@pytest.fixture
def asked(serve_github: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """A server as GitHub, which records requests and refuses a dispatch on the branch `closed`."""
    calls: Asked = []

    def answer(method: str, path: str, body: Any, _headers: Mapping[str, str]) -> tuple[int, Any]:
        calls.append((f"{method} {path}", body))
        if body["ref"] == "closed":
            return 403, {"message": "Resource not accessible by integration"}
        return 200, {"html_url": "https://github.invalid/runs/2"}

    known = {"GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t", "GITHUB_ACTIONS": "true"}
    known |= {"GITHUB_API_URL": serve_github(answer), "GITHUB_REF_NAME": "main"}
    known |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    return calls


def test_the_next_watch_is_dispatched_and_this_one_is_no_success(
    continue_watch: Any, asked: Asked, tmp_path: Path
) -> None:
    code = continue_watch.main([*JOB, "--config", "configs/smoke.yaml", "--thread", "C1:1.2", "--watch", "3"])
    assert code == 5
    [(call, body)] = asked
    assert call == "POST /repos/o/r/actions/workflows/deploy_eks.yml/dispatches"
    assert body["ref"] == "main"
    assert (body["inputs"]["job_name"], body["inputs"]["config"]) == ("gh-4711", "configs/smoke.yaml")
    takes_up = json.loads(body["inputs"]["takes_up"])
    expected = {"job": "gh-4711", "kind": "pytorchjob", "namespace": "team", "store": "s3://ml-runs"}
    assert takes_up == {**expected, "thread": "C1:1.2", "watch": 4}
    assert "watch 4 was dispatched: https://github.invalid/runs/2" in (tmp_path / "summary").read_text()
    assert "dispatched<<" in (tmp_path / "output").read_text()


def test_a_job_is_not_watched_for_ever(continue_watch: Any, asked: Asked, tmp_path: Path) -> None:
    assert continue_watch.main([*JOB, "--watch", "200"]) == 1
    assert asked == []
    output = (tmp_path / "output").read_text()
    assert "watched 200 times and has not ended" in output
    assert "dispatched<<" not in output


def test_a_dispatch_that_is_refused_is_exit_code_4(
    continue_watch: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_REF_NAME", "closed")
    assert handler.exit_code_of(lambda: continue_watch.main([*JOB, "--watch", "1"])) == 4
    assert len(asked) == 1
    assert not (tmp_path / "output").exists()


def test_a_dry_run_prints_the_inputs_and_asks_nobody(
    continue_watch: Any, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert continue_watch.main([*JOB, "--watch", "1", "--dry-run"]) == 0
    assert asked == []
    inputs = json.loads(capsys.readouterr().out)
    assert json.loads(inputs["takes_up"])["watch"] == 2
    assert "config" not in inputs
