"""The script of recipe nemo gives NeMo's classes only arguments that the released NeMo 2 has.

Importing NeMo needs GPUs and packages that are not in the lock, so its source is read. NEMO_SOURCE names a
folder with the packages `nemo` (2.x) and `megatron`, such as two unpacked wheels.
"""

import ast
import json
import os
from pathlib import Path

import pytest
from tests.unit.jobs.recipe_orders import NODES, recipe_plan

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
