"""Skills in the folders of agents: written when requested, and never over a file that differs."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT

from trainyard.commands import run_command, skills_install
from trainyard.errors import ConfigError, ExitCode

NAMES = sorted(path.parent.name for path in (ROOT / "skills").glob("*/SKILL.md"))


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def install(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    code = run_command(["skills", "install", *words, "--json"])
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["files"]
    return code, rows


def test_every_agent_gets_all_skills_in_its_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {name: (ROOT / "skills" / name / "SKILL.md").read_bytes() for name in NAMES}
    for agent, place in skills_install.FOLDERS.items():
        for scope, base in (((), project), (("--user",), project.parent / "home")):
            assert install("--for", agent, *scope, capsys=capsys)[0] == 0
            found = {path.parent.name: path.read_bytes() for path in (base / place).glob("*/SKILL.md")}
            assert found == own, (agent, scope)
            assert {row["action"] for row in install("--for", agent, *scope, capsys=capsys)[1]} == {"same"}


def test_agents_that_share_a_folder_get_one_copy(capsys: pytest.CaptureFixture[str]) -> None:
    _, rows = install("--for", "codex", "--for", "gemini", capsys=capsys)
    assert [row["file"] for row in rows] == [f".agents/skills/{name}/SKILL.md" for name in NAMES]


def test_a_dry_run_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = install("--for", "claude", "--dry-run", capsys=capsys)
    assert (code, len(rows), list(project.iterdir())) == (0, len(NAMES), [])


def test_a_file_that_differs_is_kept_and_named_until_it_is_to_be_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("--to", "a b", capsys=capsys)
    edited = Path("a b/training-monitor/SKILL.md")
    edited.write_text("mine")
    code, rows = install("--to", "a b", capsys=capsys)
    assert code == ExitCode.NO
    assert [row["file"] for row in rows if row["action"] == "kept"] == [str(edited)]
    assert edited.read_text() == "mine"
    assert install("--to", "a b", "--replace", "--dry-run", capsys=capsys)[0] == 0
    assert edited.read_text() == "mine"
    code, rows = install("--to", "a b", "--replace", capsys=capsys)
    assert (code, edited.read_text() == "mine") == (0, False)
    assert [row["action"] for row in rows].count("replaced") == 1


def test_wrong_places_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path(".claude").write_text("a file")
    with pytest.raises(ConfigError, match=r"is a file and must be a folder|cannot be created"):
        run_command(["skills", "install", "--for", "claude"])
    for words in ([], ["--for", "nobody"], ["--for", "claude", "--to", "x"], ["--to", "x", "--user"]):
        with pytest.raises(SystemExit):
            run_command(["skills", "install", *words])
    assert "usage: trainyard skills install" in capsys.readouterr().err
