"""Find the smallest change that makes a configuration fit. Changes that keep the numerics come first.

Synchronous saving needs no staged copy. Gradient accumulation with a smaller batch, recomputed activations,
and sharding or tensor parallelism train the same model. bfloat16 rounds, compilation starts slower, and more
machines cost money. Every change keeps the number of sequences per step. Only existing keys are named.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainyard.plan.device import Device, gpu_of
from trainyard.plan.device_memory import highest_memory_peak, host_bytes
from trainyard.plan.instances import CATALOGUE, InstanceType
from trainyard.plan.workload import Layout, Recomputation, TrainingWorkload

_MOST_NODES = 64


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
    nodes: int | None = None
    """Number of machines; None keeps the planned number."""


def changes_that_fit(
    work: TrainingWorkload, device: Device, *, devices: int = 1, nodes: int = 1
) -> tuple[Change, ...]:
    """Return changes that fit: on these machines, on more of them, on a cheaper type, or on another type.

    There are `nodes` machines with `devices` training devices each. More machines and a cheaper type are
    tried only if nothing fits on these machines. Empty when nothing helps.
    """
    ways = [_change(work, changed) for changed in _first_fit(work, device, devices * nodes)]
    unchanged = next((t for t in _by_price() if _is_trained_unchanged(work, t)), None)
    if not ways:
        ways += _on_more_nodes(work, device, devices=devices, nodes=nodes)
        ways += _cheapest_with_changes(work, below=unchanged)
    if unchanged:
        ways.append(_change(work, replace(work, on_gpu=True), unchanged))
    return tuple(ways)


def fits_device(work: TrainingWorkload, device: Device) -> bool:
    """Return whether `work` fits into device memory and, where it is known, main memory."""
    host = device.host_usable_bytes
    if host is not None and host_bytes(work) > host:
        return False
    return highest_memory_peak(work).parts.total <= device.usable_bytes


def _first_fit(work: TrainingWorkload, device: Device, processes: int) -> list[TrainingWorkload]:
    """Return the smallest change that fits on so many devices, or an empty list."""
    changes = (change for change in _smallest_first(work, processes) if fits_device(change, device))
    return [changed] if (changed := next(changes, None)) else []


def _is_trained_unchanged(work: TrainingWorkload, instance: InstanceType) -> bool:
    """Return whether one machine of the type trains the configuration unchanged."""
    alike = work.layout == Layout() or work.layout.devices == instance.gpus
    return alike and fits_device(replace(work, on_gpu=True), gpu_of(instance))


def _on_more_nodes(work: TrainingWorkload, device: Device, *, devices: int, nodes: int) -> list[Change]:
    more = 2 * nodes
    while device.on_gpu and more <= _MOST_NODES:
        for changed in _first_fit(work, device, devices * more):
            return [replace(_change(work, changed), nodes=more)]
        more *= 2
    return []


def _cheapest_with_changes(work: TrainingWorkload, *, below: InstanceType | None) -> list[Change]:
    """Return the smallest change on the cheapest type where one helps, if it is cheaper than `below`."""
    on_gpu = replace(work, on_gpu=True)
    for instance in _by_price():
        if below and instance == below:
            break
        for changed in _first_fit(on_gpu, gpu_of(instance), instance.gpus):
            return [_change(work, changed, instance)]
    return []


def _change(
    work: TrainingWorkload, changed: TrainingWorkload, instance: InstanceType | None = None
) -> Change:
    peak = highest_memory_peak(changed).parts.total
    return Change(overrides_between(work, changed), instance, peak, changed.layout.devices)


def _by_price() -> list[InstanceType]:
    priced = [(t.usd_per_hour, t.name, t) for t in CATALOGUE if t.usd_per_hour is not None]
    return [instance for _, _, instance in sorted(priced, key=lambda row: row[:2])]


def _smallest_first(work: TrainingWorkload, processes: int) -> Iterator[TrainingWorkload]:
    """Yield changed workloads, smallest change first."""
    rounded, waited = replace(work, bfloat16=True), replace(work, staged=False)
    if waited != work:
        yield waited
    for precise in dict.fromkeys((work, waited, rounded, replace(rounded, compiled=True))):
        for saved in dict.fromkeys((precise, replace(precise, staged=False))):
            for laid in _layouts(saved, processes):
                for again in _stronger_modes(laid.recomputation):
                    changed = replace(laid, recomputation=again)
                    if changed != work:
                        yield changed
                    yield from _smaller_passes(changed)


def _layouts(work: TrainingWorkload, processes: int) -> Iterator[TrainingWorkload]:
    """Yield the layouts that `processes` allow: unchanged, sharded, then tensor parallel over 2, 4, 8."""
    laid = [_lay_out(work, processes), _shard(work, processes)]
    laid += [_shard_tensors(work, processes, parts) for parts in (2, 4, 8) if parts > work.layout.tensor]
    yield from dict.fromkeys(way for way in laid if way)


def _stronger_modes(mode: Recomputation) -> list[Recomputation]:
    modes = list(Recomputation)
    return modes[modes.index(mode) :]


def _lay_out(work: TrainingWorkload, processes: int) -> TrainingWorkload | None:
    """Lay out `work` on `processes` by its own strategy."""
    layout = work.layout
    if layout == Layout() or layout.devices == processes:
        return work
    if not layout.sharded:
        return _redistribute(work, _replicate(layout, processes))
    shards, rest = divmod(processes, layout.replicas * layout.tensor)
    return None if rest else _redistribute(work, replace(layout, shards=shards))


def _replicate(layout: Layout, processes: int) -> Layout:
    exchanged = processes > 1
    return replace(
        layout,
        replicas=processes,
        gradient_buckets=exchanged and not layout.compressed,
        compressed=exchanged and layout.compressed,
    )


def _shard(work: TrainingWorkload, processes: int) -> TrainingWorkload | None:
    """Shard `work` over all `processes`; None when it is sharded already or there is only one."""
    if processes == 1 or work.layout.sharded or work.layout.compressed:
        return None
    return _redistribute(work, Layout(shards=processes, sharded=True))


def _shard_tensors(work: TrainingWorkload, processes: int, parts: int) -> TrainingWorkload | None:
    """Shard `work` with tensor parallelism over `parts`; None when sizes do not divide."""
    shape = work.architecture
    sizes = (shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size, shape.vocab_size)
    if work.layout.compressed or processes % parts or any(size % parts for size in sizes):
        return None
    replicas = work.layout.replicas if work.layout.sharded else 1
    shards, rest = divmod(processes // parts, replicas)
    layout = replace(work.layout, shards=shards, replicas=replicas, tensor=parts, sharded=True)
    return None if rest else _redistribute(work, replace(layout, gradient_buckets=False))


def _redistribute(work: TrainingWorkload, layout: Layout) -> TrainingWorkload | None:
    """Lay out `work` with the same number of sequences per step; None when they do not divide."""
    each, rest = divmod(work.batch_size * work.accumulation * work.layout.data, layout.data)
    if rest or not each:
        return None
    size = max(n for n in range(1, min(work.batch_size, each) + 1) if each % n == 0)
    return replace(work, layout=layout, batch_size=size, accumulation=each // size)


def _smaller_passes(work: TrainingWorkload) -> Iterator[TrainingWorkload]:
    """Yield the same global batch in more, smaller forward passes."""
    for size in range(work.batch_size // 2, 0, -1):
        if work.batch_size % size == 0:
            pieces = work.accumulation * (work.batch_size // size)
            yield replace(work, batch_size=size, accumulation=pieces)


def overrides_between(work: TrainingWorkload, changed: TrainingWorkload) -> tuple[str, ...]:
    """Return the --set arguments that turn `work` into `changed`."""
    cut, again = changed.layout.tensor, changed.recomputation
    accumulation = "training.gradient_accumulation_steps"
    keys = (
        ("model.device", work.on_gpu, changed.on_gpu, "cuda"),
        ("model.dtype", work.bfloat16, changed.bfloat16, "bfloat16"),
        ("compute.strategy", work.layout.sharded, changed.layout.sharded, "fsdp"),
        ("compute.activation_checkpointing", work.recomputation, again, again),
        ("compute.tensor_parallel", work.layout.tensor, cut, cut),
        ("checkpointing.mode", work.staged, changed.staged, "sync"),
        ("compute.compile", work.compiled, changed.compiled, "true"),
        ("training.batch_size", work.batch_size, changed.batch_size, changed.batch_size),
        (accumulation, work.accumulation, changed.accumulation, changed.accumulation),
    )
    return tuple(f"{key}={text}" for key, before, after, text in keys if before != after)
