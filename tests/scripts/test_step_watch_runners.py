"""The watchdog's script: red while an outage lasts, and the texts of its reports."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT

from trainyard.commands import step_watch_runners
from trainyard.errors import ServiceError
from trainyard.gateways import slack
from trainyard.github import runner_watchdog

LABELS = ["--labels", '["self-hosted","gpu"]']


class Repository:
    """GitHub with one runner that is offline."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        """The runner's status at each poll; empty if it does not change."""
        self.changed: list[str] = []
        self.runners = [
            {"name": "gpu-1", "status": "offline", "labels": [{"name": "self-hosted"}, {"name": "gpu"}]}
        ]

    def pages(self, path: str, key: str = "", **query: Any) -> Iterator[Any]:
        if path == "/actions/runners" and self.looks:
            self.runners[0]["status"] = self.looks.pop(0)
        yield from self.runners if path == "/actions/runners" else []

    def get(self, path: str, **query: Any) -> Any:
        return {"id": 1, "sha": "same", "workflow_runs": []}

    def post(self, path: str, body: Any = None) -> Any:
        self.changed.append(path)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Repository:
    there = Repository()
    monkeypatch.setattr(step_watch_runners, "github_from", lambda **_: there)
    monkeypatch.setenv("RUNNERS_TOKEN", "t")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    return there


def test_each_look_that_finds_an_outage_is_red(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (["--dry-run"], ["--json"]):
        assert step_watch_runners.main([*LABELS, *line]) == 1
    told = capsys.readouterr()
    assert "::error title=An outage::GPU runner gpu-1 is offline" in told.err
    assert json.loads(told.out)["outages"][0]["key"] == "offline gpu-1"
    assert "GPU runner gpu-1 is offline" in (tmp_path / "output").read_text()

    repository.runners[0]["status"] = "online"
    (tmp_path / "summary").unlink()
    assert step_watch_runners.main(LABELS) == 0
    assert (tmp_path / "summary").read_text() == "- No outage.\n"


def test_a_runner_that_is_back_at_the_second_look_is_no_outage(repository: Repository) -> None:
    repository.looks = ["offline", "online"]
    assert step_watch_runners.main([*LABELS, "--again", "0.01"]) == 0
    assert repository.looks == []
    repository.looks = ["offline", "offline"]
    assert step_watch_runners.main([*LABELS, "--again", "0.01"]) == 1


def test_without_labels_no_runner_is_looked_after_and_what_died_goes_on(
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dead = runner_watchdog.DeadRun(7, "https://x/7", 1)
    monkeypatch.setattr(runner_watchdog, "find_dead_runs", lambda *_, **__: [dead])
    assert step_watch_runners.main(["--labels", ""]) == 0
    assert repository.changed == ["/actions/runs/7/rerun-failed-jobs"]
    assert "your own runners are not watched" in capsys.readouterr().err


def test_slack_is_told_in_one_message_and_its_trouble_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[str] = []

    def post(text: str, blocks: Any) -> str:
        sent.append(text)
        return "posted"

    monkeypatch.setattr(slack, "post", post)
    assert step_watch_runners.main(["--tell", "gpu-1 is <offline>.\n\nanother"]) == 0
    assert sent == ["❌ gpu-1 is &lt;offline&gt;.\n❌ another"]

    def refuse(text: str, blocks: Any) -> None:
        raise ServiceError("channel_not_found")

    monkeypatch.setattr(slack, "post", refuse)
    assert step_watch_runners.main(["--tell", "x"]) == 0
    assert "no message was sent: channel_not_found" in capsys.readouterr().err


def test_hosted_jobs_call_it_without_any_package() -> None:
    """These jobs take seconds, and install nothing of the lock. Wrong usage ends the command here."""
    environment = {"PYTHONPATH": str(ROOT / "src")}
    for words in (["watch-runners", "--no-such"], ["continue", "--no-such"]):
        line = [sys.executable, "-S", "-m", "trainyard", "step", *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "--no-such" in done.stderr
