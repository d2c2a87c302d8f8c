"""trainyard config show as people call it: output, exit status, and never a traceback."""

import json
from pathlib import Path

import yaml
from tests.scripts.conftest import ROOT, Call

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
