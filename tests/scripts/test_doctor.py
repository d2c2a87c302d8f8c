"""`trainyard doctor`: each item on real parts, with a loopback server as W&B and Slack."""

import json
import subprocess
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.git_repository import git
from tests.scripts.conftest import ROOT

from trainyard.commands import doctor, notify
from trainyard.deployment_checks import (
    AREAS,
    Deployment,
    code_items,
    item_of_setup,
    slack_item,
    tracker_items,
    workflow_items,
)
from trainyard.github.setup_step import SetupChange, SetupStep, SetupVerdict, Todo
from trainyard.plan.finding import Severity

FAILED, DEGRADED, UNKNOWN, UNUSED, OK = (each for each in Severity if each is not Severity.INFO)
Serve = Callable[[Callable[..., tuple[int, Any]]], str]
CONFIG = ROOT / "configs" / "smoke.yaml"
NOBODY = "http://127.0.0.1:9"


@pytest.mark.process
@pytest.mark.parametrize(("dirty", "upstream", "ahead"), list(product([False, True], repeat=3)))
def test_the_code_is_clean_and_pushed_or_it_is_listed(
    tmp_path: Path, dirty: bool, upstream: bool, ahead: bool
) -> None:
    there, here = tmp_path / "there.git", tmp_path / "my work"
    git(tmp_path, "init", "--bare", str(there))
    git(tmp_path, "init", str(here))
    (here / "train.py").write_text("1\n")
    git(here, "add", ".")
    git(here, "commit", "-m", "one")
    git(here, "remote", "add", "origin", str(there))
    if upstream:
        git(here, "push", "-u", "origin", "HEAD")
    if ahead:
        git(here, "commit", "--allow-empty", "-m", "two")
    if dirty:
        (here / "train.py").write_text("2\n")
    tree, commit = code_items(here)
    assert tree.severity is (FAILED if dirty else OK)
    assert commit.severity is (UNKNOWN if not upstream else DEGRADED if ahead else OK)


def test_a_folder_without_a_commit_is_not_ready(tmp_path: Path) -> None:
    (item,) = code_items(tmp_path)
    assert (item.severity, item.subject) == (FAILED, "commit")


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "linter", "expected"),
    [
        ("on: push\n", "", UNKNOWN),
        ("on: push\n", "exit 0", OK),
        ("on: push\n", "echo a.yml:1:1: no jobs; exit 1", FAILED),
        ("on: push\n", "exit 3", UNKNOWN),
        (None, "exit 0", UNUSED),
    ],
)
def test_workflows_are_checked_by_actionlint_or_it_is_listed_that_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, linter: str, expected: Severity
) -> None:
    monkeypatch.delenv("ACTIONLINT", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    if linter:
        program = tmp_path / "linter"
        program.write_text(f"#!/bin/sh\n{linter}\n")
        program.chmod(0o755)
        monkeypatch.setenv("ACTIONLINT", str(program))
    if text is not None:
        folder = tmp_path / ".github" / "workflows"
        folder.mkdir(parents=True)
        (folder / "a.yml").write_text(text)
    (item,) = workflow_items(tmp_path)
    assert item.severity is expected, item


def test_a_step_of_the_set_up_is_done_open_or_not_to_be_seen() -> None:
    for verdict in SetupVerdict:
        todo = Todo("here", "sudo ./svc.sh start")
        step = SetupStep("runner", verdict, "t", (SetupChange("PUT", "x"),), todo=(todo,))
        item = item_of_setup(step, "github.com")
        expected = {"OK": OK, "DONE": OK, "REFUSED": UNKNOWN}
        assert item.severity is expected.get(verdict.name, FAILED)
        assert item.fix == "gh api --method PUT x\nsudo ./svc.sh start"


WANDB_ANSWERS = {
    "known": (200, {"data": {"viewer": {"username": "anna"}}}, OK),
    "nobody": (200, {"data": {"viewer": None}}, FAILED),
    "no data": (200, {"errors": [{"message": "no"}]}, FAILED),
    "a list": (200, [1], UNKNOWN),
    "refused": (401, {}, FAILED),
    "trouble": (502, {}, UNKNOWN),
    "away": (0, {}, UNKNOWN),
}


@pytest.mark.parametrize("case", WANDB_ANSWERS)
def test_a_key_of_wandb_counts_only_if_wandb_knows_it(
    serve_github: Serve, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    status, content, expected = WANDB_ANSWERS[case]

    def answer(method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        assert (method, path, headers["Authorization"][:6]) == ("POST", "/graphql", "Basic ")
        return status, content

    monkeypatch.setenv("WANDB_BASE_URL", serve_github(answer) if status else NOBODY)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (item,) = tracker_items(Deployment(CONFIG, ["monitoring.wandb.enabled=true"]))
    assert item.severity is expected, item
    assert "k" * 40 not in item.evidence


@pytest.mark.parametrize(
    ("enabled", "key", "mode", "expected"),
    [("false", "k", "", UNUSED), ("true", "", "", DEGRADED), ("true", "k", "offline", UNUSED)],
)
def test_wandb_is_not_asked_where_it_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, enabled: str, key: str, mode: str, expected: Severity
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", NOBODY)
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_MODE", mode or "online")
    (item,) = tracker_items(Deployment(CONFIG, [f"monitoring.wandb.enabled={enabled}"]))
    assert item.severity is expected, item


SLACK_ANSWERS = {
    "known": (200, {"ok": True, "user": "yard", "team": "lab"}, OK),
    "refused": (200, {"ok": False, "error": "invalid_auth"}, FAILED),
    "away": (0, {}, UNKNOWN),
}


@pytest.mark.parametrize("case", SLACK_ANSWERS)
def test_a_token_of_slack_counts_only_if_slack_knows_it(serve_github: Serve, case: str) -> None:
    status, content, expected = SLACK_ANSWERS[case]
    server = serve_github(lambda *_: (status, content)) if status else NOBODY
    item = slack_item({"SLACK_BOT_TOKEN": "xoxb-secret", "SLACK_API_URL": f"{server}/"})
    assert item.severity is expected, item
    assert "secret" not in item.evidence
    if expected is FAILED:
        assert "invalid_auth" in item.evidence


def test_a_webhook_cannot_be_looked_at_and_none_is_not_used() -> None:
    item = slack_item({"SLACK_WEBHOOK_URL": "https://x"})
    assert item.severity is UNKNOWN
    assert notify.parse_args(item.fix.split()[2:]).event == "started"
    assert slack_item({}).severity is UNUSED


@pytest.mark.slow
def test_the_checklist_of_a_checkout_is_printed_and_can_be_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TRAINYARD_EKS_CLUSTER", "KUBECONFIG", "TRAINYARD_IMAGE_REPOSITORY", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no gh
    for name in ("my store", "run"):
        (tmp_path / name).mkdir()
    page = tmp_path / "READY.md"
    words = ["--all", "--config", str(CONFIG), "--store", f"file://{tmp_path}/my%20store", "--json"]
    code = doctor.main([*words, "--sign-off", str(page), "--run-dir", str(tmp_path / "run")])
    found = json.loads(capsys.readouterr().out)
    states = {(item["area"], item["name"]): item["status"] for item in found["items"]}
    assert states["machine", "packages"] == states["machine", "gpu"] == states["store", "store"] == "ok"
    assert states["github", "github"] == "not checked"
    assert states["cluster", "cluster"] == "not used"
    assert code == (0 if found["ready"] else 1)
    assert found["ready"] is ("failed" not in states.values())
    assert page.read_text().count("\n| ") == 1 + len(found["items"])


@pytest.mark.parametrize("left", ["", "configuration", "workflows", "slack"])
def test_an_area_that_is_left_out_is_not_checked_but_listed(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who prepares a cluster from a laptop has no GPU there, and no runner."""
    monkeypatch.chdir(tmp_path)
    for name in ("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    skipped = [word for area in AREAS if area != left for word in ("--skip", area)]
    assert doctor.main(["--all", "--config", str(CONFIG), *skipped, "--json"]) == 0
    found = {item["area"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert list(found) == list(AREAS)
    for area, item in found.items():
        assert (item["found"] == "left out by --skip") is (area != left)
        assert (item["status"] == "not used") or area == left


def test_in_the_folder_of_a_program_it_asks_for_no_more_than_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "requirements.txt").write_text("torch==2.15.0\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)

    def statuses() -> dict[str, str]:
        assert doctor.main(["--skip", "github", "--json"]) == 0
        items = json.loads(capsys.readouterr().out)["items"]
        return {f"{item['area']} {item['name']}": item["status"] for item in items}

    found = statuses()
    assert {found[name] for name in ("machine machine", "store store", "code lock")} == {"ok"}
    assert found["code data"] == found["quality tools"] == found["documentation readme"] == "degraded"
    assert not (tmp_path / "trainyard-store").exists(), "nothing is written"
    config = "recipe: command\nprogram: {command: [python, train.py], data: []}\n"
    (tmp_path / "trainyard.yaml").write_text(config)
    (tmp_path / "README.md").write_text("Train it: trainyard run python train.py\n")
    (tmp_path / "tests").mkdir()
    names = ("machine machine", "store store", "code data", "quality tools", "documentation readme")
    assert {statuses()[name] for name in names} == {"ok"}
