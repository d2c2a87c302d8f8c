"""Plan a training run as one value: parameters, memory, whether it fits, time, cost, advice.

    Config + Device + what is rented ──plan_training──> TrainingPlan

`report.plan.plan_text` writes it for people.
"""

from dataclasses import asdict, dataclass
from typing import Any

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.plan import activations
from trainyard.plan.advice import Change, changes_that_fit, fits_device
from trainyard.plan.cost import Estimate, RentedMachines, default_mfu, estimate
from trainyard.plan.device import Device
from trainyard.plan.device_memory import MemoryPeak, highest_memory_peak, host_bytes, memory_peaks_of
from trainyard.plan.instances import PRICES_AS_OF
from trainyard.plan.workload import TrainingWorkload, training_workload


@dataclass(frozen=True)
class TrainingPlan:
    """Memory, time and cost of a configuration on a kind of device."""

    config: Config
    device: Device
    rented: RentedMachines
    work: TrainingWorkload
    estimate: Estimate
    advice: tuple[Change, ...]
    """Changes that make it fit; empty when it fits or when nothing helps."""

    @property
    def fits(self) -> bool:
        return fits_device(self.work, self.device)

    @property
    def peak(self) -> MemoryPeak:
        return highest_memory_peak(self.work)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; unknown values are absent."""
        count = count_parameters(self.work.architecture)
        return _drop_unknown(
            {
                "fits": self.fits,
                "model": self.config.model.name,
                "parameters": asdict(count) | {"total": count.total, "multiplied": count.multiplied},
                "device": self._device(),
                "memory": self._memory(),
                "run": self._run(),
                "estimate": _drop_unknown(asdict(self.estimate)),
                "advice": [_change(change) for change in self.advice],
            }
        )

    def _device(self) -> dict[str, Any]:
        instance, device = self.rented.instance, self.device
        return _drop_unknown(
            {
                "name": device.name,
                "kind": "gpu" if device.on_gpu else "cpu",
                "memory_bytes": device.memory_bytes,
                "reserve_bytes": device.reserve_bytes,
                "usable_bytes": device.usable_bytes,
                "host_usable_bytes": device.host_usable_bytes if device.on_gpu else None,
                "instance_type": instance.name if instance else None,
                "nodes": self.rented.nodes,
                "devices": instance.gpus * self.rented.nodes if instance and device.on_gpu else None,
                "devices_used": self.work.layout.devices,
                "usd_per_hour": self.rented.usd_per_hour,
                "prices_as_of": PRICES_AS_OF if self.rented.usd_per_hour is not None else None,
            }
        )

    def _memory(self) -> dict[str, Any]:
        work, peak = self.work, self.peak
        return {
            "peak_bytes": peak.parts.total,
            "peak_at": peak.name,
            "host_bytes": host_bytes(work),
            "parts": asdict(peak.parts),
            "block_activation_bytes": work.tokens * activations.block_bytes(work),
            "attention_scores_kept": activations.scores_are_kept(work),
            "moments": [
                {"at": moment.name, "bytes": moment.parts.total} | asdict(moment.parts)
                for moment in memory_peaks_of(work)
            ],
        }

    def _run(self) -> dict[str, Any]:
        work = self.work
        return {
            "optimizer": self.config.training.optimizer,
            "dtype": "bfloat16" if work.bfloat16 else "float32",
            "compiled": work.compiled,
            "strategy": self.config.compute.strategy,
            "replicas": work.layout.replicas,
            "shards": work.layout.shards,
            "tensor_parallel": work.layout.tensor,
            "activation_checkpointing": str(work.recomputation),
            "gradient_compression": self.config.compute.gradient_compression,
            "cpu_offload": work.layout.offloaded,
            "packing": self.config.data.packing,
            "checkpointing_mode": self.config.checkpointing.mode,
            "batch_size": work.batch_size,
            "gradient_accumulation_steps": work.accumulation,
            "sequence_length": work.sequence_length,
            "tokens_per_step": work.tokens_per_step,
        }


def plan_training(
    config: Config, device: Device, *, rented: RentedMachines, mfu: float | None = None
) -> TrainingPlan:
    """Plan `config` on `device`; `mfu` replaces the assumed share of the peak.

    Raises ConfigError for every recipe except pretraining; the others are not modelled.
    """
    if config.recipe != "pretrain":
        raise ConfigError(
            f"recipe: {config.recipe} cannot be planned: only the trainer of this repository is modelled.\n"
            "Run a few steps to measure it, or plan next-token training in its batches: --set recipe=pretrain"
        )
    work = training_workload(config, on_gpu=device.on_gpu, processes=rented.processes)
    expected = estimate(
        config.training, work, device, rented=rented, mfu=default_mfu(work) if mfu is None else mfu
    )
    advice: tuple[Change, ...] = ()
    if not fits_device(work, device):
        advice = changes_that_fit(work, device, devices=rented.devices, nodes=rented.nodes)
    return TrainingPlan(config, device, rented, work, expected, advice)


def _change(change: Change) -> dict[str, Any]:
    instance = change.instance
    return _drop_unknown(
        {
            "set": list(change.overrides),
            "instance_type": instance.name if instance else None,
            "gpu": instance.gpu if instance else None,
            "usd_per_hour": instance.usd_per_hour if instance else None,
            "devices": change.devices,
            "peak_bytes": change.peak_bytes,
        }
    )


def _drop_unknown(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
