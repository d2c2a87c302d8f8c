"""Estimate time and cost of a run from an assumed share of the device's peak FLOP/s."""

from dataclasses import dataclass

from trainyard.config.schema import TrainingConfig
from trainyard.plan.device import Device
from trainyard.plan.flops import flops_per_token
from trainyard.plan.instances import InstanceType
from trainyard.plan.workload import TrainingWorkload

_GPU_MFU_COMPILED, _GPU_MFU_EAGER, _CPU_MFU = 0.39, 0.33, 0.60
"""Llama 3.1 8B on 8 × H100 with and without torch.compile (torchtitan, benchmarks/llama3_h100_202412); small
models on a CPU reach 50 to 75 % of what its matrix products do."""


@dataclass(frozen=True)
class Estimate:
    """Estimated figures of a run; None where something is not known."""

    steps: int | None
    """Maximum steps; None when only training.epochs limits the run, because the data is not read here."""
    tokens: int | None
    flops: int | None
    flops_per_token: int
    mfu: float
    """Assumed share of the peak."""
    peak_flops: float | None
    """Peak FLOP/s of one device."""
    tokens_per_second: float | None
    """Tokens per second over all devices."""
    seconds: float | None
    usd: float | None
    """Price of all rented machines, including unused GPUs."""


def default_mfu(work: TrainingWorkload) -> float:
    """Return the assumed share of the peak for a kind of device."""
    if not work.on_gpu:
        return _CPU_MFU
    return _GPU_MFU_COMPILED if work.compiled else _GPU_MFU_EAGER


@dataclass(frozen=True)
class RentedMachines:
    """The machines that are paid for."""

    instance: InstanceType | None
    """None for a local machine."""
    nodes: int
    devices: int = 1
    """Training devices per node."""

    @property
    def processes(self) -> int:
        return self.nodes * self.devices

    @property
    def usd_per_hour(self) -> float | None:
        """Price per hour of all nodes; None when no price is known."""
        price = self.instance.usd_per_hour if self.instance else None
        return None if price is None else price * self.nodes


def estimate(
    training: TrainingConfig, work: TrainingWorkload, device: Device, *, rented: RentedMachines, mfu: float
) -> Estimate:
    """Estimate time and cost of the complete run on devices of this kind."""
    each, peak = flops_per_token(work.architecture, work.sequence_length), device.peak(bfloat16=work.bfloat16)
    tokens = None if training.max_steps is None else training.max_steps * work.tokens_per_step
    speed = None if peak is None else work.layout.devices * peak * mfu / each
    seconds = tokens / speed if tokens is not None and speed is not None else None
    price = rented.usd_per_hour
    return Estimate(
        steps=training.max_steps,
        tokens=tokens,
        flops=None if tokens is None else tokens * each,
        flops_per_token=each,
        mfu=mfu,
        peak_flops=peak,
        tokens_per_second=speed,
        seconds=seconds,
        usd=seconds / 3600 * price if seconds is not None and price is not None else None,
    )
