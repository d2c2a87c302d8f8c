"""The status of a run as figures for Prometheus: health, cost, time, checkpoint, machines; not its rows."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainyard.run.prometheus_text import Sample
from trainyard.watch.health import HealthRule

if TYPE_CHECKING:
    from trainyard.report.facts.live_status import LiveStatus

_PARTS = ("training", "start", "recompute", "saves", "idle")
_GPU = {
    "utilization_percent": "gpu_utilization",
    "memory_used_bytes": "gpu_memory_used_bytes",
    "temperature_celsius": "gpu_celsius",
    "power_watts": "gpu_power_watts",
    "sm_clock_mhz": "gpu_sm_clock_mhz",
    "ecc_uncorrected": "gpu_ecc_uncorrected",
}
"""The names of a reading -> those of the figures, which differ from the names in rows."""


def status_samples(status: "LiveStatus") -> list[Sample]:
    """Return the figures of a status; unknown ones are absent."""
    record = status.record()
    name = str(record["run"] or (record["job"] or {}).get("job") or "")
    return [
        Sample(figure, float(value), {"run": name, **labels}) for figure, value, labels in _figures(record)
    ]


def _figures(record: Mapping[str, Any]) -> Iterator[tuple[str, float, dict[str, str]]]:
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
    for part in _PARTS if record.get("goodput") else ():
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
