"""Hand command lines to the parsers of other programs, in a Python that has them.

Run as a script by that Python, with the name of a program; a JSON list of command lines on stdin, a JSON
list of what each was read as, or of why it was refused, on stdout. It imports nothing of this repository.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Reader = Callable[[list[str], int], dict[str, Any]]


def megatron(words: list[str], world: int) -> dict[str, Any]:
    """Megatron-LM's own argument parser, and its own checks of the arguments."""
    torch = import_module("torch")
    os.environ |= {"WORLD_SIZE": str(world), "RANK": "0"}
    # The checks ask the GPU for its generation; there is none here.
    torch.cuda.get_device_properties = lambda *_: type("Device", (), {"major": 9, "minor": 0})()
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    arguments = import_module("megatron.training.arguments")
    sys.argv = words
    found = arguments.parse_args()
    arguments.validate_args(found)
    names = (
        "data_parallel_size",
        "train_iters",
        "global_batch_size",
        "micro_batch_size",
        "save",
        "load",
        "bf16",
    )
    more = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "swiglu")
    return {name: getattr(found, name) for name in (*names, *more)}


def verl(words: list[str], world: int) -> dict[str, Any]:
    """Hydra's composition of verl's configuration, and verl's own check of it."""
    hydra, package = import_module("hydra"), import_module("verl.trainer.config")
    overrides = words[words.index("verl.trainer.main_ppo") + 1 :]
    folder = str(Path(str(package.__file__)).parent)
    with hydra.initialize_config_dir(folder, version_base=None):
        found = hydra.compose("ppo_trainer", overrides=overrides)
    import_module("verl.utils.config").validate_config(
        found, use_reference_policy=bool(found.actor_rollout_ref.actor.use_kl_loss), use_critic=False
    )
    read: dict[str, Any] = import_module("omegaconf").OmegaConf.to_container(found.trainer, resolve=True)
    rollout = found.actor_rollout_ref.rollout
    names = ("nnodes", "n_gpus_per_node", "total_training_steps", "save_freq", "logger", "default_local_dir")
    return {name: read[name] for name in names} | {
        "n": rollout.n,
        "tensor": rollout.tensor_model_parallel_size,
        "questions": found.data.train_batch_size,
        "mini_batch": found.actor_rollout_ref.actor.ppo_mini_batch_size,
    }


def torchtitan(words: list[str], world: int) -> dict[str, Any]:
    """torchtitan's own configuration manager."""
    found = import_module("torchtitan.config").ConfigManager().parse_args(words[2:])
    parts = found.parallelism
    return {
        "steps": found.training.steps,
        "global_batch_size": found.training.global_batch_size,
        "tensor": parts.tensor_parallel_degree,
        "pipeline": parts.pipeline_parallel_degree,
        "context": parts.context_parallel_degree,
        "interval": found.checkpoint.interval,
        "enabled": found.checkpoint.enable,
        "log_freq": found.metrics.log_freq,
    }


def deepspeed(words: list[str], world: int) -> dict[str, Any]:
    """DeepSpeed's own reader of its configuration, whose text is the only word."""
    reader = import_module("deepspeed.runtime.config")
    reader.dist.get_world_size = lambda *_: world
    reader.dist.get_rank = lambda *_: 0
    reader.dist.is_initialized = lambda: True
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(words[0])
        file.flush()
        found = reader.DeepSpeedConfig(file.name)
    return {
        "train_batch_size": found.train_batch_size,
        "micro": found.train_micro_batch_size_per_gpu,
        "accumulation": found.gradient_accumulation_steps,
        "stage": found.zero_optimization_stage,
        "optimizer": found.optimizer_name,
        "scheduler": found.scheduler_name,
    }


READERS: dict[str, Reader] = {
    "megatron": megatron,
    "verl": verl,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
}


def main() -> None:
    read, said = READERS[sys.argv[1]], sys.stdout
    sys.stdout = sys.stderr  # the programs print while they read
    answers: list[dict[str, Any]] = []
    for asked in json.load(sys.stdin):
        os.environ |= asked["environment"]
        try:
            answers.append({"read": read(asked["words"], asked["world"])})
        except (Exception, SystemExit) as error:  # noqa: BLE001 - parsers refuse in many ways
            answers.append({"refused": f"{type(error).__name__}: {error}"})
    json.dump(answers, said, default=str)


if __name__ == "__main__":
    main()
