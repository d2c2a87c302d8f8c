"""Recipes of other programs: what they render, what they refuse, and what they read in a log."""

import ast
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.unit.jobs.plans import ROOT, containers, instance_for, objects
from tests.unit.jobs.recipe_orders import GIVEN, NODES, recipe_config, recipe_plan

from trainyard.config.load import load_config
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_spec import JobSpec, PodResources, Program
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.recipes import program_here, program_problems, run_in_pods
from trainyard.plan.parallel_degrees import Degrees, degree_problems
from trainyard.programs.presets.preset import load_preset, planned_keys, text_of, with_settings
from trainyard.programs.program import Program as RunProgram

GOLDEN = ROOT / "tests" / "golden" / "jobs"
RAY = ("rayjob", "raycluster")
PAIRS = [(r, k) for r, k in itertools.product(GIVEN, KINDS) if k in RAY or r != "verl"]


def refused(recipe: str, *overrides: str, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        recipe_plan(recipe, *overrides, **changes)
    *lines, last = str(raised.value).split("\n")
    assert last.endswith("Nothing was sent.")
    return lines


@each_case("recipe", GIVEN)
@each_case("nodes", NODES)
def test_what_is_rendered_is_what_was_rendered_before(recipe: str, nodes: int) -> None:
    found = program_of(recipe_config(recipe), nodes)
    files = {name: json.loads(text) if name.endswith(".json") else text for name, text in found.files.items()}
    names = ("command", "environment", "steps", "torchrun", "metrics", "checkpoints", "data")
    shown = {**files, "program": {name: plain(getattr(found, name)) for name in names}}
    kinds = {kind: started_by(recipe, kind, nodes) for name, kind in PAIRS if name == recipe}
    text = yaml.safe_dump({"kinds": kinds, **shown}, sort_keys=True, width=110)
    path = GOLDEN / f"recipe-{recipe}-{nodes}.yaml"
    if os.environ.get("TRAINYARD_WRITE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def program_of(config: Config, nodes: int = 1) -> RunProgram:
    """Return the program that each pod of a job renders."""
    return program_here(config, Path("/checkpoints/team/llama"), nodes=nodes, processes=8)


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def started_by(recipe: str, kind: str, nodes: int) -> dict[str, Any]:
    """Return the kinds of the objects, the number of nodes, and the command that starts the program."""
    wanted = {"kind": kind, "nodes": nodes, "instance_type": instance_for(kind, "p5.48xlarge")}
    bodies = objects(recipe_plan(recipe, **wanted))
    entrypoint = bodies[-1]["spec"].get("entrypoint")
    commands = [container.get("command") for body in bodies for container in containers(body)]
    commands.append(bodies[-1]["spec"].get("trainer", {}).get("command"))
    return {
        "objects": [body["kind"] for body in bodies],
        "pods": recipe_plan(recipe, **wanted).nodes,
        "command": entrypoint or " ".join(next(command for command in commands if command)),
    }


WRONG: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    ("megatron", ("program.script=null",), {}, "program.script: not set"),
    ("megatron", ("program.script=pretrain_gpt.py",), {}, "program.script: pretrain_gpt.py is not absolute"),
    ("megatron", ("training.max_steps=null", "training.epochs=1"), {}, "training.max_steps: not set"),
    ("megatron", ("training.epochs=1",), {}, "training.epochs: 1 is for the trainer of this repository"),
    ("megatron", ("training.warmup_steps=1000",), {}, "training.warmup_steps: 1000 is not below"),
    (
        "megatron",
        ("compute.tensor_parallel=16",),
        {"nodes": 2},
        "compute.tensor_parallel: 16 does not divide the 8",
    ),
    ("megatron", ("compute.pipeline_parallel=3",), {}, "world size 8: not divisible"),
    ("megatron", ("program.global_batch=100",), {}, "program.global_batch: 100 is not divisible"),
    ("megatron", ("compute.expert_parallel=2",), {}, "but the model has no experts"),
    ("megatron", ("model.tokenizer=null",), {}, "model.tokenizer: null"),
    ("megatron", ("data.train_path=corpus",), {}, "data.train_path: corpus is not absolute"),
    ("megatron", ("data.train_path=null", "data.validation_path=/v"), {}, "data.train_path: null, but"),
    (
        "megatron",
        ("compute.cpu_offload=true", "compute.strategy=fsdp"),
        {},
        "compute.cpu_offload: True is for",
    ),
    ("megatron", ("checkpointing.shared=false",), {}, "checkpointing.shared: False is for"),
    ("megatron", (), {"processes_per_node": 4}, "--nproc-per-node 4: this recipe starts one process per GPU"),
    (
        "megatron",
        ("compute.tensor_parallel=1",),
        {"instance_type": "g5.xlarge"},
        "does not fit: a GPU needs at",
    ),
    ("nemo", ("model.dtype=float32",), {}, "model.dtype: float32"),
    ("nemo", ("program.settings=a=1",), {}, "program.settings: recipe nemo takes none"),
    (
        "nemo",
        ("compute.expert_parallel=2",),
        {},
        "compute.expert_parallel: 2, but recipe nemo does not have it",
    ),
    ("verl", (), {"kind": "pytorchjob", "nodes": 2}, "--kind pytorchjob: verl runs on Ray"),
    ("verl", ("model.path=null",), {}, "model.path: not set"),
    ("verl", ("data.train_path=null",), {}, "data.train_path: not set"),
    ("verl", ("data.train_path=/shared/gsm8k",), {}, "data.train_path: /shared/gsm8k is not a .parquet"),
    ("verl", ("compute.pipeline_parallel=2",), {}, "compute.pipeline_parallel: 2, but recipe verl"),
    ("verl", ("compute.tensor_parallel=3",), {}, "compute.tensor_parallel: 3 does not divide the 8 GPUs"),
    ("verl", ("grpo.completions_per_question=7",), {}, "7 does not divide the 64 answers"),
    ("verl", ("program.global_batch=24",), {}, "program.global_batch: 24 is not divisible"),
    ("verl", ("grpo.max_completion_tokens=2048",), {}, "leaves no room for the question"),
    ("verl", ("program.settings=trainer.max_steps=5",), {}, "no version of verl has it"),
    ("verl", ("program.settings=+trainer.nnodes=9",), {}, "is decided by the plan; set --num-nodes"),
    ("verl", ("program.settings=a b=9",), {}, "is not a KEY=VALUE"),
    ("verl", ("program.settings=$x=9",), {}, "is not the name of a setting of verl"),
    ("verl", (), {"instance_type": "g5.xlarge"}, "does not fit: a GPU needs at least"),
    ("torchtitan", ("program.preset=null",), {}, "program.preset: not set"),
    ("torchtitan", ("compute.expert_parallel=2",), {}, "recipe torchtitan does not have it"),
    ("torchtitan", ("model.tokenizer=tokenizer",), {}, "model.tokenizer: tokenizer is not absolute"),
    ("torchtitan", ("model.path=weights",), {}, "model.path: weights is not absolute"),
    ("torchtitan", ("data.train_path=corpus",), {}, "data.train_path: corpus is not absolute"),
    ("torchtitan", ("program.settings=training.seq_len=9",), {}, "set data.sequence_length instead"),
    ("torchtitan", (), {"instance_type": "g5.xlarge"}, "does not fit"),
    ("deepspeed", ("program.script=null",), {}, "program.script: not set; name your script"),
    ("deepspeed", ("compute.tensor_parallel=2",), {}, "recipe deepspeed does not have it"),
    ("deepspeed", (), {"instance_type": "g5.xlarge"}, "does not fit"),
]


@each_case(("recipe", "overrides", "changes", "said"), WRONG, ids=[w[3][:50] for w in WRONG])
def test_what_cannot_run_is_refused(
    recipe: str, overrides: tuple[str, ...], changes: dict[str, Any], said: str
) -> None:
    assert any(said in line for line in refused(recipe, *overrides, **changes))


@each_case("recipe", GIVEN)
def test_a_setting_that_contradicts_the_plan_is_refused(recipe: str) -> None:
    config = recipe_config(recipe)
    keys = planned_keys(load_preset(recipe), config, run_in_pods(config, draft_of(config)))
    config = with_settings(config, [f"{key}=1" for key in keys])
    planned = [line for line in problems(config) if "is decided by the plan" in line]
    assert len(planned) == len(keys) >= (0 if recipe == "nemo" else 4)


def draft_of(config: Config) -> JobSpec:
    kind = "rayjob" if config.recipe == "verl" else "pytorchjob"
    return JobSpec("llama", "team", kind, "image", Program("", ()), 1, 8, PodResources(0, 0))


def problems(config: Config) -> list[str]:
    return list(program_problems(config, draft_of(config)))


def rendered(config: Config) -> tuple[list[str], dict[str, str]]:
    """Return the command of a program without its interpreter, and its files."""
    found = program_of(config)
    return list(found.command[1:]), dict(found.files)


def arguments(config: Config) -> dict[str, str | None]:
    """Return the arguments of Megatron by name; None for a switch."""
    found: dict[str, str | None] = {}
    for word in rendered(config)[0][1:]:
        if word.startswith("--"):
            found[word.removeprefix("--")] = None
        else:
            found[list(found)[-1]] = word
    return found


def test_settings_of_the_program_are_laid_over_the_rendered_ones() -> None:
    config = with_settings(
        recipe_config("megatron", "program.settings=bf16=false"), ["fp16=true", "eval-iters=3", "# a comment"]
    )
    found = arguments(config)
    assert "bf16" not in found
    assert (found["fp16"], found["eval-iters"]) == (None, "3")
    settings = ["checkpoint.enable=false", "debug.x=true"]
    words, _ = rendered(with_settings(recipe_config("torchtitan"), settings))
    assert "--debug.x" in words
    assert "--checkpoint.enable" not in words
    offload = "zero_optimization.offload_optimizer.device=cpu"
    given = with_settings(recipe_config("deepspeed"), [offload, "prescale_gradients=true"])
    made = json.loads(rendered(given)[1]["deepspeed.json"])
    assert made["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    assert made["prescale_gradients"] is True
    assert "+a.b=c" in rendered(with_settings(recipe_config("verl"), ["+a.b=c"]))[0]


def test_experts_are_divided_when_the_model_has_them() -> None:
    config = with_settings(recipe_config("megatron", "compute.expert_parallel=4"), ["num-experts=8"])
    assert problems(config) == []
    assert arguments(config)["expert-model-parallel-size"] == "4"
    odd = with_settings(recipe_config("megatron", "compute.expert_parallel=4"), ["num-experts=6"])
    assert any("does not divide the 6 experts" in line for line in problems(odd))


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=settings().max_examples // 2)
def test_a_number_is_read_back_as_it_was_written(value: float) -> None:
    assert float(text_of(value)) == value


DEGREES = st.sampled_from([1, 2, 3, 4, 8, 16])


@given(
    nodes=st.integers(1, 16),
    per_node=st.sampled_from([1, 2, 4, 8]),
    tensor=DEGREES,
    pipeline=DEGREES,
    context=DEGREES,
    expert=DEGREES,
    micro=st.integers(1, 4),
    batch=st.one_of(st.none(), st.integers(1, 4096)),
)
@settings(max_examples=3 * settings().max_examples)
def test_the_degrees_are_refused_exactly_when_a_rule_is_broken(
    nodes: int,
    per_node: int,
    tensor: int,
    pipeline: int,
    context: int,
    expert: int,
    micro: int,
    batch: int | None,
) -> None:
    config = recipe_config("torchtitan")
    found = Degrees(nodes * per_node, per_node, tensor, pipeline, context, expert, micro, batch, 1)
    shape, length = config.model.architecture, config.data.sequence_length
    data = max(1, nodes * per_node // (tensor * pipeline * context))
    broken = [
        nodes * per_node % (tensor * pipeline * context) != 0,
        per_node % tensor != 0,
        expert > 1 and data * context % expert != 0,
        batch is not None and batch % (micro * data) != 0,
        shape.num_attention_heads % tensor != 0,
        shape.intermediate_size % tensor != 0,
        shape.num_layers % pipeline != 0,
        shape.num_key_value_heads % tensor != 0 and tensor % shape.num_key_value_heads != 0,
        context > 1 and length % (2 * context) != 0,
        tensor > 1 and length % (tensor * context) != 0,
    ]
    assert len(list(degree_problems(config, found))) == sum(broken)
    if not any(broken):
        assert data * tensor * pipeline * context == nodes * per_node
        assert found.global_batch % (micro * data) == 0
        assert found.global_batch == micro * data * found.micro_batches


def test_nemos_script_is_python_and_reads_what_is_rendered() -> None:
    tree = ast.parse(rendered(recipe_config("nemo"))[1]["train_nemo.py"])
    read = {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
    }

    def numbers(*overrides: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(rendered(recipe_config("nemo", *overrides))[1]["nemo.json"])
        return found

    assert read == set(numbers())
    mock = numbers("data.train_path=null")
    assert (mock["tokenizer"], set(mock["data"])) == (
        None,
        {"seq_length", "micro_batch_size", "global_batch_size"},
    )
    held = numbers("data.validation_path=/v")
    assert held["data"]["paths"]["validation"] == ["/v"]
    assert numbers("training.lr_scheduler=constant")["schedule"] is None
    llama = numbers("model.architecture.rope_scaling.rope_type=llama3")["model"]
    assert [llama[name] for name in ("scale_factor", "low_freq_factor", "old_context_len")] == [8, 1, 8192]


@pytest.mark.parametrize(
    ("overrides", "there", "absent"),
    [
        (("data.train_path=null",), ["mock-data", "vocab-size"], ["data-path"]),
        (("data.validation_path=/v",), ["train-data-path", "valid-data-path"], ["split"]),
        (("compute.activation_checkpointing=full",), ["recompute-method"], []),
        (("compute.tensor_parallel=1",), [], ["sequence-parallel"]),
        (("model.architecture.tie_word_embeddings=true",), [], ["untie-embeddings-and-output-weights"]),
        (("model.architecture.rope_scaling.rope_type=default",), [], ["use-rope-scaling"]),
        (("model.dtype=float32",), ["tensorboard-dir"], ["bf16"]),
    ],
)
def test_megatrons_switches_follow_the_configuration(
    overrides: tuple[str, ...], there: list[str], absent: list[str]
) -> None:
    found = arguments(recipe_config("megatron", *overrides))
    assert [name for name in there if name not in found] == []
    assert [name for name in absent if name in found] == []


def test_a_schedule_of_deepspeed_follows_the_configuration() -> None:
    constant = recipe_config("deepspeed", "training.lr_scheduler=constant", "compute.strategy=ddp")
    found = json.loads(rendered(constant)[1]["deepspeed.json"])
    assert found["scheduler"]["type"] == "WarmupLR"
    assert found["zero_optimization"]["stage"] == 0


def test_torchtitans_options_follow_the_configuration() -> None:
    given = ("compute.compile=true", "data.train_path=/d", "model.path=/w", "compute.pipeline_parallel=2")
    words, _ = rendered(recipe_config("torchtitan", *given))
    expected = {"--compile.enable", "--dataloader.dataset-path=/d", "--checkpoint.initial-load-path=/w"}
    assert expected | {"--training.disable-cuda-graphs"} <= set(words)
    assert "--training.disable-cuda-graphs" not in rendered(recipe_config("torchtitan"))[0]


def test_a_recipe_of_another_program_is_not_for_the_trainer() -> None:
    from trainyard.config.mesh import require_processes

    with pytest.raises(ConfigError, match="recipe: megatron is another program's"):
        require_processes(recipe_config("megatron"), 1)
    with pytest.raises(
        ConfigError, match=r"compute\.pipeline_parallel=2: 2 needs the recipe of another program"
    ):
        load_config(ROOT / "configs" / "smoke.yaml", ["compute.pipeline_parallel=2"])
