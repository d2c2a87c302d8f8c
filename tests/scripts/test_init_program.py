"""trainyard init program: the file that it writes is a configuration, and states what is known."""

from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.commands import init_program
from trainyard.config.load import load_config
from trainyard.errors import ConfigError

WORDS = ["--", "python", "train.py", "--name", "it's: a #1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a lock and data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("torch==2.15.0\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("1\n")
    return tmp_path


def written(folder: Path) -> tuple[tuple[str, ...], str | None, tuple[str, ...] | None]:
    program = load_config(folder / "trainyard.yaml").config.program
    assert program.command is not None
    return program.command, program.lock, program.data


def test_it_states_the_command_the_lock_and_the_data_in_five_lines(folder: Path) -> None:
    assert init_program.main(["--data", "data/*.txt", *WORDS]) == 0
    assert written(folder) == (tuple(WORDS[1:]), "requirements.txt", ("data/*.txt",))
    assert len((folder / "trainyard.yaml").read_text().splitlines()) == 5


def test_what_nobody_said_is_a_comment_and_not_a_claim(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "requirements.txt").unlink()
    (folder / ".git").mkdir()
    assert init_program.main(WORDS) == 0
    assert written(folder) == (tuple(WORDS[1:]), None, None)
    assert "# data:" in (folder / "trainyard.yaml").read_text()
    assert "next: write lock and data into trainyard.yaml" in capsys.readouterr().err


def test_the_command_of_the_newest_run_is_taken_with_what_it_set(folder: Path) -> None:
    for name, script in (("a", "old.py"), ("b", "new.py")):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "run.json").write_text("{}")
        (folder / "runs" / name / "config.yaml").write_text(
            f"recipe: command\nprogram: {{command: [python, {script}], checkpoints: 'o/*', processes: 1}}\n"
        )
    assert init_program.main(["--no-data", "--run-dir", "runs/b"]) == 0
    assert written(folder) == (("python", "new.py"), "requirements.txt", ())
    text = (folder / "trainyard.yaml").read_text()
    assert 'checkpoints: "o/*"' in text and "processes" not in text


def test_a_file_that_exists_stays_and_its_missing_lines_are_named(folder: Path) -> None:
    before = "recipe: command\nprogram: {command: [python, train.py], lock: requirements.txt}\n"
    (folder / "trainyard.yaml").write_text(before)
    with pytest.raises(ConfigError, match=r'stays as it is[^\n]*\n  data: \["data/a.txt"\] [^\n]*\nThen: '):
        init_program.main(["--data", "data/a.txt", *WORDS])
    assert (folder / "trainyard.yaml").read_text() == before


@each_case(
    ("words", "reason"),
    [
        ([], "Name the program: trainyard init program -- python train.py"),
        (["--data", "none/*", *WORDS], "none/\\* matches no file"),
        (["--run-dir", "runs/x"], "There is no runs/x/config.yaml"),
    ],
)
def test_what_cannot_be_known_is_refused(words: list[str], reason: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        init_program.main(words)
    assert not (folder / "trainyard.yaml").exists()


def test_a_dry_run_prints_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init_program.main(["--no-data", "--dry-run", *WORDS]) == 0
    assert "  data: []  # the files that it reads; [] if it reads none\n" in capsys.readouterr().out
    assert not (folder / "trainyard.yaml").exists()
