"""Plan a run on the machine that a workflow routes it to, as far as that machine is known."""

from dataclasses import dataclass
from typing import Any

from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.github.target import GPU_SMALL, GPU_SMALL_HARDWARE, Machine
from trainyard.plan.cost import RentedMachines
from trainyard.plan.device import cpu_of, gpu_of
from trainyard.plan.instances import find_instance
from trainyard.plan.training_plan import plan_training


@dataclass(frozen=True)
class Figures:
    """Figures that are known before a run starts."""

    steps: int | None
    tokens_per_step: int | None
    plan: dict[str, Any]
    """`TrainingPlan.to_json`; empty without a plan."""
    why_not: str
    """Why there is no plan."""


def plan_on(machine: Machine, config: Config) -> Figures:
    """Plan `config` on `machine`. Raises ConfigError for an unknown instance type."""
    steps, each = config.training.max_steps, None
    if config.compute.strategy == "single" and config.recipe == "pretrain":
        sequences = config.training.batch_size * config.training.gradient_accumulation_steps
        each = sequences * config.data.sequence_length
    if config.recipe != "pretrain":
        return Figures(steps, each, {}, f"recipe {config.recipe} is not modelled")
    if machine.cluster:
        return Figures(steps, each, {}, "memory and world size are checked with the job")
    if machine.hardware is None:
        return Figures(steps, each, {}, "TRAINYARD_INSTANCE_TYPE does not say what the runner is")
    instance = find_instance(machine.hardware)
    on_cpu = config.model.device == "cpu"
    device, devices = (cpu_of(instance), 1) if on_cpu else (gpu_of(instance), instance.gpus)
    plan = plan_training(config, device, rented=RentedMachines(instance, 1, devices)).to_json()
    if machine.queue.startswith("trainyard-codebuild"):
        _remove_price(plan)
    return Figures(steps, each or plan["run"]["tokens_per_step"], plan, "")


def _remove_price(plan: dict[str, Any]) -> None:
    """Remove the catalogue's price: CodeBuild offers the same machine under another name and price."""
    device = plan["device"]
    if device.get("instance_type") == GPU_SMALL_HARDWARE:
        device["instance_type"] = f"CodeBuild {GPU_SMALL}"
    for owner, key in ((device, "usd_per_hour"), (device, "prices_as_of"), (plan["estimate"], "usd")):
        owner.pop(key, None)


def usd_per_hour(text: str) -> float | None:
    """Return the price per hour that the owner set, or None. Raises ConfigError when it is not a number."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise ConfigError(f"TRAINYARD_USD_PER_HOUR: {text!r} is not an amount such as 1.25")
    return value
