"""NeMo 2: a script of `nemo.collections.llm` and the numbers that it reads, both files of the job.

NeMo 3 has no `collections.llm` any more; there the recipe megatron does the same. The image needs
`nemo_toolkit[nlp]` 2.x, which no image of `docker/` has: NeMo 2 wants numpy 1, the training lock has numpy 2.
The script imports only what NeMo 2.4.1, 2.5.3 and 2.7.3 have under the same names; 2.6 and 2.7 dropped
`collections.nlp`. That was read in their wheels; the script was not run with them. It trains a model of the
Llama family by Megatron-Core, as document 003 of the design does. The rows come from the line that rank 0
prints every `monitoring.log_steps` steps; its loss is the mean over these steps.
"""

import json
from collections.abc import Iterator
from typing import Any

from trainyard.jobs.job_plan import FILES_DIRECTORY, Program
from trainyard.jobs.recipes import megatron
from trainyard.jobs.recipes.program_settings import own_settings
from trainyard.jobs.recipes.recipe_order import RecipeOrder, common_problems, memory_problems
from trainyard.jobs.recipes.wrapped_program import kept_program
from trainyard.plan.minimum_memory import MEGATRON
from trainyard.plan.parallel_degrees import degree_problems, unused_degrees
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat

NAME = LOG_FORM = "nemo"
ON_FIRST_NODE = True
CHECKPOINTS = (CheckpointFormat.NEMO,)
SCRIPT_FILE, NUMBERS_FILE = "train_nemo.py", "nemo.json"
SCRIPT = '''"""Train a model of the Llama family with NeMo 2, by the numbers in nemo.json beside this file."""

import json
from pathlib import Path

import torch
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.common.tokenizers.huggingface.auto_tokenizer import AutoTokenizer
from nemo.lightning.pytorch.callbacks import ModelCheckpoint, PreemptionCallback
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler, MegatronOptimizerModule
from megatron.core.optimizer import OptimizerConfig


def main() -> None:
    given = json.loads(Path(__file__).with_name("nemo.json").read_text())
    if given["tokenizer"]:
        tokenizer = AutoTokenizer(given["tokenizer"], use_fast=True)
        data = llm.PreTrainingDataModule(tokenizer=tokenizer, **given["data"])
    else:
        tokenizer = None
        data = llm.MockDataModule(**given["data"])
    schedule = CosineAnnealingScheduler(**given["schedule"]) if given["schedule"] else None
    optimizer = MegatronOptimizerModule(OptimizerConfig(**given["optimizer"]), lr_scheduler=schedule)
    checkpoint = ModelCheckpoint(**given["checkpoint"])
    strategy = nl.MegatronStrategy(pipeline_dtype=torch.bfloat16, **given["strategy"])
    trainer = nl.Trainer(
        accelerator="gpu",
        strategy=strategy,
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
        callbacks=[PreemptionCallback()],
        **given["trainer"],
    )
    torch.manual_seed(given["seed"])
    llm.train(
        model=llm.LlamaModel(llm.LlamaConfig(**given["model"]), tokenizer=tokenizer),
        data=data,
        trainer=trainer,
        log=nl.NeMoLogger(ckpt=checkpoint, **given["log"]),
        resume=nl.AutoResume(
            resume_if_exists=True,
            resume_ignore_no_checkpoint=True,
            resume_from_directory=given["checkpoint"]["dirpath"],
        ),
        optim=optimizer,
    )


if __name__ == "__main__":
    main()
'''


def problems(order: RecipeOrder) -> Iterator[str]:
    config = order.config
    yield from common_problems(order)
    yield from degree_problems(config, order.degrees)
    yield from unused_degrees(config, NAME, "expert_parallel")
    yield from megatron.data_problems(order)
    yield from memory_problems(order, MEGATRON, megatron.MEMORY_REMEDY)
    if config.model.dtype != "bfloat16":
        yield f"model.dtype: {config.model.dtype}, but this recipe computes in bfloat16; set it to bfloat16"
    if config.model.architecture.rope_scaling.rope_type != "default":
        yield "model.architecture.rope_scaling.rope_type: this recipe has none; use recipe megatron"
    if own_settings(config):
        yield "program.settings: this recipe has none; use recipe megatron, or a script of your own after --"


def program(order: RecipeOrder) -> Program:
    return kept_program(
        NAME,
        order,
        [f"{FILES_DIRECTORY}/{SCRIPT_FILE}"],
        environment=megatron.ENVIRONMENT,
        files={SCRIPT_FILE: SCRIPT, NUMBERS_FILE: json.dumps(numbers(order), indent=1) + "\n"},
    )


def numbers(order: RecipeOrder) -> dict[str, Any]:
    """The numbers that the script reads: the arguments of each NeMo class, by the part that uses them."""
    config, training = order.config, order.config.training
    return {
        "seed": training.seed,
        "tokenizer": config.model.tokenizer if config.data.train_path else None,
        "model": _model(order),
        "data": _data(order),
        "optimizer": _optimizer(order),
        "schedule": _schedule(order),
        "strategy": _strategy(order),
        "checkpoint": {
            "dirpath": order.own_checkpoints,
            "every_n_train_steps": config.checkpointing.save_steps,
            "save_last": True,
            "save_top_k": 0,
            "monitor": None,
            "filename": "{step}",
            "save_optim_on_train_end": True,
        },
        "trainer": {
            "devices": order.processes,
            "num_nodes": order.nodes,
            "max_steps": order.steps,
            "log_every_n_steps": config.monitoring.log_steps,
            "val_check_interval": training.validation_steps or order.steps,
            "limit_val_batches": training.validation_batches,
        },
        "log": {"explicit_log_dir": f"{order.run_directory}/nemo"},
    }


def _model(order: RecipeOrder) -> dict[str, Any]:
    shape = order.config.model.architecture
    return {
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "ffn_hidden_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_query_groups": shape.num_key_value_heads,
        "seq_length": order.config.data.sequence_length,
        "rotary_base": shape.rope_theta,
        "layernorm_epsilon": shape.rms_norm_eps,
        "init_method_std": shape.initializer_range,
        "share_embeddings_and_output_weights": shape.tie_word_embeddings,
    }


def _data(order: RecipeOrder) -> dict[str, Any]:
    config, degrees = order.config, order.degrees
    sizes: dict[str, Any] = {
        "seq_length": config.data.sequence_length,
        "micro_batch_size": degrees.micro_batch,
        "global_batch_size": degrees.global_batch,
    }
    if config.data.train_path is None:
        return sizes
    found = {**sizes, "seed": config.training.seed}
    if config.data.validation_path is not None:
        held = [config.data.validation_path]
        return {**found, "paths": {"train": [config.data.train_path], "validation": held, "test": held}}
    share = 100 * config.data.validation_fraction
    return {**found, "paths": [config.data.train_path], "split": f"{100 - share:g},{share:g},0"}


def _optimizer(order: RecipeOrder) -> dict[str, Any]:
    training = order.config.training
    return {
        "optimizer": "adam",
        "lr": training.learning_rate,
        "adam_beta1": training.adam_beta1,
        "adam_beta2": training.adam_beta2,
        "adam_eps": training.adam_epsilon,
        "weight_decay": training.weight_decay,
        "clip_grad": training.max_grad_norm or 0.0,
        "use_distributed_optimizer": True,
        "bf16": True,
    }


def _schedule(order: RecipeOrder) -> dict[str, Any] | None:
    training = order.config.training
    if training.lr_scheduler == "constant":
        return None
    return {
        "max_steps": order.steps,
        "warmup_steps": training.warmup_steps,
        "constant_steps": 0,
        "min_lr": training.learning_rate * training.min_learning_rate_ratio,
    }


def _strategy(order: RecipeOrder) -> dict[str, Any]:
    degrees = order.degrees
    return {
        "tensor_model_parallel_size": degrees.tensor,
        "pipeline_model_parallel_size": degrees.pipeline,
        "context_parallel_size": degrees.context,
        "sequence_parallel": degrees.tensor > 1,
        "ckpt_async_save": False,
        "progress_interval": order.config.monitoring.log_steps,
    }
