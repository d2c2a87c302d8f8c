"""Find the smallest change that makes a configuration fit. Changes that keep the numerics come first.

Synchronous saving needs no staged copy. Gradient accumulation with a smaller batch, recomputed activations,
and sharding train the same model. bfloat16 rounds, and compilation starts slower. Every
change keeps the number of sequences per step. Only existing keys are named.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainyard.plan.device import Device, gpu_of
from trainyard.plan.device_memory import highest_memory_peak, host_bytes
from trainyard.plan.instances import CATALOGUE, InstanceType
from trainyard.plan.workload import Layout, Recomputation, TrainingWorkload


@dataclass(frozen=True)
class Change:
    """One change that makes the configuration fit."""

    overrides: tuple[str, ...]
    """Arguments of --set; empty when the configuration can stay as it is."""
    instance: InstanceType | None
    """Instance type to use instead; None keeps the planned one."""
    peak_bytes: int
    """Peak memory per device after the change."""
    devices: int = 1
    """Number of devices that train."""


def changes_that_fit(
    work: TrainingWorkload, device: Device, *, devices: int = 1, nodes: int = 1
) -> tuple[Change, ...]:
    """Return the smallest change that fits on these machines, and the cheapest type that needs none.

    There are `nodes` machines with `devices` training devices each. Empty when nothing helps.
    """
    changes = (one for one in _smallest_first(work, devices * nodes) if fits_device(one, device))
    ways = [_change(work, changed)] if (changed := next(changes, None)) else []
    priced = [(t.usd_per_hour, t.name, t) for t in CATALOGUE if t.usd_per_hour is not None]
    by_price = (instance for _, _, instance in sorted(priced, key=lambda row: row[:2]))
    on_gpu = replace(work, on_gpu=True)
    for instance in by_price:
        alike = work.layout == Layout() or work.layout.devices == instance.gpus
        if alike and fits_device(on_gpu, gpu_of(instance)):
            return (*ways, _change(work, on_gpu, instance))
    return tuple(ways)


def fits_device(work: TrainingWorkload, device: Device) -> bool:
    """Return whether `work` fits into device memory and, where it is known, main memory."""
    host = device.host_usable_bytes
    if host is not None and host_bytes(work) > host:
        return False
    return highest_memory_peak(work).parts.total <= device.usable_bytes


def _change(
    work: TrainingWorkload, changed: TrainingWorkload, instance: InstanceType | None = None
) -> Change:
    peak = highest_memory_peak(changed).parts.total
    return Change(overrides_between(work, changed), instance, peak, changed.layout.devices)


def _smallest_first(work: TrainingWorkload, processes: int) -> Iterator[TrainingWorkload]:
    """Yield changed workloads, smallest change first."""
    rounded, waited = replace(work, bfloat16=True), replace(work, staged=False)
    modes = list(Recomputation)
    if waited != work:
        yield waited
    for precise in dict.fromkeys((work, waited, rounded, replace(rounded, compiled=True))):
        for saved in dict.fromkeys((precise, replace(precise, staged=False))):
            for laid in filter(None, (saved, _shard(saved, processes))):
                for again in modes[modes.index(laid.recomputation) :]:
                    changed = replace(laid, recomputation=again)
                    if changed != work:
                        yield changed
                    yield from _smaller_passes(changed)


def _shard(work: TrainingWorkload, processes: int) -> TrainingWorkload | None:
    """Shard `work` over all `processes` with the same sequences per step; None if that cannot be."""
    if processes == 1 or work.layout.sharded or work.layout.compressed:
        return None
    each, rest = divmod(work.batch_size * work.accumulation * work.layout.data, processes)
    if rest or not each:
        return None
    size = max(n for n in range(1, min(work.batch_size, each) + 1) if each % n == 0)
    layout = Layout(shards=processes, sharded=True)
    return replace(work, layout=layout, batch_size=size, accumulation=each // size)


def _smaller_passes(work: TrainingWorkload) -> Iterator[TrainingWorkload]:
    """Yield the same global batch in more, smaller forward passes."""
    for size in range(work.batch_size // 2, 0, -1):
        if work.batch_size % size == 0:
            pieces = work.accumulation * (work.batch_size // size)
            yield replace(work, batch_size=size, accumulation=pieces)


def overrides_between(work: TrainingWorkload, changed: TrainingWorkload) -> tuple[str, ...]:
    """Return the --set arguments that turn `work` into `changed`."""
    again = changed.recomputation
    accumulation = "training.gradient_accumulation_steps"
    keys = (
        ("model.device", work.on_gpu, changed.on_gpu, "cuda"),
        ("model.dtype", work.bfloat16, changed.bfloat16, "bfloat16"),
        ("compute.strategy", work.layout.sharded, changed.layout.sharded, "fsdp"),
        ("compute.activation_checkpointing", work.recomputation, again, again),
        ("checkpointing.mode", work.staged, changed.staged, "sync"),
        ("compute.compile", work.compiled, changed.compiled, "true"),
        ("training.batch_size", work.batch_size, changed.batch_size, changed.batch_size),
        (accumulation, work.accumulation, changed.accumulation, changed.accumulation),
    )
    return tuple(f"{key}={text}" for key, before, after, text in keys if before != after)
