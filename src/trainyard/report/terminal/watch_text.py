"""The status of a run as text: a live view for a terminal, and one plain line for a log."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.cluster.check_definition import list_names
from trainyard.report.facts.quantities import (
    format_age_ago,
    format_count,
    format_duration,
    format_gigabytes,
    format_loss,
    format_money,
    format_percent,
    format_scaled,
)
from trainyard.run.sizes import format_size
from trainyard.watch.goodput import LOST_TIME

Json = Mapping[str, Any]
_LABEL = 10


def status_lines(status: Json, width: int) -> list[str]:
    """The view of one status, the state first."""
    lines = _packed([*_title(status), *_time_and_cost(status)], width, " · ", indent="    ")
    if figures := [*_step_words(status), *_checkpoint_words(status)]:
        lines += [f"  {line}" for line in _packed(figures, width - 2, "   ")]
    for label, parts in _sections(status):
        texts = _packed(parts, width - 2 - _LABEL, " · ")
        lines += [f"  {label if not number else '':<{_LABEL}}{text}" for number, text in enumerate(texts)]
    return lines


def status_line(status: Json) -> str:
    """One status in a log: `running, step 1,240/5,000, loss 2.31, 412 k tok/s, 8:10 left, healthy`."""
    words = [_state(status), *_step_words(status), *_time_and_cost(status), status["health"]]
    return ", ".join(words)


def _title(status: Json) -> Iterator[str]:
    if job := status["job"]:
        yield f"{job['job']} · {job['kind']} · {_state(status)}"
        yield f"{job['pods']['running']} of {job['pods']['wanted'] or job['pods']['present']} pods"
    else:
        yield f"{'run ' + status['run'] if status['run'] else 'no run yet'} · {_state(status)}"


def _state(status: Json) -> str:
    return str(status["status"]).lower()


def _time_and_cost(status: Json) -> Iterator[str]:
    if (seconds := status.get("seconds")) is not None:
        yield format_duration(seconds)
    if (usd := status.get("usd")) is not None:
        expected = status.get("usd_expected")
        yield format_money(usd) + (f" of about {format_money(expected)}" if expected is not None else "")


def _step_words(status: Json) -> Iterator[str]:
    if (step := status.get("step")) is not None:
        yield f"step {step:,}" + (f"/{status['steps']:,}" if status["steps"] else "")
    if (reward := status.get("reward")) is not None:
        yield f"reward {reward:.2f}"
    elif (loss := status.get("loss")) is not None:
        change = status["loss_change"]
        since = f" ({change['by']:+.2g} in {change['steps']:,.0f})".replace("-", "−") if change else ""
        yield f"loss {format_loss(loss)}{since}"
    if (speed := status.get("tokens_per_second")) is not None:
        yield f"{format_scaled(speed)} tok/s"
    elif (speed := status.get("samples_per_second")) is not None:
        yield f"{format_scaled(speed)} samples/s"
    if (mfu := status.get("mfu")) is not None:
        yield f"{format_percent(mfu)} MFU"
    if (left := status.get("seconds_left")) is not None:
        yield f"{format_duration(left)} left"


def _checkpoint_words(status: Json) -> Iterator[str]:
    if checkpoint := status.get("checkpoint"):
        stored = {True: ", stored", False: ", not stored", None: ""}[checkpoint["stored"]]
        yield f"checkpoint {checkpoint['step']:,}, {format_age_ago(checkpoint['age_seconds'])}{stored}"


def _sections(status: Json) -> Iterator[tuple[str, list[str]]]:
    if job := status["job"]:
        failure = job["failure"]
        yield "job", [failure["class"], *failure["evidence"][:2]] if failure else [job["reason"]]
        if age := status["figures_age_seconds"]:
            yield "figures", [f"read {format_age_ago(age)}; the pods are gone"]
    elif status["reason"]:
        yield "status", [status["reason"]]
    if network := status["network"]:
        known = network["verdict"] != "unknown"
        yield (
            "network",
            [network["evidence"] or network["verdict"] if known else "unknown", *_rates(status["nodes"])],
        )
    elif rates := [*_rates(status["nodes"])]:
        yield "network", rates
    if gpus := [gpu for node in status["nodes"] for gpu in node["gpus"]]:
        yield "GPUs", [*_gpu_summary(gpus)]
    if rank := status["slowest_rank"]:
        yield "ranks", [_rank_words(rank)]
    if goodput := status.get("goodput"):
        yield "time", [*_time_words(goodput)]
    verdict = {"healthy": "ok", "unhealthy": "not ok", "unknown": "unknown"}[status["health"]]
    left = status["retries_left"]
    yield "health", [verdict, *([] if left is None else [f"retries left {left}"])]
    for text in (
        *_alert_texts(status["alerts"]),
        *(f"unknown: {what}" for what in status["unknown"]),
    ):
        yield "", [text]


def _alert_texts(alerts: Sequence[Json]) -> Iterator[str]:
    """Yield each alert, and one text for those that differ only in the pod or node that they are about."""
    groups: dict[str, list[Json]] = {}
    for alert in alerts:
        subject = alert["subject"] or ""
        groups.setdefault(alert["text"].replace(subject, "…") if subject else alert["text"], []).append(alert)
    for text, members in groups.items():
        names = [alert["subject"] for alert in members]
        yield (
            members[0]["text"]
            if len(members) == 1
            else f"{len(names):,} of them: {text} ({list_names(names)})"
        )


def _known(readings: Sequence[Json], name: str) -> list[float]:
    return [each[name] for each in readings if each[name] is not None]


def _rates(nodes: Sequence[Json]) -> Iterator[str]:
    sent, received = (sum(_known(nodes, f"{way}_bytes_per_second")) for way in ("sent", "received"))
    if _known(nodes, "sent_bytes_per_second"):
        yield f"{format_size(sent)}/s sent, {format_size(received)}/s received"


def _gpu_summary(gpus: Sequence[Json]) -> Iterator[str]:
    def mean(name: str) -> float | None:
        known = _known(gpus, name)
        return sum(known) / len(known) if known else None

    yield format_count(len(gpus), "GPU")
    if (busy := mean("utilization_percent")) is not None:
        yield f"{busy:.0f} % busy"
    used, total = mean("memory_used_bytes"), mean("memory_total_bytes")
    if used is not None and total is not None:
        yield f"{used / 1e9:.0f} of {format_gigabytes(total)}"
    if temperatures := _known(gpus, "temperature_celsius"):
        yield f"at most {max(temperatures):.0f} °C"
    if (watts := mean("power_watts")) is not None:
        yield f"{watts * len(gpus):,.0f} W"
    if len(clocks := _known(gpus, "sm_clock_mhz")) > 1:
        yield f"slowest clock {min(clocks):,.0f} MHz"


def _rank_words(rank: Json) -> str:
    place = f"slowest rank {rank['rank']}" + (f" on {rank['host']}" if rank["host"] else "")
    if rank["steps_behind"]:
        return f"{place}: {format_count(rank['steps_behind'], 'step')} behind"
    return place if rank["behind"] is None else f"{place}: {format_percent(max(0.0, rank['behind']))} behind"


def _time_words(goodput: Json) -> Iterator[str]:
    yield f"{format_percent(goodput['share'])} training"
    for name, words in LOST_TIME.items():
        if goodput[name] >= 0.5:
            yield f"{format_duration(goodput[name])} {words}"


def _packed(parts: Sequence[str], width: int, between: str, *, indent: str = "") -> list[str]:
    """The parts, as many in a line as fit; a part that is too long is wrapped between its words."""
    import textwrap

    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(between) + len(part) <= width:
            lines[-1] += between + part
        else:
            start = indent if lines else ""
            pieces = textwrap.wrap(part, max(20, width - len(start)), break_on_hyphens=False) or [""]
            lines += [start + piece for piece in pieces]
    return lines
