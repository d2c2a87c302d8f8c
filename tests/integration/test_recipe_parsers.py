"""The programs' own parsers take what the recipes render, and read what was meant.

They need much that is not in the lock. A Python that has a program is named by a variable; without it the
test is skipped. How to make one is in CONTRIBUTING.md.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jobs.recipe_orders import GIVEN, NODES, recipe_plan

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
    done = subprocess.run(
        [python_of(recipe), str(READER), recipe],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def case(recipe: str, *overrides: str, nodes: int) -> dict[str, Any]:
    made = recipe_plan(recipe, *overrides, nodes=nodes)
    sheet = json.loads(made.program.files["program.json"])
    words = [made.program.files["deepspeed.json"]] if recipe == "deepspeed" else sheet["command"]
    return {"words": words, "world": made.world_size, "environment": sheet["environment"]}


EXPECTED: dict[str, dict[str, Any]] = {
    "megatron": {"train_iters": 1000, "micro_batch_size": 2, "swiglu": True, "bf16": True},
    "verl": {"total_training_steps": 1000, "n_gpus_per_node": 8, "n": 8, "save_freq": 500},
    "torchtitan": {"steps": 1000, "interval": 500, "enabled": True, "log_freq": 10},
    "deepspeed": {"micro": 2, "accumulation": 4, "stage": 3, "optimizer": "adamw"},
}
BATCH = {
    "megatron": ("global_batch_size", 32),
    "verl": ("questions", 8),
    "torchtitan": ("global_batch_size", 64),
    "deepspeed": ("train_batch_size", 64),
}
"""The name under which a program has its batch, and its size on one node."""


@pytest.mark.parametrize("recipe", VARIABLES)
def test_a_programs_own_parser_reads_what_the_plan_means(recipe: str) -> None:
    answers = read(recipe, [case(recipe, nodes=nodes) for nodes in NODES])
    name, one = BATCH[recipe]
    for nodes, answer in zip(NODES, answers, strict=True):
        found = answer.get("read", answer)
        assert {key: found.get(key) for key in EXPECTED[recipe]} == EXPECTED[recipe], answer
        assert found[name] == one * nodes


@pytest.mark.parametrize("recipe", VARIABLES)
def test_a_programs_own_parser_takes_every_option(recipe: str) -> None:
    answers = read(recipe, [case(recipe, *overrides, nodes=2) for overrides in MORE[recipe]])
    assert [answer["refused"] for answer in answers if "refused" in answer] == []


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
