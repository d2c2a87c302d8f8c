"""Presets of programs: a program that is added by one module and one line."""

import json
from pathlib import Path

import pytest
from tests.unit.jobs.plans import request

from trainyard.config.load import load_config
from trainyard.config.registries import PRESETS, Choice
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import decides_the_end, plan_job
from trainyard.jobs.recipes.preset_recipe import program_here
from trainyard.programs.metrics.log_reader import FORMS
from trainyard.programs.presets.preset import load_preset

PLANTED = """
from trainyard.programs.presets.preset import Preset, PresetCommand


def problems(config, run):
    if config.training.seed == 13:
        yield f"training.seed: {config.training.seed} brings bad luck"


def command(config, run):
    return PresetCommand(
        ("python", "own.py"),
        {
            "batch": run.degrees.global_batch,
            "replicas": run.degrees.data,
            "out": run.checkpoints,
            "steps": config.training.max_steps,
        },
        {"OWN_SEED": str(config.training.seed)},
        {"own.json": {"layers": config.model.architecture.num_layers}, "note.txt": "{as it is}"},
    )


PRESET = Preset(
    "own",
    command,
    problems,
    launcher="torchrun",
    log="json",
    memory=lambda config: "sharded",
    required={"program.script": "the script"},
    defaults={"training": {"batch_size": 3}},
    planned={"batch": "training.batch_size"},
)
"""


def test_every_preset_has_its_name_and_a_form_of_log_that_is_read() -> None:
    for name in PRESETS:
        preset = load_preset(name)
        assert (preset.name, preset.log in (None, *FORMS)) == (name, True)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a preset, which is one line of the registry."""
    (tmp_path / "own_preset.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(PRESETS, "own", Choice("a program of our own", "own_preset"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(folder: Path, *overrides: str, recipe: str = "own") -> Config:
    (folder / "run.yaml").write_text(f"recipe: {recipe}\nmodel: {{name: small}}\n")
    given = ["training.max_steps=1000", "program.script=/own.py", *overrides]
    return load_config(folder / "run.yaml", given).config


def test_a_program_is_added_by_one_module_and_one_line(own: Path) -> None:
    """The program is a recipe of the configuration, a job of a cluster, and a program of this machine."""
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
