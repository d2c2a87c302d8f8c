"""The list of a run's figures, which every report reads: text, JSON, HTML, Markdown and Slack.

A further figure is one entry in `FIGURES` for text and JSON; some have a tile in HTML, or words in the line
of Markdown and Slack. Empty and unknown values are left out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.report.facts.curve import sparkline
from trainyard.report.facts.history import STEP_PARTS
from trainyard.report.facts.quantities import (
    format_count,
    format_duration,
    format_gigabytes,
    format_loss,
    format_money,
    format_percent,
    format_scaled,
)
from trainyard.report.facts.run_facts import RunFacts
from trainyard.run.source_words import source_in_words


class FigureGroup(StrEnum):
    """The headings of the figures; the values are the names in the JSON report."""

    TRAINING = "training_metrics"
    GPU = "gpu_resource_usage"
    PERFORMANCE = "performance_metrics"
    TIMING = "timing"


@dataclass(frozen=True)
class Tile:
    """A figure at the top of the HTML report."""

    name: str
    value: str
    comparison: str = ""


@dataclass(frozen=True)
class Markup:
    """The notation of a report with markup, such as Markdown."""

    strong: Callable[[str], str] = str
    """Marks up losses, rewards and costs."""
    escaped: Callable[[str], str] = str
    """Applied to text that comes from the run."""


Form = Callable[[float], str]
Source = Callable[[RunFacts, str], Any]
"""Reads the value of a figure by its name in the JSON report."""


@dataclass(frozen=True)
class Figure:
    """A figure in the text report, and its values in the JSON report."""

    group: FigureGroup
    label: str
    """Its name in the text report."""
    source: Source
    names: str
    """The names of its values in the JSON report, the first of which the text shows; base units."""
    form: Form = str
    """Writes the first value in the text report."""
    text: Callable[[RunFacts], str | None] | None = None
    """Its value in the text report, where that is more than the first value."""


def text_figures(facts: RunFacts, group: FigureGroup) -> Iterable[tuple[str, str | None]]:
    """Yield label and value of each figure in a group."""
    for figure in (one for one in FIGURES if one.group is group and one.label):
        first = figure.names.partition(" ")[0]
        shown = figure.text(facts) if figure.text else _format_known(figure.source(facts, first), figure.form)
        yield figure.label, shown


def figure_values(facts: RunFacts, group: FigureGroup) -> dict[str, Any]:
    """Return the values of the figures in a group, None where they are not known."""
    return {
        name: figure.source(facts, name)
        for figure in FIGURES
        if figure.group is group
        for name in figure.names.split()
    }


def figure_tiles(facts: RunFacts) -> list[Tile]:
    """Return the tiles of the HTML report, in their order; unknown figures have none."""
    last, rate = facts.history.last, facts.history.rate
    is_rewarded = facts.reward is not None  # the loss of such a run says little
    tokens = facts.outcome_figure("tokens") or last.get("tokens")
    memory = last.get("gpu_memory_total_bytes")
    longest = "".join(f", {format_percent(share)} {name}" for name, share in step_shares(facts)[:1])
    tiles: tuple[tuple[str, float | None, Form, str | None], ...] = (
        ("reward", facts.reward, "{:.2f}".format, _format_known(facts.first_reward, "was {:.2f}".format)),
        (
            "training loss",
            None if is_rewarded else facts.loss,
            format_loss,
            _format_known(facts.first_loss, lambda loss: f"was {format_loss(loss)}"),
        ),
        ("validation loss", facts.validation_loss, format_loss, _bits_text(facts)),
        ("steps", facts.steps_done, "{:,}".format, _format_known(facts.steps, "of {:,}".format)),
        (
            "training time",
            facts.training_seconds,
            format_duration,
            _format_known(facts.seconds_remaining, lambda seconds: f"{format_duration(seconds)} left"),
        ),
        (
            "tokens/s",
            rate("tokens_per_second"),
            format_scaled,
            f"median, of {format_scaled(tokens)}" if tokens else "median",
        ),
        ("MFU", facts.mfu, format_percent, "median, of peak"),
        ("step time", rate("step_seconds"), "{:.3g} s".format, f"median{longest}"),
        (
            "GPU memory",
            last.get("gpu_memory_bytes"),
            format_gigabytes,
            f"of {format_gigabytes(memory)}" if memory else "",
        ),
    )
    return [Tile(name, form(value), beside or "") for name, value, form, beside in tiles if value is not None]


def brief_figures(facts: RunFacts, markup: Markup) -> list[str]:
    """`loss 5.56 → 1.08, 1.71 bits/byte`, `600 steps in 1:52`, `58 % MFU on NVIDIA H100`, where known.

    A run that trains on rewards has `reward 0.53 → 0.91` instead of losses.
    """
    found = list[str]()
    if facts.reward is not None:
        was = _format_known(facts.first_reward, "{:.2f} → ".format) or ""
        found.append(f"reward {markup.strong(f'{was}{facts.reward:.2f}')}")
    elif facts.loss is not None:
        was = _format_known(facts.first_loss, lambda loss: f"{format_loss(loss)} → ") or ""
        bits = f", {bits}" if (bits := _bits_text(facts)) else ""
        found.append(f"loss {markup.strong(was + format_loss(facts.loss))}{bits}")
    if facts.steps_done is not None:
        time = _format_known(facts.training_seconds, lambda seconds: f" in {format_duration(seconds)}") or ""
        found.append(f"{format_count(facts.steps_done, 'step')}{time}")
    device = facts.machine.get("device_name") or facts.machine.get("device")
    mfu = _format_known(facts.mfu, lambda share: f"{format_percent(share)} MFU ") or ""
    found.append(f"{mfu}{f'on {markup.escaped(str(device))}' if device else ''}".strip())
    found.append("" if facts.usd is None else markup.strong(format_money(facts.usd)))
    return [words for words in found if words]


def step_shares(facts: RunFacts) -> list[tuple[str, float]]:
    """The share of each part in the time of a step, largest first; empty when not known."""
    known = {name: facts.history.rate(f"{name}_seconds") for name in STEP_PARTS if name != "checkpoint"}
    spent = {name: value for name, value in known.items() if value is not None}
    total = sum(spent.values())
    shares = [(name, value / total) for name, value in spent.items()] if total > 0 else []
    return sorted(shares, key=lambda share: -share[1])


def _last(facts: RunFacts, name: str) -> float | None:
    return facts.history.last.get(name)


def _rate(facts: RunFacts, name: str) -> float | None:
    return facts.history.rate(name)


def _share(name: str, total: str, form: Form) -> Callable[[RunFacts], str | None]:
    """Return a writer of `340 / 600` from two facts; of the first alone where the total is not known."""

    def text(facts: RunFacts) -> str | None:
        value, of = getattr(facts, name), getattr(facts, total)
        return None if value is None else form(value) if of is None else f"{form(value)} / {form(of)}"

    return text


def _curve(group: FigureGroup, label: str, name: str, form: Form) -> Figure:
    """The values of `name` over the steps as a line of blocks, with the first and the last value."""

    def text(facts: RunFacts) -> str | None:
        curve = facts.curve(name)
        line = sparkline(curve)
        return f"{line} {form(curve.values[0])} → {form(curve.values[-1])}" if line else None

    return Figure(group, label, _last, "", text=text)


def _format_known(value: float | None, form: Form) -> str | None:
    return None if value is None else form(value)


def _bits_text(facts: RunFacts) -> str | None:
    return _format_known(facts.bits_per_byte, "{:.2f} bits/byte".format)


def _memory_text(facts: RunFacts) -> str | None:
    """`22.1 GB / 24.0 GB (92 %)`; `22.1 GB` when the total is not known."""
    used = facts.history.last.get("gpu_memory_bytes")
    total = facts.history.last.get("gpu_memory_total_bytes")
    if used is None or not total:
        return _format_known(used, format_gigabytes)
    return f"{format_gigabytes(used)} / {format_gigabytes(total)} ({format_percent(used / total)})"


def _step_time_text(facts: RunFacts) -> str | None:
    parts = ", ".join(f"{name} {format_percent(share)}" for name, share in step_shares(facts))
    text = _format_known(facts.history.rate("step_seconds"), "{:.3g} s".format)
    return f"{text} ({parts})" if text and parts else text


def _duration_text(facts: RunFacts) -> str | None:
    so_far = " (so far)" if facts.state.going else ""
    return _format_known(facts.training_seconds, lambda seconds: format_duration(seconds) + so_far)


def _goodput_text(facts: RunFacts) -> str | None:
    """`91 % of 2:41 trained (6:12 starting, 2:05 saves)`."""
    if facts.goodput is None or facts.step is None:
        return None
    lost = [
        f"{format_duration(seconds)} {words}" for words, seconds in facts.goodput.losses if seconds >= 0.5
    ]
    share = f"{format_percent(facts.goodput.share)} of {format_duration(facts.goodput.total)} trained"
    return share + (f" ({', '.join(lost)})" if lost else "")


def _format_epoch(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _goodput_record(facts: RunFacts, _name: str) -> dict[str, Any] | None:
    return facts.goodput.record() if facts.goodput and facts.step else None


def _sources_text(facts: RunFacts) -> str | None:
    """Return where the steps and figures of another program come from: `steps observed, loss printed …`."""
    outcome = facts.section("outcome")
    sources = outcome.get("sources")
    if not isinstance(sources, Mapping):
        return None
    return ", ".join(f"{name}{source_in_words(outcome, name)}" for name in sources)


_TRAINING, _GPU = FigureGroup.TRAINING, FigureGroup.GPU
_PERFORMANCE, _TIMING = FigureGroup.PERFORMANCE, FigureGroup.TIMING
_WHOLE = "{:,.0f}".format
_RATE, _DEGREES = "{:.2e}".format, "{:.0f} °C".format
_STEP_NAMES = " ".join(("step_seconds", *(f"{part}_seconds" for part in STEP_PARTS)))
# Every figure, in the order of the text report.
FIGURES: tuple[Figure, ...] = (
    Figure(
        _TRAINING, "Current Epoch", getattr, "epoch epochs", text=_share("epoch", "epochs", _format_epoch)
    ),
    Figure(_TRAINING, "Reward", getattr, "reward first_reward", format_loss),
    Figure(_TRAINING, "Training Loss", getattr, "loss first_loss", format_loss),
    Figure(_TRAINING, "Validation Loss", lambda facts, _: facts.validation_loss, "val_loss", format_loss),
    Figure(_TRAINING, "Bits per Byte", getattr, "bits_per_byte", "{:.2f}".format),
    Figure(_TRAINING, "Learning Rate", _last, "learning_rate", _RATE),
    Figure(_TRAINING, "Gradient Norm", _last, "grad_norm", "{:.3g}".format),
    Figure(_TRAINING, "Total Steps", getattr, "step steps", text=_share("steps_done", "steps", _WHOLE)),
    Figure(_TRAINING, "Sources", lambda facts, name: facts.outcome.get(name), "sources", text=_sources_text),
    Figure(
        _TRAINING,
        "Step in Epoch",
        getattr,
        "step_in_epoch steps_per_epoch",
        text=_share("step_in_epoch", "steps_per_epoch", _WHOLE),
    ),
    _curve(_TRAINING, "Reward Curve", "reward", format_loss),
    _curve(_TRAINING, "Loss Curve", "loss", format_loss),
    _curve(_TRAINING, "Validation Curve", "val_loss", format_loss),
    _curve(_TRAINING, "Learning Rate Curve", "learning_rate", _RATE),
    Figure(_TRAINING, "", _last, "tokens"),
    Figure(_GPU, "GPU Memory", _last, "gpu_memory_bytes gpu_memory_total_bytes", text=_memory_text),
    _curve(_GPU, "GPU Memory Curve", "gpu_memory_bytes", format_gigabytes),
    Figure(_GPU, "GPU Memory Peak", _last, "gpu_memory_peak_bytes", format_gigabytes),
    Figure(_GPU, "GPU Utilization", _rate, "gpu_utilization_percent", "{:.0f} %".format),
    Figure(_GPU, "Temperature", _last, "gpu_temperature_celsius", _DEGREES),
    Figure(_PERFORMANCE, "Throughput", _rate, "samples_per_second", "{:.1f} samples/sec".format),
    Figure(_PERFORMANCE, "Tokens/sec", _rate, "tokens_per_second", format_scaled),
    Figure(_PERFORMANCE, "MFU", getattr, "mfu", format_percent),
    Figure(_PERFORMANCE, "Step Time", _rate, _STEP_NAMES, text=_step_time_text),
    Figure(_PERFORMANCE, "Time Remaining", getattr, "seconds_remaining", format_duration),
    Figure(_PERFORMANCE, "Completion", getattr, "completion", format_percent),
    Figure(
        _TIMING,
        "Epoch Duration",
        getattr,
        "epoch_seconds",
        lambda spent: f"{format_duration(spent)} per epoch",
    ),
    Figure(_TIMING, "Training Duration", getattr, "training_seconds", text=_duration_text),
    Figure(_TIMING, "Goodput", _goodput_record, "goodput", text=_goodput_text),
    Figure(_TIMING, "Estimated Total", getattr, "estimated_total_seconds", format_duration),
)
