"""Megatron-LM: `pretrain_gpt.py` with the arguments of Megatron-Core 0.19, started by torchrun on every node.

The arguments describe the Llama family, as `model.architecture` does. The rows come from the line that the
last rank prints every `monitoring.log_steps` iterations; its loss is the mean over these iterations.
"""

from collections.abc import Iterator

from trainyard.config.schema import Config
from trainyard.jobs.job_plan import Program
from trainyard.jobs.recipes.program_settings import format_number, own_settings, settings_problems
from trainyard.jobs.recipes.recipe_order import RecipeOrder, absolute, common_problems, memory_problems
from trainyard.jobs.recipes.wrapped_program import kept_program
from trainyard.plan.minimum_memory import MEGATRON
from trainyard.plan.parallel_degrees import degree_problems
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat

NAME = LOG_FORM = "megatron"
ON_FIRST_NODE = False
CHECKPOINTS = (CheckpointFormat.MEGATRON,)
MEMORY_REMEDY = "raise compute.tensor_parallel or compute.pipeline_parallel, or take more GPUs"
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""Megatron requires it with tensor or context parallelism before Blackwell; it is harmless elsewhere."""
Arguments = dict[str, str | None]
"""Argument without dashes -> its value; None for a switch."""
PLANNED = {
    "tensor-model-parallel-size": "compute.tensor_parallel",
    "pipeline-model-parallel-size": "compute.pipeline_parallel",
    "context-parallel-size": "compute.context_parallel",
    "expert-model-parallel-size": "compute.expert_parallel",
    "micro-batch-size": "training.batch_size",
    "global-batch-size": "program.global_batch",
    "train-iters": "training.max_steps",
    "log-interval": "monitoring.log_steps",
    "save-interval": "checkpointing.save_steps",
    "num-layers": "model.architecture.num_layers",
    "hidden-size": "model.architecture.hidden_size",
    "ffn-hidden-size": "model.architecture.intermediate_size",
    "num-attention-heads": "model.architecture.num_attention_heads",
    "num-query-groups": "model.architecture.num_key_value_heads",
    "seq-length": "data.sequence_length",
    "max-position-embeddings": "model.architecture.max_position_embeddings",
    "save": "cluster.volume.mount_path",
    "load": "cluster.volume.mount_path",
    "seed": "training.seed",
    "train-samples": "training.max_steps",
    "rampup-batch-size": "program.global_batch",
    "exit-interval": "training.max_steps",
}


def problems(order: RecipeOrder) -> Iterator[str]:
    config = order.config
    yield from common_problems(order)
    yield from degree_problems(config, order.degrees)
    yield from absolute(
        order, "program.script", config.program.script, "Megatron's pretrain_gpt.py in the image"
    )
    yield from data_problems(order)
    yield from settings_problems(config, PLANNED)
    yield from _expert_problems(order)
    yield from memory_problems(order, MEGATRON, MEMORY_REMEDY)


def data_problems(order: RecipeOrder) -> Iterator[str]:
    """Yield a problem for data or a tokenizer that the pods cannot find."""
    data, model = order.config.data, order.config.model
    for key, path in (("data.train_path", data.train_path), ("data.validation_path", data.validation_path)):
        if path is not None:
            yield from absolute(order, key, path, "the data")
    if data.train_path is not None and model.tokenizer is None:
        yield "model.tokenizer: null; name the folder or Hub id of the tokenizer that made data.train_path"
    if data.validation_path is not None and data.train_path is None:
        yield "data.train_path: null, but data.validation_path is set; set both"


def _expert_problems(order: RecipeOrder) -> Iterator[str]:
    parts = order.config.compute.expert_parallel
    text = own_settings(order.config).get("num-experts", "").replace(",", "").strip()
    experts = int(text) if text.isdecimal() and len(text) < 16 else None
    if parts > 1 and not experts:
        yield (
            f"compute.expert_parallel: {parts}, but the model has no experts; add --program-set num-experts=N"
        )
    elif experts and experts % parts:
        yield f"compute.expert_parallel: {parts} does not divide the {experts} experts of num-experts"


def program(order: RecipeOrder) -> Program:
    return kept_program(
        NAME, order, [str(order.config.program.script), *words(arguments(order))], environment=ENVIRONMENT
    )


def words(arguments: Arguments) -> list[str]:
    """The command line. Values of several words, such as those of --data-path, stay several words."""
    found = []
    for name, value in arguments.items():
        found += [f"--{name}", *(value.split() if value else [])]
    return found


def arguments(order: RecipeOrder) -> Arguments:
    """Every argument, the user's own last. A setting of `true` is a switch, one of `false` removes it."""
    config = order.config
    found: Arguments = {
        **_architecture(config),
        **_parallelism(order),
        **_training(order),
        **_data(config),
        **_records(order),
    }
    for name, value in own_settings(config).items():
        found.pop(name, None)
        if value != "false":
            found[name] = None if value == "true" else value
    return found


def _architecture(config: Config) -> Arguments:
    shape = config.model.architecture
    found: Arguments = {
        "num-layers": str(shape.num_layers),
        "hidden-size": str(shape.hidden_size),
        "ffn-hidden-size": str(shape.intermediate_size),
        "num-attention-heads": str(shape.num_attention_heads),
        "group-query-attention": None,
        "num-query-groups": str(shape.num_key_value_heads),
        "seq-length": str(config.data.sequence_length),
        "max-position-embeddings": str(shape.max_position_embeddings),
        "position-embedding-type": "rope",
        "rotary-base": f"{shape.rope_theta:.0f}",
        "normalization": "RMSNorm",
        "norm-epsilon": format_number(shape.rms_norm_eps),
        "init-method-std": format_number(shape.initializer_range),
        "swiglu": None,
        "disable-bias-linear": None,
        "attention-dropout": "0",
        "hidden-dropout": "0",
    }
    if not shape.tie_word_embeddings:
        found["untie-embeddings-and-output-weights"] = None
    if shape.rope_scaling.rope_type != "default":
        found |= {"use-rope-scaling": None, "rope-scaling-factor": format_number(shape.rope_scaling.factor)}
    return found


def _parallelism(order: RecipeOrder) -> Arguments:
    degrees, compute = order.degrees, order.config.compute
    found: Arguments = {
        "tensor-model-parallel-size": str(degrees.tensor),
        "pipeline-model-parallel-size": str(degrees.pipeline),
        "context-parallel-size": str(degrees.context),
        "use-distributed-optimizer": None,
    }
    if degrees.tensor > 1:
        found["sequence-parallel"] = None
    if degrees.expert > 1:
        found["expert-model-parallel-size"] = str(degrees.expert)
    if compute.activation_checkpointing == "selective":
        found["recompute-granularity"] = "selective"
    elif compute.activation_checkpointing == "full":
        found |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": "1"}
    return found


def _training(order: RecipeOrder) -> Arguments:
    config, training = order.config, order.config.training
    found: Arguments = {
        "micro-batch-size": str(training.batch_size),
        "global-batch-size": str(order.degrees.global_batch),
        "train-iters": str(order.steps),
        "lr": format_number(training.learning_rate),
        "min-lr": format_number(training.learning_rate * training.min_learning_rate_ratio),
        "lr-decay-style": training.lr_scheduler,
        "lr-warmup-iters": str(training.warmup_steps),
        "weight-decay": format_number(training.weight_decay),
        "adam-beta1": format_number(training.adam_beta1),
        "adam-beta2": format_number(training.adam_beta2),
        "adam-eps": format_number(training.adam_epsilon),
        "clip-grad": format_number(training.max_grad_norm or 0),
        "seed": str(training.seed),
    }
    if config.model.dtype == "bfloat16":
        found["bf16"] = None
    return found


def _data(config: Config) -> Arguments:
    data, model = config.data, config.model
    if data.train_path is None:
        vocabulary = str(model.architecture.vocab_size)
        return {"mock-data": None, "tokenizer-type": "NullTokenizer", "vocab-size": vocabulary}
    tokenizer: Arguments = {"tokenizer-type": "HuggingFaceTokenizer", "tokenizer-model": str(model.tokenizer)}
    if data.validation_path is not None:
        return {"train-data-path": data.train_path, "valid-data-path": data.validation_path, **tokenizer}
    held = 100 * data.validation_fraction
    return {"data-path": data.train_path, "split": f"{100 - held:g},{held:g},0", **tokenizer}


def _records(order: RecipeOrder) -> Arguments:
    config = order.config
    found: Arguments = {
        "save": order.own_checkpoints,
        "load": order.own_checkpoints,
        "save-interval": str(config.checkpointing.save_steps),
        "log-interval": str(config.monitoring.log_steps),
        "eval-interval": str(config.training.validation_steps or order.steps),
        "eval-iters": str(config.training.validation_batches),
        "exit-signal-handler": None,
    }
    if config.monitoring.tensorboard:
        found["tensorboard-dir"] = f"{order.run_directory}/tensorboard"
    return found
