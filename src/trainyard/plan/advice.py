"""The smallest change that makes a configuration fit: what leaves its numbers alone before what does not.

A smaller batch with more accumulation is the same training; bfloat16 rounds; compiling starts slower; another
machine costs. Only keys that the configuration has are named.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainyard.plan.device import Device, gpu_of
from trainyard.plan.instances import CATALOGUE, InstanceType
from trainyard.plan.memory import highest_moment
from trainyard.plan.workload import Workload


@dataclass(frozen=True)
class Change:
    """A way to make it fit."""

    overrides: tuple[str, ...]
    """Arguments of --set; empty when the configuration can stay as it is."""
    instance: InstanceType | None
    """The machine to take instead; None for the one planned for."""
    peak_bytes: int
    """What it then takes."""


def changes_that_fit(work: Workload, device: Device) -> tuple[Change, ...]:
    """The ways to make it fit: on this device, on a machine as it is, on a cheaper machine with changes.

    The last only where this device has no way. Empty when nothing helps.
    """
    here = next((c for c in _smallest_first(work) if fits(c, device)), None)
    on_gpu = replace(work, on_gpu=True)
    ways = [] if here is None else [_change(work, here, None)]
    unchanged = next((t for t in _by_price() if fits(on_gpu, gpu_of(t))), None)
    if here is None and (cheaper := _cheapest_with_changes(on_gpu, below=unchanged)):
        ways.append(_change(work, *cheaper))
    if unchanged:
        ways.append(_change(work, on_gpu, unchanged))
    return tuple(ways)


def fits(work: Workload, device: Device) -> bool:
    return highest_moment(work).parts.total <= device.usable_bytes


def _cheapest_with_changes(
    work: Workload, *, below: InstanceType | None
) -> tuple[Workload, InstanceType] | None:
    """The cheapest type on which a change helps, with the smallest such change; cheaper than `below`."""
    for instance in _by_price():
        if below and instance == below:
            return None
        for changed in _smallest_first(work):
            if fits(changed, gpu_of(instance)):
                return changed, instance
    return None


def _change(work: Workload, changed: Workload, instance: InstanceType | None) -> Change:
    return Change(overrides_between(work, changed), instance, highest_moment(changed).parts.total)


def _by_price() -> list[InstanceType]:
    priced = [(t.usd_per_hour, t.name, t) for t in CATALOGUE if t.usd_per_hour is not None]
    return [instance for _, _, instance in sorted(priced, key=lambda row: row[:2])]


def _smallest_first(work: Workload) -> Iterator[Workload]:
    """Changed workloads, from the change that matters least to the one that matters most."""
    bases: tuple[Callable[[Workload], Workload], ...] = (
        lambda w: w,
        lambda w: replace(w, bfloat16=True),
        lambda w: replace(w, bfloat16=True, compiled=True),
    )
    for changed in dict.fromkeys(base(work) for base in bases):
        if changed != work:
            yield changed
        yield from _split(changed)


def _split(work: Workload) -> Iterator[Workload]:
    """The same global batch in more and smaller forward passes."""
    for size in range(work.batch_size // 2, 0, -1):
        if work.batch_size % size == 0:
            pieces = work.accumulation * (work.batch_size // size)
            yield replace(work, batch_size=size, accumulation=pieces)


def overrides_between(work: Workload, changed: Workload) -> tuple[str, ...]:
    """The arguments of --set that turn one workload into the other."""
    keys = (
        ("model.device", work.on_gpu, changed.on_gpu, "cuda"),
        ("model.dtype", work.bfloat16, changed.bfloat16, "bfloat16"),
        ("compute.compile", work.compiled, changed.compiled, "true"),
        ("training.batch_size", work.batch_size, changed.batch_size, changed.batch_size),
        (
            "training.gradient_accumulation_steps",
            work.accumulation,
            changed.accumulation,
            changed.accumulation,
        ),
    )
    return tuple(f"{key}={text}" for key, before, after, text in keys if before != after)
