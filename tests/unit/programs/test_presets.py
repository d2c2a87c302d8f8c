"""Presets of programs: a program that is added by one module and one line."""

import json
from pathlib import Path

import pytest
from tests.unit.jobs.plans import request

from trainyard.config.load import load_config
from trainyard.config.registries import PRESETS, Choice
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.recipes import program_here
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
    memory=lambda config: "sharded",
    required={"program.script": "the script"},
    defaults={"training": {"batch_size": 3}},
    planned={"batch": "training.batch_size"},
)
"""


def test_every_preset_has_its_name() -> None:
    assert [load_preset(name).name for name in PRESETS] == list(PRESETS)


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
    assert plan.program.command[:5] == ("python", "-P", "-m", "trainyard", "pod")
    assert list(plan.program.files) == ["config.yaml"]  # it is rendered where it runs
    there = program_here(config, own / "runs/one", nodes=2, processes=8)
    assert there.command[2:] == (
        *("--batch=48", "--replicas=16"),
        *(f"--out={own}/runs/one/program", "--steps=1000", "--more=1"),
    )
    assert there.environment["OWN_SEED"] == str(config.training.seed)
    here = program_here(config, own / "runs/one", processes=2)
    assert here.command[:4] == ("python", "own.py", "--batch=6", "--replicas=2")
    assert (here.steps, here.torchrun, here.checkpoints) == (1000, True, f"{own}/runs/one/program/*")
    layers = {"layers": config.model.architecture.num_layers}
    assert (json.loads(here.files["own.json"]), here.files["note.txt"]) == (layers, "{as it is}")


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
        (("training.epochs=1",), "training.epochs: 1 is for the trainer"),
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
def test_a_program_that_starts_its_processes_gets_those_of_the_configuration(own: Path, name: str) -> None:
    config = configured(own, "model.path=small", "data.train_path=data", "program.processes=8", recipe=name)
    assert plan_job(config, request(nodes=2)).processes_per_node == 8
    here = program_here(config, own / "runs/one", nodes=2)
    assert (here.torchrun, here.resume[-1]) == (None, "{checkpoint}")


def test_the_data_of_a_preset_are_on_record_where_the_configuration_names_them(own: Path) -> None:
    """Without program.data such a run could never be proven; program.data replaces them."""
    paths, both = ("data.train_path=/t", "data.validation_path=/v"), ("/t", "/v")
    prefixed = ("/t.bin", "/t.idx", "/v.bin", "/v.idx")
    parquet = ("data.train_path=/t.parquet", "data.validation_path=/v.parquet", "model.path=small")
    cases: list[tuple[str, tuple[str, ...], tuple[str, ...] | None]] = [
        ("megatron", ("model.tokenizer=t", *paths), prefixed),
        ("megatron", (), ()),  # mock data
        ("nemo", ("model.tokenizer=t", "model.dtype=bfloat16", *paths), prefixed),
        ("verl", parquet, ("/t.parquet", "/v.parquet")),
        ("torchtitan", ("program.preset=a.b", paths[0]), both[:1]),
        ("torchtitan", ("program.preset=a.b",), None),  # its own configuration names them
        ("deepspeed", (), None),
    ]
    for name, given, data in cases:
        config = configured(own, "compute.strategy=single", *given, recipe=name)
        assert program_here(config, own / "runs/one", processes=8).data == data, name
        stated = config.model_copy(update={"program": config.program.model_copy(update={"data": ("x",)})})
        assert program_here(stated, own / "runs/one", processes=8).data == ("x",), name
