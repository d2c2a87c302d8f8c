"""Files of a project: `config check` and `show`, `init program`, the lint of environments, agents' skills."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.scripts.conftest import ROOT, Call, require_success

from trainyard.commands import init_program, run_command, skills_install
from trainyard.config.load import load_config
from trainyard.errors import ConfigError, ExitCode


def test_every_shipped_configuration_can_be_used(called: Call) -> None:
    done = require_success(called("config check", "--json"))
    found = {Path(path).name: problem for path, problem in json.loads(done.stdout)["problems"].items()}
    assert {"smoke.yaml", "training_configuration.yaml", "grpo.yaml", "tinyllama-1b.yaml"} <= set(found)
    assert set(found.values()) == {""}


def test_problems_of_all_files_are_shown_at_their_places(called: Call, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("training:\n  max_step: 5\n")
    (tmp_path / "b.yaml").write_text("training: {max_steps: 5}\nmodel:\n  device: gpu\n")
    done = called("config check", "a.yaml", "b.yaml", GITHUB_ACTIONS="true")
    assert done.returncode == 2
    assert "::error file=a.yaml,line=2::training.max_step: unknown key" in done.stderr
    assert "::error file=b.yaml,line=3::model.device: " in done.stderr
    assert "configs: 0 of 2 can be used" in done.stderr
    quiet = called("config check", "a.yaml")
    assert "a.yaml:2: training.max_step: unknown key; did you mean max_steps?" in quiet.stderr
    assert "::error" not in quiet.stderr


def test_a_file_that_is_missing_is_a_problem_of_its_own(called: Call) -> None:
    done = called("config check", "none.yaml", "--json")
    assert (done.returncode, "none.yaml" in json.loads(done.stdout)["problems"]["none.yaml"]) == (2, True)


SMOKE = ROOT / "configs" / "smoke.yaml"


def test_it_prints_a_whole_configuration_as_yaml_and_as_json(called: Call) -> None:
    words = ("config show", "--config", SMOKE, "--set", "training.max_steps=7")
    done = called(*words)
    assert (done.returncode, done.stderr) == (0, "")
    values = yaml.safe_load(done.stdout)
    assert values["training"]["max_steps"] == 7
    assert values["training"]["adam_beta2"] == 0.95
    assert json.loads(called(*words, "--json").stdout) == {"schema_version": 1} | values


def test_it_explains_where_each_value_came_from(called: Call) -> None:
    done = called("config show", "--config", SMOKE, "--set", "training.learning_rate=1e-3", "--explain")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines()}
    assert rows["training.learning_rate"] == ["0.001", "--set"]
    assert rows["training.adam_beta1"] == ["0.9", "default"]
    file, line = rows["training.max_steps"][-1].split(":")
    assert "max_steps: 400" in Path(file).read_text().splitlines()[int(line) - 1]


def test_a_bad_file_ends_with_2_and_a_line_for_the_person(tmp_path: Path, called: Call) -> None:
    (tmp_path / "c.yaml").write_text("training:\n  max_step: 5\n")
    done = called("config show", "--config", "c.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "c.yaml:2: training.max_step: unknown key; did you mean max_steps?" in done.stderr
    assert done.stderr.endswith("Nothing was started.\n")


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


def test_findings_have_their_place_reason_and_fix(called: Call, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a:1\nENV FI_EFA_USE_DEVICE_RDMA=1\n")
    (tmp_path / "train.env").write_text("NCCL_TIMEOUT=1800\n")
    files = (tmp_path / "Dockerfile", tmp_path / "train.env")
    done = called("lint-environment", *files, "--instance-type", "g5.8xlarge", "--num-nodes", "2")
    assert done.returncode == 1
    assert f"{tmp_path}/Dockerfile:2: error: FI_EFA_USE_DEVICE_RDMA=1" in done.stdout
    assert f"{tmp_path}/train.env:1: warning: NCCL_TIMEOUT=1800" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 files, 2 variables: 1 error, 1 warning"
    asked = called("lint-environment", *files, "--instance-type", "p5.48xlarge", "--json")
    data = json.loads(asked.stdout)
    assert (asked.returncode, data["ok"]) == (0, True)
    assert data["files"] == {str(file): 1 for file in files}
    assert [(f["subject"], f["severity"], f["line"]) for f in data["findings"]] == [
        ("NCCL_TIMEOUT", "warning", 1)
    ]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a: [", (), "not valid YAML"),
        ("words\n", (), "job.yaml: not checked"),
        ("\0", (), "job.yaml"),
        ("", ("--instance-type", "p5.48xlage"), "did you mean p5.48xlarge?"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(
    text: str, options: tuple[str, ...], words: str, called: Call, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = called("lint-environment", tmp_path / "job.yaml", *options)
    assert done.returncode == 2
    assert words in done.stderr
    none = called("lint-environment", tmp_path / "none.yaml")
    assert (none.returncode, "none.yaml" in none.stderr) == (2, True)


SKILLS = sorted(path.parent.name for path in (ROOT / "skills").glob("*/SKILL.md"))


@pytest.fixture
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
    own = {name: (ROOT / "skills" / name / "SKILL.md").read_bytes() for name in SKILLS}
    for agent, place in skills_install.FOLDERS.items():
        for scope, base in (((), project), (("--user",), project.parent / "home")):
            assert install("--for", agent, *scope, capsys=capsys)[0] == 0
            found = {path.parent.name: path.read_bytes() for path in (base / place).glob("*/SKILL.md")}
            assert found == own, (agent, scope)
            assert {row["action"] for row in install("--for", agent, *scope, capsys=capsys)[1]} == {"same"}


def test_agents_that_share_a_folder_get_one_copy(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, rows = install("--for", "codex", "--for", "gemini", capsys=capsys)
    assert [row["file"] for row in rows] == [f".agents/skills/{name}/SKILL.md" for name in SKILLS]


def test_a_dry_run_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = install("--for", "claude", "--dry-run", capsys=capsys)
    assert (code, len(rows), list(project.iterdir())) == (0, len(SKILLS), [])


def test_a_file_that_differs_is_kept_and_named_until_it_is_to_be_replaced(
    project: Path, capsys: pytest.CaptureFixture[str]
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


def test_wrong_places_are_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(".claude").write_text("a file")
    with pytest.raises(ConfigError, match=r"is a file and must be a folder|cannot be created"):
        run_command(["skills", "install", "--for", "claude"])
    for words in ([], ["--for", "nobody"], ["--for", "claude", "--to", "x"], ["--to", "x", "--user"]):
        with pytest.raises(SystemExit):
            run_command(["skills", "install", *words])
    assert "usage: trainyard skills install" in capsys.readouterr().err
