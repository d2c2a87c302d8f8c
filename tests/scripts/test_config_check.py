"""trainyard config check: every problem of every file, at its place."""

import json
from pathlib import Path

from tests.scripts.conftest import Call


def test_every_shipped_configuration_can_be_used(called: Call) -> None:
    done = called("config check", "--json")
    assert done.returncode == 0, done.stderr
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
