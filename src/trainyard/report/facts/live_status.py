"""The status of a run while it trains, or at its end: the record of `trainyard watch --json`, and Prometheus.

    RunFacts, readings of its machines, state of its job, health --LiveStatus--> record --> samples

Unknown figures are None. A fact that should be known but is not is listed in `unknown`, and is never healthy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trainyard.report.facts.history import finite_or_none
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.status import Status
from trainyard.run.prometheus_text import Sample
from trainyard.run.rank_times import RankTime
from trainyard.watch.goodput import LOST_TIME
from trainyard.watch.health import Alert, HealthRule

if TYPE_CHECKING:
    from trainyard.gateways.node_reading import NodeReading
    from trainyard.jobs.state.job_state import JobState

_LOSS_STEPS = 100
"""The loss is compared with the loss of this many steps earlier."""
_GOOD = (Status.SUCCEEDED, Status.STOPPED)
_GPU = {
    "utilization_percent": "gpu_utilization",
    "memory_used_bytes": "gpu_memory_used_bytes",
    "temperature_celsius": "gpu_celsius",
    "power_watts": "gpu_power_watts",
    "sm_clock_mhz": "gpu_sm_clock_mhz",
    "ecc_uncorrected": "gpu_ecc_uncorrected",
}
"""The names of a reading -> those of the figures, which differ from the names in rows."""


@dataclass(frozen=True)
class LiveStatus:
    """Everything that is known at one moment."""

    now: float
    facts: RunFacts | None
    """None while the run, or the job's record of it, cannot be read."""
    alerts: Sequence[Alert]
    """All alerts of the run and of its machines."""
    unknown: Sequence[str] = ()
    """The facts that should be known but are not, in words."""
    nodes: Mapping[str, "NodeReading"] = field(default_factory=dict)
    """The readings of the machines; the name of this machine is empty."""
    network_rates: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Machine -> bytes per second sent and received since the last poll."""
    ranks: Sequence[RankTime] = ()
    """The processes of the run at their last logged step."""
    job: "JobState | None" = None
    is_alive: bool = False
    """Whether a process of the run is known to exist."""
    facts_age: float | None = None
    """How many seconds old the facts are; None if they were read for this status."""

    @property
    def is_over(self) -> bool:
        """Return whether the run, or its job, has ended."""
        if self.job is not None:
            return self.job.ended
        if self.facts is None or self.facts.state.status in (Status.RUNNING, Status.EMPTY):
            return False
        return not (self.facts.state.status is Status.INTERRUPTED and self.is_alive)

    @property
    def open_alerts(self) -> list[Alert]:
        return [alert for alert in self.alerts if alert.is_open]

    @property
    def health(self) -> str:
        """`healthy`, `unhealthy` or `unknown`; a run that has ended is as healthy as its end."""
        run = self.facts.state.status if self.facts and self.job is None and self.is_over else None
        has_failed = self.job.has_failed if self.job is not None else run not in (None, *_GOOD)
        if self.open_alerts or has_failed:
            return "unhealthy"
        return "unknown" if self.unknown or (self.facts is None and self.job is None) else "healthy"

    def record(self) -> dict[str, Any]:
        """Return the contract of `trainyard watch --json`."""
        facts, job = self.facts, self.job
        status = job.state if job is not None else facts.state.status if facts else None
        network = network_of(facts) if facts else None
        if job and job.alerts and not job.ended:  # logs do not show zones
            network = {"verdict": "degraded", "evidence": job.alerts[0]}
        return {
            "time": self.now,
            "run": facts.name if facts else None,
            "job": job.record() if job else None,
            "status": status.value if status else "UNKNOWN",
            "reason": facts.state.detail or None if facts else None,
            "health": self.health,
            "alerts": [alert.record() for alert in self.open_alerts],
            "unknown": list(self.unknown),
            **(_figures(facts, self.now) if facts else {}),
            "figures_age_seconds": self.facts_age,
            "network": network,
            "slowest_rank": self._slowest_rank(),
            "retries_left": max(0, job.auto_retry - job.retries) if job and job.auto_retry else None,
            "nodes": [self._node(name, reading) for name, reading in self.nodes.items()],
        }

    def _slowest_rank(self) -> dict[str, Any] | None:
        """The rank that is behind in steps, or else the one with the longest own part of a step."""
        if len(self.ranks) < 2:
            return None
        last, newest = min(each.step for each in self.ranks), max(each.step for each in self.ranks)
        slowest = max(self.ranks, key=lambda each: (-each.step, each.seconds or 0.0))
        others = sorted(each.seconds for each in self.ranks if each is not slowest and each.seconds)
        usual = others[len(others) // 2] if others else None
        behind = slowest.seconds / usual - 1 if slowest.seconds and usual else None
        return {"rank": slowest.rank, "host": slowest.host, "behind": behind, "steps_behind": newest - last}

    def _node(self, name: str, reading: "NodeReading") -> dict[str, Any]:
        sent, received = self.network_rates.get(name, (None, None))
        return {
            "node": name or None,
            "gpus": [{**asdict(gpu), "faults": list(gpu.faults)} for gpu in reading.gpus],
            "gpus_unknown": reading.gpu_trouble or None,
            "xids": None if reading.xids is None else [asdict(xid) for xid in reading.xids],
            "sent_bytes_per_second": sent,
            "received_bytes_per_second": received,
            "counters": reading.counters,
        }


def _figures(facts: RunFacts, now: float) -> dict[str, Any]:
    price = facts.price
    return {
        "step": facts.step,
        "steps": facts.steps,
        "loss": facts.loss,
        "loss_change": _loss_change(facts),
        "reward": facts.reward,
        "tokens_per_second": facts.history.rate("tokens_per_second"),
        "samples_per_second": facts.history.rate("samples_per_second"),
        "mfu": facts.mfu,
        "step_seconds": facts.history.seconds_per_step(),
        "seconds": facts.training_seconds,
        "seconds_left": facts.seconds_remaining,
        "usd": facts.usd,
        "usd_expected": facts.usd_expected,
        "usd_per_hour": price.usd_per_hour if price else None,
        "price_source": price.source if price else None,
        "checkpoint": _checkpoint(facts, now),
        "goodput": facts.goodput.record() if facts.goodput else None,
    }


def _loss_change(facts: RunFacts) -> dict[str, float] | None:
    """The difference to the loss of about 100 steps earlier."""
    curve = facts.history.curve("loss")
    place = int((curve.steps <= curve.steps[-1] - _LOSS_STEPS).sum()) - 1 if len(curve) else -1
    if place < 0:
        return None
    return {
        "by": float(curve.values[-1] - curve.values[place]),
        "steps": float(curve.steps[-1] - curve.steps[place]),
    }


def _checkpoint(facts: RunFacts, now: float) -> dict[str, Any] | None:
    """The newest checkpoint, from the run directory or, where only the records are here, from its event."""
    found = [(each.step, each.created) for each in facts.checkpoints]
    for event in facts.events:
        step, moment = finite_or_none(event.get("step")), finite_or_none(event.get("time"))
        if event.get("event") == "checkpoint_saved" and step is not None and moment is not None:
            found.append((int(step), moment))
    if not found:
        return None
    step, moment = max(found)
    return {"step": step, "age_seconds": max(0.0, now - moment), "stored": _is_stored(facts, step)}


def _is_stored(facts: RunFacts, step: int) -> bool | None:
    """Return whether the proof shows that the checkpoint is in the store; None without a proof of it."""
    if facts.proof is None:
        return None
    stored = next((part.passed for part in facts.proof.parts if part.name == "stored"), None)
    return stored if step == facts.step else None


def network_of(facts: RunFacts) -> dict[str, Any]:
    """Return the verdict on the network between the machines, and its evidence.

    No other function reads them from the records.
    """
    for event in reversed(facts.events):
        if event.get("event") in ("started", "resumed"):
            break
        if event.get("event") == "network_degraded":
            return {"verdict": "degraded", "evidence": str(event.get("reason") or "")}
        if event.get("event") == "network" and isinstance(event.get("verdict"), str):
            shown = event.get("evidence")
            first = shown[0] if isinstance(shown, list) and shown else shown
            return {"verdict": event["verdict"], "evidence": str(first or event["verdict"])}
    for part in facts.proof.parts if facts.proof else ():
        if part.name == "network":
            return {"verdict": "proven" if part.passed else "not proven", "evidence": part.evidence}
    size = finite_or_none(facts.section("hardware").get("world_size"))
    if size == 1:
        return {"verdict": "single-node", "evidence": "one process: no network is used"}
    if size is not None and facts.nodes == 1:
        return {"verdict": "single-node", "evidence": "one machine: no network is used"}
    return {"verdict": "unknown", "evidence": ""}


def status_samples(status: LiveStatus) -> list[Sample]:
    """Return the figures of a status; unknown ones are absent."""
    record = status.record()
    name = str(record["run"] or (record["job"] or {}).get("job") or "")
    return [
        Sample(figure, float(value), {"run": name, **labels})
        for figure, value, labels in _sampled_figures(record)
    ]


def _sampled_figures(record: Mapping[str, Any]) -> Iterator[tuple[str, float, dict[str, str]]]:
    yield "healthy", record["health"] == "healthy", {}
    yield "unknown_parts", len(record["unknown"]), {}
    rules = [alert["rule"] for alert in record["alerts"]]
    for rule in HealthRule:
        yield "alerts", rules.count(rule.value), {"rule": rule.value}
    for figure, key in (
        ("cost_usd", "usd"),
        ("cost_usd_expected", "usd_expected"),
        ("planned_steps", "steps"),
    ):
        if record.get(key) is not None:
            yield figure, record[key], {}
    if checkpoint := record.get("checkpoint"):
        yield "checkpoint_step", checkpoint["step"], {}
        yield "checkpoint_age_seconds", checkpoint["age_seconds"], {}
    for part in ("training", *LOST_TIME) if record.get("goodput") else ():
        yield "time_seconds", record["goodput"][part], {"part": part}
    for node in record["nodes"]:
        place = {"node": node["node"] or ""}
        for direction in ("sent", "received"):
            if (rate := node[f"{direction}_bytes_per_second"]) is not None:
                yield "network_bytes_per_second", rate, {**place, "direction": direction}
        for gpu in node["gpus"]:
            for key, figure in _GPU.items():
                if gpu[key] is not None:
                    yield figure, gpu[key], {**place, "gpu": str(gpu["index"])}
