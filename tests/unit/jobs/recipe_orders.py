"""Orders for the tests of the recipes: a configuration that each recipe accepts."""

from functools import cache
from typing import Any

from tests.unit.jobs.plans import ROOT, request

from trainyard.config.load import load_config
from trainyard.config.schema import Config
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec

NODES = (1, 2, 16)
_COMMON = (
    "cluster.pod.hyperpodrun=true",
    *("training.max_steps=1000", "training.epochs=null", "training.batch_size=2", "model.dtype=bfloat16"),
    *("training.gradient_accumulation_steps=4", "training.learning_rate=1.23456789e-5"),
)
_DATA = ("data.train_path=/shared/data/corpus_text_document", "model.tokenizer=/shared/tokenizer")
GIVEN: dict[str, tuple[str, ...]] = {
    "megatron": (*_DATA, "program.script=/opt/Megatron-LM/pretrain_gpt.py", "compute.tensor_parallel=2"),
    "nemo": (*_DATA, "model.architecture.rope_scaling.rope_type=default", "compute.tensor_parallel=2"),
    "verl": (
        *("model.path=Qwen/Qwen2.5-0.5B-Instruct", "data.train_path=/shared/gsm8k/train.parquet"),
        *("data.validation_path=/shared/gsm8k/test.parquet", "grpo.max_completion_tokens=512"),
        "grpo.completions_per_question=8",
    ),
    "torchtitan": ("program.preset=llama3.llama3_8b", "model.tokenizer=/shared/tokenizer"),
    "deepspeed": ("program.script=/opt/train/train.py", "compute.strategy=fsdp"),
}
"""Recipe -> the settings that it needs beside the model."""
TORCHRUN = ("megatron", "nemo", "torchtitan", "deepspeed")


@cache
def recipe_config(recipe: str, *overrides: str) -> Config:
    given = [*_COMMON, f"recipe={recipe}", *GIVEN[recipe], *overrides]
    return load_config(ROOT / "configs" / "models" / "llama-3.1-8b.yaml", given).config


def recipe_plan(recipe: str, *overrides: str, **changes: Any) -> JobSpec:
    kind = "rayjob" if recipe == "verl" else "pytorchjob"
    return plan_job(recipe_config(recipe, *overrides), request(**{"kind": kind, **changes}))
