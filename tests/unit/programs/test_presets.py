"""Presets of programs: their templates, and a program that is added by one file."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.plans import request

from trainyard.config.load import load_config
from trainyard.config.registries import PRESETS
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import decides_the_end, plan_job
from trainyard.jobs.recipes.preset_recipe import program_here
from trainyard.programs.presets import ABSENT, evaluate, fill, load_preset

VALUES = {
    "a": {"b": 3, "text": "x.y", "nothing": None, "global_": 8},
    "absent": ABSENT,
    "none": None,
    "max": max,
}
PLANTED = """
meaning: a program of our own
command: [python, own.py]
launcher: torchrun
log: json
formats: [files]
memory: sharded
required: {program.script: the script}
checks:
  - when: training.seed == 13
    problem: "training.seed: {training.seed} brings bad luck"
defaults: {training: {batch_size: 3}}
options:
  batch: "{batch.global}"
  replicas: "{parallel.data}"
  out: "{run.checkpoints}"
  steps: "{run.steps}"
planned: {batch: training.batch_size}
environment: {OWN_SEED: "{training.seed}"}
files:
  own.json: {layers: "{model.architecture.num_layers}"}
  note.txt: "{as it is}"
"""


@each_case("name", PRESETS)
def test_every_preset_can_be_loaded(name: str) -> None:
    assert load_preset(name).name == name
    assert PRESETS[name].meaning


@each_case(
    ("template", "value"),
    [
        ("{a.b}", 3),
        ("{a.b + 1}", 4),
        ("{a.b % 2 and a.text}", "x.y"),
        ("{a.nothing or 1e9}", 1e9),
        ("{not a.nothing}", True),
        ("{a.b if a.b > 3 else absent}", ABSENT),
        ("{a.text in ('x.y', 'z')}", True),
        ("{max(2, a.b)} of {a.b}", "3 of 3"),
        ("{a.b / 2}, {0.1}, {1e9}", "1.5, 0.1, 1000000000"),
        ("{{step}}", "{step}"),
        (["{a.b}", {"c": "{absent}", "d": "{none}"}], [3, {"d": None}]),
        ("{batch.global}", 16),
    ],
)
def test_templates_are_filled(template: Any, value: Any) -> None:
    assert fill(template, {**VALUES, "batch": {"global_": 16}}) == value


@each_case(
    "text",
    [
        "a.c",
        "c",
        "a.b.c",
        "a.b +",
        "a.text % 2",
        "a.__class__",
        "(1).real",
        "[x for x in a]",
        "max.call(1)",
        "1 / 0",
    ],
)
def test_an_expression_without_a_value_is_a_wrong_preset(text: str) -> None:
    with pytest.raises(ConfigError, match="a preset's expression"):
        evaluate(text, VALUES)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's repository with its own preset."""
    (tmp_path / "configs/programs").mkdir(parents=True)
    (tmp_path / "configs/programs/own.yaml").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(folder: Path, *overrides: str, recipe: str = "own") -> Config:
    (folder / "run.yaml").write_text(f"recipe: {recipe}\nmodel: {{name: small}}\n")
    given = ["training.max_steps=1000", "program.script=/own.py", *overrides]
    return load_config(folder / "run.yaml", given).config


def test_a_program_is_added_by_one_file(own: Path) -> None:
    """The program is a recipe of the configuration, a job of a cluster, and a program of this machine."""
    assert "own" in PRESETS
    config = configured(own, "program.settings=more=1")
    assert config.training.batch_size == 3  # the preset's default, not the schema's
    plan = plan_job(config, request(nodes=2))
    sheet = json.loads(plan.program.files["program.json"])
    assert sheet["command"] == [
        *("own.py", "--batch=48", "--replicas=16"),
        *("--out=/checkpoints/team/llama/program", "--steps=1000", "--more=1"),
    ]
    assert sheet["environment"]["OWN_SEED"] == str(config.training.seed)
    assert json.loads(plan.program.files["own.json"]) == {"layers": config.model.architecture.num_layers}
    assert plan.program.files["note.txt"] == "{as it is}"
    here = program_here(config, own / "runs/one", processes=2)
    assert here.command[:4] == ("python", "own.py", "--batch=6", "--replicas=2")
    assert (here.steps, here.torchrun, here.checkpoints) == (1000, True, f"{own}/runs/one/program/*")
    assert dict(here.files) == {"own.json": plan.program.files["own.json"], "note.txt": "{as it is}"}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("program.script=null",), "program.script: not set; name the script"),
        (("training.seed=13",), "training.seed: 13 brings bad luck"),
        (
            ("program.settings=batch=4",),
            "program.settings: batch=4 is decided by the plan; set training.batch_size",
        ),
        (("compute.tensor_parallel=2",), "compute.tensor_parallel: 2, but recipe own does not have it"),
        (("checkpointing.shared=false",), "checkpointing.shared: False is for the trainer"),
        (("monitoring.log_steps=3",), "monitoring.log_steps: 3 does not divide"),
    ],
)
def test_its_rules_hold_in_a_job_and_here(own: Path, overrides: tuple[str, ...], problem: str) -> None:
    config = configured(own, *overrides)
    with pytest.raises(ConfigError, match=problem):
        plan_job(config, request())
    with pytest.raises(ConfigError, match=problem):
        program_here(config, own / "runs/one", processes=2)


def test_a_file_that_is_no_preset_is_refused_by_its_keys(own: Path) -> None:
    (own / "configs/programs/own.yaml").write_text("meaning: own\ncommand: train\nlunch: now\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: command: [^\n]*\n[^\n]*own\.yaml: lunch: "):
        load_preset("own")


def test_a_configuration_wins_over_the_defaults_of_a_preset(own: Path) -> None:
    assert configured(own, "training.batch_size=5").training.batch_size == 5


@pytest.mark.parametrize("name", ["hf-trainer", "trl-sft", "lightning"])
def test_a_preset_without_log_is_rendered_in_the_pods_and_proven_completely(own: Path, name: str) -> None:
    config = configured(own, "model.path=small", "data.train_path=data", "program.processes=8", recipe=name)
    plan = plan_job(config, request(nodes=2))
    assert plan.program.command[:5] == ("python", "-P", "-m", "trainyard", "pod")
    assert "program.json" not in plan.program.files
    assert plan.processes_per_node == 8
    assert all(decides_the_end(part, plan, store="s3://runs") for part in ("trained", "repeatable"))
    here = program_here(config, own / "runs/one", nodes=2)
    assert (here.torchrun, here.resume[-1]) == (None, "{checkpoint}")
