"""Hand command lines to the parsers of other programs, in a Python that has them.

That Python runs this as a script, with the name of a program. stdin: a JSON list of command lines; stdout: a
JSON list with the result of each, or the reason of its refusal. It imports nothing of this repository.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


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
    names = [word[2:] for word in words[1:] if word.startswith("--")]
    plain = {name: name.replace("-", "_") for name in names}  # some switches have another name
    options = {name: getattr(found, plain[name]) for name in names if plain[name] in found}
    arguments.validate_args(found)  # it fills in more
    return {"options": options}


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
    conf = import_module("omegaconf").OmegaConf
    given = (word.partition("=")[0] for word in overrides)
    return {"options": {name: conf.select(found, name.lstrip("+~")) for name in given}}


def torchtitan(words: list[str], world: int) -> dict[str, Any]:
    """torchtitan's own configuration manager, and its own check of the degrees against the world size."""
    found = import_module("torchtitan.config").ConfigManager().parse_args(words[2:])
    dims = import_module("torchtitan.distributed.parallel_dims").ParallelDims
    dims.from_config(found.parallelism, world)
    names = [word[2:].partition("=")[0] for word in words[4:]]
    return {"options": {name: _at(found, name.replace("-", "_").split(".")) for name in names}}


def _at(found: Any, path: list[str]) -> Any:
    """The value at a path through attributes, mappings and lists."""
    for name in path:
        if isinstance(found, (list, tuple)):
            found = found[int(name)]
        else:
            found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def deepspeed(words: list[str], world: int) -> dict[str, Any]:
    """DeepSpeed's own reader of its configuration, whose text is `words[0]`."""
    reader = import_module("deepspeed.runtime.config")
    reader.dist.get_world_size = lambda *_: world
    reader.dist.get_rank = lambda *_: 0
    reader.dist.is_initialized = lambda: True
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(words[0])
        file.flush()
        found = reader.DeepSpeedConfig(file.name)
    return {"options": _options_of_deepspeed(found), "rates": _rates(found)}


def _options_of_deepspeed(found: Any) -> dict[str, Any]:
    """The parsed value of each part of the configuration. DeepSpeed ignores an unknown name."""
    group = _adam(found).param_groups[0]
    options = {
        "train_batch_size": found.train_batch_size,
        "train_micro_batch_size_per_gpu": found.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": found.gradient_accumulation_steps,
        "gradient_clipping": found.gradient_clipping,
        "steps_per_print": found.steps_per_print,
        "bf16.enabled": found.bfloat16_config.enabled,
        "zero_optimization.stage": int(found.zero_optimization_stage),
        "optimizer.type": found.optimizer_name,
        "scheduler.type": found.scheduler_name,
        **{f"optimizer.params.{name}": group[name] for name in found.optimizer_params},
        **{f"scheduler.params.{name}": value for name, value in found.scheduler_params.items()},
    }
    if found.zero_config.offload_optimizer is not None:
        options["zero_optimization.offload_optimizer.device"] = found.zero_config.offload_optimizer.device
    return options


def _adam(found: Any) -> Any:
    """The optimizer with the parameters as they were read: DeepSpeed reads 0.0 as 0, torch wants floats."""
    torch, given = import_module("torch"), dict(found.optimizer_params)
    given["betas"] = tuple(map(float, given["betas"]))
    return torch.optim.AdamW([torch.zeros(1)], **given)


def _rates(found: Any) -> list[float]:
    """The learning rate of the first 2,000 steps, by DeepSpeed's own schedule."""
    schedules, adam = import_module("deepspeed.runtime.lr_schedules"), _adam(found)
    schedule = getattr(schedules, found.scheduler_name)(adam, **found.scheduler_params)
    rates = []
    for _ in range(2000):
        schedule.step()
        rates.append(adam.param_groups[0]["lr"])
    return rates


READERS: dict[str, Callable[[list[str], int], dict[str, Any]]] = {
    each.__name__: each for each in (megatron, verl, torchtitan, deepspeed)
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
