"""Judge the measured bandwidth of an all-reduce by figures that AWS has published for an instance type.

The floor is half of the published figure, because a correct network of another size, topology or NCCL version
differs by tens of percent, and a wrong one (TCP, a missing interface) by several times. It measures nothing.
"""

from dataclasses import dataclass

from trainyard.plan.instances import ALL_REDUCE, plain_type

SHARE = 0.5
# Message size of the published rows, in bytes; smaller messages are slower.
PUBLISHED_BYTES = 1 << 30


@dataclass(frozen=True)
class BandwidthVerdict:
    """The judgement of a measured bandwidth."""

    is_slow: bool
    floor: float | None
    """GB/s; None if nothing is published for these machines."""
    text: str


def bandwidth_floor(instance_type: str, nodes: int) -> float | None:
    """Return the lowest acceptable bus bandwidth in GB/s; None if no figure is published for the type.

    Over two machines NCCL's trees pass the line rate of one machine; over more they do not, so there the
    floor is at most half of the line rate.
    """
    found = ALL_REDUCE.get(plain_type(instance_type))
    if found is None or nodes < 2:
        return None
    return SHARE * (found[0] if nodes == 2 else min(found))


def judge_bandwidth(measured: float, *, instance_type: str, nodes: int, size: int) -> BandwidthVerdict:
    """Judge a bus bandwidth in GB/s of all-reduces of `size` bytes."""
    shown, floor = f"all-reduce at {measured:.3g} GB/s", bandwidth_floor(instance_type, nodes)
    if floor is None:
        why = f"no figure is published for {instance_type or 'these machines'}"
        return BandwidthVerdict(False, None, f"{shown}; {why}, so nothing is compared")
    if size < PUBLISHED_BYTES:
        why = f"the published figure is for messages of {PUBLISHED_BYTES:,} bytes"
        return BandwidthVerdict(False, None, f"{shown}; {why}, so nothing is compared")
    text = f"{shown}, the floor is {floor:.3g} GB/s"
    return BandwidthVerdict(measured < floor, floor, text)
