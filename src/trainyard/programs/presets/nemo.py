"""NeMo 2, for Llama: a script of `nemo.collections.llm` and the values that it reads, both files of the job.

NeMo 3 has no `collections.llm`; there megatron does the same. The image needs `nemo_toolkit[nlp]` 2.x, which
no image of docker/ has: NeMo 2 wants numpy 1, the training lock has numpy 2. The script imports only what
NeMo 2.4.1, 2.5.3 and 2.7.3 have under the same names. That was read in their wheels; the script was not run
with them. It trains a model of the Llama family by Megatron-Core, as document 003 of the design does, and
reports its rows with the calls of `trainyard`.
"""

from collections.abc import Iterator
from typing import Any

from trainyard.config.schema import Config
from trainyard.programs.presets import megatron
from trainyard.programs.presets.preset import Preset, PresetCommand, PresetRun


def problems(config: Config, run: PresetRun) -> Iterator[str]:
    if run.settings:
        yield "program.settings: recipe nemo takes none; use another program, or recipe command"
    yield from megatron.data_problems(config)
    if config.model.dtype != "bfloat16":
        yield f"model.dtype: {config.model.dtype}, but this recipe computes in bfloat16; set it to bfloat16"


def model(config: Config) -> dict[str, Any]:
    """Return the fields of LlamaConfig, or of Llama31Config, which scales the rotary positions."""
    shape, scaling = config.model.architecture, config.model.architecture.rope_scaling
    fields = {
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "ffn_hidden_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_query_groups": shape.num_key_value_heads,
        "seq_length": config.data.sequence_length,
        "rotary_base": shape.rope_theta,
        "layernorm_epsilon": shape.rms_norm_eps,
        "init_method_std": shape.initializer_range,
        "share_embeddings_and_output_weights": shape.tie_word_embeddings,
    }
    if scaling.rope_type == "default":
        return fields
    return fields | {
        "scale_factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "old_context_len": scaling.original_max_position_embeddings,
    }


def data(config: Config, run: PresetRun) -> dict[str, Any]:
    """Return the arguments of PreTrainingDataModule, or of MockDataModule without data."""
    train, held = config.data.train_path, config.data.validation_path
    fields = {
        "seq_length": config.data.sequence_length,
        "micro_batch_size": run.degrees.micro_batch,
        "global_batch_size": run.degrees.global_batch,
    }
    if not train:
        return fields
    fields |= {"seed": config.training.seed}
    if held:
        return fields | {"paths": {"train": [train], "validation": [held], "test": [held]}}
    return fields | {"paths": [train], "split": megatron.split(config)}


def command(config: Config, run: PresetRun) -> PresetCommand:
    training, degrees = config.training, run.degrees
    schedule = {  # of CosineAnnealingScheduler
        "max_steps": training.max_steps,
        "warmup_steps": training.warmup_steps,
        "constant_steps": 0,
        "min_lr": training.learning_rate * training.min_learning_rate_ratio,
    }
    values = {
        "seed": training.seed,
        "tokenizer": config.model.tokenizer if config.data.train_path else None,
        "model": model(config),
        "data": data(config, run),
        "optimizer": {
            "optimizer": "adam",
            "lr": training.learning_rate,
            "adam_beta1": training.adam_beta1,
            "adam_beta2": training.adam_beta2,
            "adam_eps": training.adam_epsilon,
            "weight_decay": training.weight_decay,
            "clip_grad": training.max_grad_norm or 0.0,
            "use_distributed_optimizer": True,
            "bf16": True,
        },
        "schedule": None if training.lr_scheduler == "constant" else schedule,
        "strategy": {
            "tensor_model_parallel_size": degrees.tensor,
            "pipeline_model_parallel_size": degrees.pipeline,
            "context_parallel_size": degrees.context,
            "sequence_parallel": degrees.tensor > 1,
            "ckpt_async_save": False,
        },
        "checkpoint": {
            "dirpath": run.checkpoints,
            "every_n_train_steps": config.checkpointing.save_steps,
            "save_last": True,
            "save_top_k": 0,
            "monitor": None,
            "filename": "{step}",
            "save_optim_on_train_end": True,
        },
        "trainer": {
            "devices": degrees.per_node,
            "num_nodes": run.nodes,
            "max_steps": training.max_steps,
            "log_every_n_steps": config.monitoring.log_steps,
            "val_check_interval": training.validation_steps or training.max_steps,
            "limit_val_batches": training.validation_batches,
        },
        "log": {"explicit_log_dir": f"{run.directory}/nemo"},
    }
    return PresetCommand(
        (config.cluster.pod.python, f"{run.files}/train_nemo.py"),
        environment=megatron.ENVIRONMENT,
        data=megatron.data_files(config),
        files={"nemo.json": values, "train_nemo.py": SCRIPT},
    )


SCRIPT = '''\
"""Train a model of the Llama family with NeMo 2, by the numbers in nemo.json beside this file."""

import json
from pathlib import Path

import torch
import trainyard
from lightning.pytorch import Callback
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.common.tokenizers.huggingface.auto_tokenizer import AutoTokenizer
from nemo.lightning.pytorch.callbacks import ModelCheckpoint, PreemptionCallback
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler, MegatronOptimizerModule
from megatron.core.optimizer import OptimizerConfig


class Rows(Callback):
    """Report each step that Lightning logs, counted from 1, and the loss of each validation."""

    def on_train_batch_end(self, trainer, *_):
        step, every = trainer.global_step, trainer.log_every_n_steps
        loss = trainer.callback_metrics.get("reduced_train_loss")
        if trainer.is_global_zero and loss is not None and (step % every == 0 or step == trainer.max_steps):
            trainyard.log(step=step, loss=loss)

    def on_validation_end(self, trainer, *_):
        loss = trainer.callback_metrics.get("val_loss")
        if trainer.is_global_zero and loss is not None and trainer.global_step:
            trainyard.log(step=trainer.global_step, val_loss=loss)


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
        callbacks=[PreemptionCallback(), Rows()],
        **given["trainer"],
    )
    torch.manual_seed(given["seed"])
    has_scaling = "scale_factor" in given["model"]  # of the rotary positions, since Llama 3.1
    shape = (llm.Llama31Config if has_scaling else llm.LlamaConfig)(**given["model"])
    llm.train(
        model=llm.LlamaModel(shape, tokenizer=tokenizer),
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
PRESET = Preset(
    "nemo",
    command,
    problems,
    launcher="torchrun",
    checkpoints="*step=*/",
    memory=lambda _config: "megatron",
    uses=("compute.tensor_parallel", "compute.pipeline_parallel", "compute.context_parallel"),
    required={"training.max_steps": "the number of optimizer steps"},
    paths=megatron.DATA_PATHS,
)
