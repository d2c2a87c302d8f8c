"""trainyard config show as people call it: output, exit status, and never a traceback."""

import json
import subprocess
import sys
from pathlib import Path

import yaml
from tests import warm_start

ROOT = Path(__file__).parents[2]


def show(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "-m", "trainyard", "config", "show", *arguments]
    done = warm_start.run(script, cwd=cwd, timeout=240)
    assert "Traceback" not in done.stderr
    return done


def test_it_prints_yaml_that_is_a_whole_configuration() -> None:
    done = show("--config", "configs/smoke.yaml", "--set", "training.max_steps=7")
    assert done.returncode == 0
    values = yaml.safe_load(done.stdout)
    assert values["training"]["max_steps"] == 7
    assert values["training"]["adam_beta2"] == 0.95
    assert done.stderr == ""


def test_it_prints_the_same_as_json() -> None:
    values = json.loads(show("--config", "configs/smoke.yaml", "--json").stdout)
    assert values.pop("schema_version") == 1
    assert values == yaml.safe_load(show("--config", "configs/smoke.yaml").stdout)


def test_it_explains_where_each_value_came_from() -> None:
    done = show("--config", "configs/smoke.yaml", "--set", "training.learning_rate=1e-3", "--explain")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["training.learning_rate"] == ["training.learning_rate", "0.001", "--set"]
    assert rows["training.adam_beta1"] == ["training.adam_beta1", "0.9", "default"]
    file, line = rows["training.max_steps"][-1].split(":")
    assert "max_steps: 400" in (ROOT / file).read_text().splitlines()[int(line) - 1]


def test_a_bad_file_ends_with_2_and_a_line_for_the_person(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("training:\n  max_step: 5\n")
    done = show("--config", "c.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "c.yaml:2: training.max_step: unknown key; did you mean max_steps?" in done.stderr
    assert done.stderr.endswith("Nothing was started.\n")
