"""Account for the time and the money of a run: what trained, and what was lost to which cause.

    rows, events            --goodput_of--> seconds of training, start, recompute, saves, idle
    price, type, machines   --price_of-->   US dollars per hour

Pure: rows, prices and times are passed in. Lost time that no record shows counts as training.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from trainyard.errors import ConfigError
from trainyard.plan.cost import RentedMachines
from trainyard.plan.instances import PRICES_AS_OF, InstanceType, find_instance, instance_called
from trainyard.run.usual_value import median_of

# The causes of lost time, and their words in reports.
LOST_TIME = {"start": "starting", "recompute": "repeated steps", "saves": "saves", "idle": "idle"}


@dataclass(frozen=True)
class Goodput:
    """The time from the start of a run to its end, or until now, in seconds."""

    total: float
    training: float
    start: float
    """From the start of a segment to its first step: importing, compiling, reading data."""
    recompute: float
    """Steps whose results were lost, so that a resumed segment trained them again."""
    saves: float
    """Training waited for a checkpoint."""
    idle: float
    """Between two segments."""

    @property
    def paid(self) -> float:
        """The seconds for which the machines were used; between two segments they are not."""
        return self.total - self.idle

    @property
    def share(self) -> float:
        """The share of the time that trained, 0 to 1."""
        return self.training / self.total if self.total > 0 else 0.0

    @property
    def losses(self) -> tuple[tuple[str, float], ...]:
        """The causes of lost time, in words, each with its seconds."""
        return tuple((words, getattr(self, name)) for name, words in LOST_TIME.items())

    def record(self) -> dict[str, float]:
        seconds = {name: round(value, 1) for name, value in asdict(self).items()}
        return {**seconds, "share": round(self.share, 4)}


def goodput_of(
    steps: Sequence[float],
    times: Sequence[float],
    events: Iterable[Mapping[str, Any]],
    *,
    saves: float,
    created: float | None,
    end: float | None,
) -> Goodput | None:
    """Return the account of a run; None if its start or its end is not known.

    `steps` and `times` are those of its rows, `saves` the seconds that training waited for checkpoints.
    """
    starts = [
        (float(event["time"]), event)
        for event in events
        if event.get("event") in ("started", "resumed") and isinstance(event.get("time"), int | float)
    ]
    begin = min(
        [moment for moment, _ in starts[:1]] + ([created] if created is not None else []), default=None
    )
    if begin is None or end is None or end < begin:
        return None
    each_row = median_of([after - before for before, after in pairwise(times)] or [0.0])
    each_step = median_of(
        [
            (after - before) / (step - last)
            for (before, after), (last, step) in zip(pairwise(times), pairwise(steps), strict=True)
            if step > last and after >= before
        ]
        or [0.0]
    )
    start = recompute = idle = 0.0
    for number, (moment, event) in enumerate(starts):
        until = starts[number + 1][0] if number + 1 < len(starts) else end
        first, last = bisect_right(times, moment), bisect_right(times, until)
        resumed_at = event.get("step")
        done = resumed_at if isinstance(resumed_at, int | float) else 0
        if first == last:
            start += max(0.0, until - moment)
        else:
            start += max(0.0, times[first] - moment - max(0.0, steps[first] - done) * each_step)
        if number:
            before = max(times[first - 1] if first else begin, starts[number - 1][0])
            dropped = event.get("dropped_rows")
            lost = min(moment - before, dropped * each_row if isinstance(dropped, int | float) else 0.0)
            recompute += lost
            idle += (
                max(0.0, moment - before - lost) if first > bisect_right(times, starts[number - 1][0]) else 0
            )
    start += max(0.0, starts[0][0] - begin) if starts else 0.0
    total = end - begin
    training = max(0.0, total - start - recompute - saves - idle)
    return Goodput(total, training, start, recompute, saves, idle)


@dataclass(frozen=True)
class Price:
    """The price of all machines of a run, or of its pods' share of them."""

    usd_per_hour: float
    source: str
    """Where it comes from: `TRAINYARD_USD_PER_HOUR`, or machines, type and date."""


def paid_seconds(limit: float, price: Price | None, spent: Goodput | None) -> float:
    """Return the seconds for which the machines can still be paid before `limit` (US dollars) is reached.

    Pauses between segments cost nothing. Raises ConfigError if no price is known, or the limit is reached.
    """
    if price is None or price.usd_per_hour <= 0:
        raise ConfigError(
            f"limits.cost_usd: {limit:g} needs the price of the machines: set TRAINYARD_USD_PER_HOUR to the "
            "price of all of them, or set TRAINYARD_INSTANCE_TYPE. Nothing was started."
        )
    seconds = limit / price.usd_per_hour * 3600
    gone = spent.paid if spent is not None else 0.0
    if gone >= seconds:
        raise ConfigError(
            f"limits.cost_usd: this run has cost $ {gone / 3600 * price.usd_per_hour:,.2f} of $ {limit:,.2f} "
            f"($ {price.usd_per_hour:,.2f} an hour, {price.source}). Raise it to resume. Nothing was started."
        )
    return seconds - gone


def price_of(
    stated: str, instance_type: str, nodes: int, requests: Mapping[str, Any] = MappingProxyType({})
) -> Price | None:
    """Return the stated price, else that of the catalogue; None if neither is known.

    `stated` is TRAINYARD_USD_PER_HOUR: the price of all machines. HyperPod's prices are not known. `requests`
    is what each pod requests of its machine; without it the complete machine is paid for.
    """
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", stated, re.ASCII):
        return Price(float(stated), "TRAINYARD_USD_PER_HOUR")
    if stated or instance_called(instance_type) is None:
        return None
    instance = find_instance(instance_type)
    usd, share = RentedMachines(instance, nodes).usd_per_hour, _share_of(instance, requests)
    if usd is None:
        return None
    part = "" if share == 1 else f"a share of {100 * share:.3g} % of "
    return Price(usd * share, f"{part}{nodes} × {instance_type} on demand, prices of {PRICES_AS_OF}")


def _share_of(instance: InstanceType, requests: Mapping[str, Any]) -> float:
    """Return the largest of the pod's shares of the machine's GPUs, CPUs and memory, 0 to 1."""
    memory = ("memory_mib", 1024 * instance.memory_gib)
    sizes = (("gpus", instance.gpus), ("cpu_millis", 1000 * instance.vcpus), memory)
    known = [requests[name] / size for name, size in sizes if isinstance(requests.get(name), int)]
    return min(1.0, max(known, default=0.0)) or 1.0
