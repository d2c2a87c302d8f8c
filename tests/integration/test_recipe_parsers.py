"""The programs' own parsers take the options that the recipes render, and read them as meant.

The programs need packages that are not in the lock. A variable names a Python that has one; without it the
test is skipped. How to make one is in CONTRIBUTING.md.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from tests.unit.jobs.recipe_orders import GIVEN, NODES, recipe_config, recipe_plan

from trainyard.config.keys import leaf_keys, section_at
from trainyard.errors import ConfigError

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
    return {
        "words": words,
        "world": made.nodes * made.processes_per_node,
        "environment": sheet["environment"],
    }


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


VARIED = ("model", "data", "training", "compute", "checkpointing", "monitoring", "grpo", "program")
"""The sections from which a recipe renders options."""


def other_values(key: str, now: object) -> list[str]:
    """Values to try for a key of the configuration, from its type; the plan refuses what does not fit."""
    field = key_type(key)
    if field is bool:
        return [json.dumps(not now)]
    if get_origin(field) is Literal:
        return [str(value) for value in get_args(field) if value != now]
    if isinstance(now, int):
        return [str(value) for value in (0, 1, 2, 4, now * 2, now // 2)]
    if isinstance(now, float):
        return [str(value) for value in (0.0, now * 0.1, now * 0.5, 1e-13)]
    return ["null", "1", "3", "64", "0.5", "/shared/more", "/shared/more.parquet"]


def key_type(key: str) -> Any:
    *path, name = key.split(".")
    section = section_at(tuple(path))
    assert section is not None
    return section.model_fields[name].annotation


def one_changed(recipe: str) -> dict[str, dict[str, Any]]:
    """A case for each other value of a key that can be planned and that changes the program's options."""
    found, given = {"": case(recipe, nodes=2)}, recipe_config(recipe).model_dump()
    for key in leaf_keys():
        section, *path = key.split(".")
        now = given[section]
        for name in path:
            now = now[name]
        for value in other_values(key, now) if section in VARIED else ():
            try:
                made = case(recipe, f"{key}={value}", nodes=2)
            except ConfigError:
                continue
            if made == found[""]:
                break  # the recipe does not render this key
            if made not in found.values():
                found[f"{key}={value}"] = made
    return found


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


FLOOR = {"megatron": 30, "verl": 30, "torchtitan": 40, "deepspeed": 30}
"""With fewer cases, the rule that makes them would be broken."""


@pytest.mark.parametrize("recipe", VARIABLES)
def test_every_value_that_is_rendered_is_read_back_as_it_was_meant(recipe: str) -> None:
    python_of(recipe)
    cases = one_changed(recipe)
    answers = dict(zip(cases, read(recipe, list(cases.values())), strict=True))
    assert {name: answer["refused"] for name, answer in answers.items() if "refused" in answer} == {}
    assert len(answers) >= FLOOR[recipe]
    wrong = []
    for name, answer in answers.items():
        ours, theirs = rendered(recipe, cases[name]["words"]), answer["read"]["options"]
        wrong += [
            (name, option, ours[option], theirs[option])
            for option in theirs
            if not same(ours[option], theirs[option])
        ]
    assert wrong == []


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 100])
def test_deepspeed_trains_with_the_rates_of_the_configuration(schedule: str, warmup: int) -> None:
    overrides = (f"training.lr_scheduler={schedule}", f"training.warmup_steps={warmup}")
    answer = read("deepspeed", [case("deepspeed", *overrides, nodes=2)])[0]
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
