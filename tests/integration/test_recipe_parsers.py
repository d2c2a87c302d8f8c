"""The programs' own parsers take the options that the recipes render, and read them as meant."""

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jobs.recipe_orders import GIVEN, NODES, recipe_config, recipe_plan

from trainyard.jobs.recipes import program_here

# The programs need packages that are not in the lock. A variable names a Python that has one; without it the
# test is skipped. How to make one is in CONTRIBUTING.md.
READER = Path(__file__).with_name("foreign_parsers.py")
VARIABLES = {name: f"{name.upper()}_PYTHON" for name in GIVEN if name != "nemo"}
MORE: dict[str, tuple[tuple[str, ...], ...]] = {
    "megatron": (
        ("compute.pipeline_parallel=4", "compute.activation_checkpointing=full"),
        ("compute.context_parallel=2", "compute.activation_checkpointing=selective"),
        ("data.train_path=null", "training.lr_scheduler=constant"),
        ("data.validation_path=/shared/held_text_document", "program.global_batch=512"),
        ("program.settings=eval-iters=3\nmanual-gc=true",),
    ),
    "verl": (
        ("compute.tensor_parallel=2", "grpo.kl_coefficient=0"),
        ("program.global_batch=512", "monitoring.wandb.enabled=true"),
        ("program.settings=actor_rollout_ref.rollout.gpu_memory_utilization=0.6",),
    ),
    "torchtitan": (
        ("compute.tensor_parallel=2", "compute.compile=true"),
        ("compute.pipeline_parallel=2", "compute.context_parallel=2"),
        ("program.settings=debug.deterministic=true",),
    ),
    "deepspeed": (
        ("compute.strategy=ddp", "training.lr_scheduler=constant"),
        ("program.settings=zero_optimization.offload_optimizer.device=cpu",),
    ),
}
"""Further overrides per recipe, each on two nodes."""


def python_of(recipe: str) -> str:
    variable = VARIABLES[recipe]
    if variable not in os.environ:
        pytest.skip(f"{variable} names no Python that has {recipe}")
    return os.environ[variable]


def read(recipe: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    line, given = [python_of(recipe), str(READER), recipe], json.dumps(cases)
    done = subprocess.run(line, input=given, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def case(recipe: str, *overrides: str, nodes: int) -> dict[str, Any]:
    config = recipe_config(recipe, *overrides)
    made = program_here(config, Path("/checkpoints/team/llama"), nodes=nodes, processes=8)
    words = [made.files["deepspeed.json"]] if recipe == "deepspeed" else list(made.command[1:])
    return {"words": words, "world": 8 * nodes, "environment": dict(made.environment)}


def rendered(recipe: str, words: list[str]) -> dict[str, Any]:
    """The values that we gave, by the program's names for them. A switch is True."""
    if recipe == "deepspeed":
        return dict(flat(json.loads(words[0])))
    if recipe == "verl":
        pairs = (word.partition("=") for word in words if "=" in word)
        return {name: value for name, _, value in pairs}
    found: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            found[name] = [value] if equals else []
        elif found:
            found[list(found)[-1]].append(word)
    return {name: " ".join(values) if values else True for name, values in found.items()}


def flat(section: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def same(ours: Any, read: Any) -> bool:
    """Whether a value that a program read is the one that we wrote."""
    if isinstance(read, list):
        parts = ours if isinstance(ours, list) else re.findall(r"[^\s,\[\]]+", str(ours))
        texts = (part.strip('"') if isinstance(part, str) else part for part in parts)
        return len(parts) == len(read) and all(map(same, texts, read))
    if isinstance(read, bool) or read is None:
        return str(ours).lower() == {True: "true", False: "false", None: "null"}[read]
    if isinstance(read, int | float):
        return float(ours) == read
    return str(ours).strip('"').lower() == str(read).lower()


@pytest.mark.parametrize("recipe", VARIABLES)
def test_every_value_that_is_rendered_is_read_back_as_it_was_meant(recipe: str) -> None:
    """What a plan renders is in the golden files; here the program reads it."""
    cases = {f"{nodes} nodes": case(recipe, nodes=nodes) for nodes in NODES}
    cases |= {" ".join(overrides): case(recipe, *overrides, nodes=2) for overrides in MORE[recipe]}
    answers = dict(zip(cases, read(recipe, list(cases.values())), strict=True))
    assert {name: answer["refused"] for name, answer in answers.items() if "refused" in answer} == {}
    wrong = []
    for name, answer in answers.items():
        ours, theirs = rendered(recipe, cases[name]["words"]), answer["read"]["options"]
        assert len(theirs) > 15, "nothing was compared"
        wrong += [
            (name, each, ours[each], theirs[each]) for each in theirs if not same(ours[each], theirs[each])
        ]
    assert wrong == []


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 100])
def test_deepspeed_trains_with_the_rates_of_the_configuration(schedule: str, warmup: int) -> None:
    overrides = (f"training.lr_scheduler={schedule}", f"training.warmup_steps={warmup}")
    [answer] = read("deepspeed", [case("deepspeed", *overrides, nodes=2)])
    rates, peak = answer["read"]["rates"], 1.23456789e-5
    assert max(rates) == pytest.approx(peak, rel=1e-4)
    assert rates[999] == pytest.approx(peak * (0.1 if schedule == "cosine" else 1), rel=0.01)
    assert rates[0] == pytest.approx(peak if warmup == 0 else 0)
    if warmup == 100:
        assert rates[50] == pytest.approx(peak / 2)


@pytest.mark.parametrize("recipe", VARIABLES)
def test_the_parsers_refuse_what_a_program_does_not_have(recipe: str) -> None:
    """A parser that takes everything would show nothing."""
    given = case(recipe, nodes=1)
    if recipe == "deepspeed":
        given["words"] = [given["words"][0].replace('"train_batch_size": 64', '"train_batch_size": 63')]
    else:
        wrong = {"megatron": "--no-such-argument", "verl": "trainer.max_steps=5", "torchtitan": "--no.such=1"}
        given["words"] = [*given["words"], wrong[recipe]]
    assert "refused" in read(recipe, [given])[0]


# Importing NeMo needs GPUs, so its source is read. NEMO_SOURCE names a folder with the packages `nemo` (2.x)
# and `megatron`, such as two unpacked wheels.
PLACES: dict[str, tuple[str, ...]] = {
    "model": (
        "nemo/collections/llm/gpt/model/llama.py:LlamaConfig",
        "nemo/collections/llm/gpt/model/base.py:GPTConfig",
        "megatron/core/transformer/transformer_config.py:TransformerConfig",
        "megatron/core/model_parallel_config.py:ModelParallelConfig",
    ),
    "data": ("nemo/collections/llm/gpt/data/pre_training.py:PreTrainingDataModule",),
    "optimizer": ("megatron/core/optimizer/optimizer_config.py:OptimizerConfig",),
    "schedule": ("nemo/lightning/pytorch/optim/lr_scheduler.py:CosineAnnealingScheduler",),
    "strategy": ("nemo/lightning/pytorch/strategies/megatron_strategy.py:MegatronStrategy",),
    "log": ("nemo/lightning/nemo_logger.py:NeMoLogger",),
    "checkpoint": ("nemo/lightning/pytorch/callbacks/model_checkpoint.py:ModelCheckpoint",),
}
"""Part of nemo.json -> the class that takes its names as arguments, and its base classes."""
OF_LIGHTNING = {"dirpath", "filename"}
"""NeMo's ModelCheckpoint passes these on to Lightning's."""


def arguments_of(place: str) -> set[str]:
    """The arguments of a class: of its `__init__`, else the fields of the dataclass."""
    path, _, name = place.partition(":")
    tree = ast.parse((Path(os.environ["NEMO_SOURCE"]) / path).read_text())
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


@pytest.mark.skipif("NEMO_SOURCE" not in os.environ, reason="NEMO_SOURCE names no folder with nemo 2.x")
@pytest.mark.parametrize("part", PLACES)
def test_nemo_has_every_argument_that_the_recipe_gives(part: str) -> None:
    known = set().union(*map(arguments_of, PLACES[part]))
    for nodes in NODES:
        given = json.loads(recipe_plan("nemo", nodes=nodes).program.files["nemo.json"])[part]
        assert set(given) - known - (OF_LIGHTNING if part == "checkpoint" else set()) == set()
