"""The list of a run's figures, which every report reads: text, JSON, HTML, Markdown and Slack.

A further figure is one entry in `FIGURES`, which says how each report shows it. Empty and unknown values are
left out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypedDict, Unpack

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


@dataclass(frozen=True)
class Figure:
    """A figure in all reports."""

    group: FigureGroup
    label: str = ""
    """Its name in the text report; empty where `text` is not given."""
    text: Callable[[RunFacts], str | None] = lambda _: None
    """Its value in the text report."""
    values: Callable[[RunFacts], Mapping[str, Any]] = lambda _: {}
    """Its values in the JSON report, in base units, under the names of `metrics.jsonl`."""
    tile: tuple[int, Callable[[RunFacts], Tile | None]] = (100, lambda _: None)
    """Its place among the tiles of the HTML report, in ascending order, and its tile."""
    brief: Callable[[RunFacts, Markup], str] = lambda _facts, _markup: ""
    """Its text in the line of figures of Markdown and Slack."""


class Shown(TypedDict, total=False):
    """The fields of a `Figure` for the reports with tiles or markup."""

    tile: tuple[int, Callable[[RunFacts], Tile | None]]
    brief: Callable[[RunFacts, Markup], str]


def text_figures(facts: RunFacts, group: FigureGroup) -> Iterable[tuple[str, str | None]]:
    """Yield label and value of each figure in a group."""
    return ((figure.label, figure.text(facts)) for figure in FIGURES if figure.group is group)


def figure_values(facts: RunFacts, group: FigureGroup) -> dict[str, Any]:
    """Return the values of the figures in a group, None where they are not known."""
    return {
        name: value
        for figure in FIGURES
        if figure.group is group
        for name, value in figure.values(facts).items()
    }


def figure_tiles(facts: RunFacts) -> list[Tile]:
    """Return the tiles of the HTML report, in their order."""
    ordered = sorted((figure.tile for figure in FIGURES), key=lambda tile: tile[0])
    return [tile for _, make in ordered if (tile := make(facts)) is not None]


def brief_figures(facts: RunFacts, markup: Markup) -> list[str]:
    """`loss 5.56 → 1.08, 1.71 bits/byte`, `600 steps in 1:52`, `58 % MFU on NVIDIA H100`, where known.

    A run that trains on rewards has `reward 0.53 → 0.91` instead of losses.
    """
    return [words for figure in FIGURES if (words := figure.brief(facts, markup))]


def step_shares(facts: RunFacts) -> list[tuple[str, float]]:
    """The share of each part in the time of a step, largest first; empty when not known."""
    known = {name: facts.history.rate(f"{name}_seconds") for name in STEP_PARTS if name != "checkpoint"}
    spent = {name: value for name, value in known.items() if value is not None}
    total = sum(spent.values())
    shares = [(name, value / total) for name, value in spent.items()] if total > 0 else []
    return sorted(shares, key=lambda share: -share[1])


def _last(*names: str) -> Callable[[RunFacts], Mapping[str, Any]]:
    """The values of the last logged row, by the names that they have there."""
    return lambda facts: {name: facts.history.last.get(name) for name in names}


def _rates(*names: str) -> Callable[[RunFacts], Mapping[str, Any]]:
    """The rates of the figures, by their names in the rows."""
    return lambda facts: {name: facts.history.rate(name) for name in names}


def _rated(
    group: FigureGroup, label: str, name: str, form: Callable[[float], str], **shown: Unpack[Shown]
) -> Figure:
    """The rate of the figure `name`, which `form` writes in the text report."""
    return Figure(
        group,
        label,
        lambda facts: _format_known(facts.history.rate(name), form),
        _rates(name),
        **shown,
    )


def _logged(
    group: FigureGroup, label: str, name: str, form: Callable[[float], str], **shown: Unpack[Shown]
) -> Figure:
    """The value `name` of the last logged row, which `form` writes in the text report."""
    return Figure(
        group, label, lambda facts: _format_known(facts.history.last.get(name), form), _last(name), **shown
    )


def _computed(
    group: FigureGroup,
    label: str,
    name: str,
    form: Callable[[float], str],
    *more: str,
    json: str = "",
    **shown: Unpack[Shown],
) -> Figure:
    """The property `name` of the facts, which `form` writes in the text report.

    JSON has the same name, unless `json` is another, and the properties `more`.
    """
    return Figure(
        group,
        label,
        lambda facts: _format_known(getattr(facts, name), form),
        lambda facts: {
            **{each: getattr(facts, each) for each in more},
            json or name: getattr(facts, name),
        },
        **shown,
    )


def _share(
    label: str,
    name: str,
    total: str,
    form: Callable[[float], str] = "{:,.0f}".format,
    *,
    counted: str = "",
    **shown: Unpack[Shown],
) -> Figure:
    """`340 / 600` from two properties of the facts; the first alone where the total is not known.

    Text shows `counted` instead of the first.
    """

    def text(facts: RunFacts) -> str | None:
        value, of = getattr(facts, counted or name), getattr(facts, total)
        return None if value is None else form(value) if of is None else f"{form(value)} / {form(of)}"

    def values(facts: RunFacts) -> dict[str, Any]:
        return {name: getattr(facts, name), total: getattr(facts, total)}

    return Figure(FigureGroup.TRAINING, label, text, values, **shown)


def _curve(group: FigureGroup, label: str, name: str, form: Callable[[float], str]) -> Figure:
    """The values of `name` over the steps as a line of blocks, with the first and the last value."""

    def text(facts: RunFacts) -> str | None:
        curve = facts.curve(name)
        line = sparkline(curve)
        return f"{line} {form(curve.values[0])} → {form(curve.values[-1])}" if line else None

    return Figure(group, label, text)


def _format_known(value: float | None, form: Callable[[float], str]) -> str | None:
    return None if value is None else form(value)


def _tile(
    name: str, value: float | None, form: Callable[[float], str], beside: str | None = ""
) -> Tile | None:
    return None if value is None else Tile(name, form(value), beside or "")


def _reward_tile(facts: RunFacts) -> Tile | None:
    was = _format_known(facts.first_reward, "was {:.2f}".format)
    return _tile("reward", facts.reward, "{:.2f}".format, was)


def _reward_words(facts: RunFacts, markup: Markup) -> str:
    if facts.reward is None:
        return ""
    was = _format_known(facts.first_reward, "{:.2f} → ".format) or ""
    return f"reward {markup.strong(f'{was}{facts.reward:.2f}')}"


def _loss_tile(facts: RunFacts) -> Tile | None:
    """A run that trains on rewards has no loss tile, because its loss says little."""
    was = _format_known(facts.first_loss, lambda loss: f"was {format_loss(loss)}")
    return _tile("training loss", facts.loss, format_loss, was) if facts.reward is None else None


def _loss_words(facts: RunFacts, markup: Markup) -> str:
    if facts.loss is None or facts.reward is not None:
        return ""
    first = f"{format_loss(facts.first_loss)} → " if facts.first_loss is not None else ""
    bits = _format_known(facts.bits_per_byte, ", {:.2f} bits/byte".format) or ""
    return f"loss {markup.strong(first + format_loss(facts.loss))}{bits}"


def _validation_tile(facts: RunFacts) -> Tile | None:
    bits = _format_known(facts.bits_per_byte, "{:.2f} bits/byte".format)
    return _tile("validation loss", facts.validation_loss, format_loss, bits)


def _steps_tile(facts: RunFacts) -> Tile | None:
    return _tile("steps", facts.steps_done, "{:,}".format, f"of {facts.steps:,}" if facts.steps else "")


def _steps_words(facts: RunFacts, _markup: Markup) -> str:
    if facts.steps_done is None:
        return ""
    time = f" in {format_duration(facts.training_seconds)}" if facts.training_seconds is not None else ""
    return f"{format_count(facts.steps_done, 'step')}{time}"


def _memory_text(facts: RunFacts) -> str | None:
    """`22.1 GB / 24.0 GB (92 %)`; `22.1 GB` when the total is not known."""
    used = facts.history.last.get("gpu_memory_bytes")
    total = facts.history.last.get("gpu_memory_total_bytes")
    if used is None or not total:
        return _format_known(used, format_gigabytes)
    return f"{format_gigabytes(used)} / {format_gigabytes(total)} ({format_percent(used / total)})"


def _memory_tile(facts: RunFacts) -> Tile | None:
    used = facts.history.last.get("gpu_memory_bytes")
    total = facts.history.last.get("gpu_memory_total_bytes")
    return _tile("GPU memory", used, format_gigabytes, f"of {format_gigabytes(total)}" if total else "")


def _tokens_tile(facts: RunFacts) -> Tile | None:
    tokens = facts.outcome_figure("tokens") or facts.history.last.get("tokens")
    rate = facts.history.rate("tokens_per_second")
    beside = f"median, of {format_scaled(tokens)}" if tokens else "median"
    return _tile("tokens/s", rate, format_scaled, beside)


def _mfu_words(facts: RunFacts, markup: Markup) -> str:
    """The MFU and the device; the device alone if the MFU is not known."""
    hardware = facts.section("hardware")
    device = hardware.get("device_name") or hardware.get("device")
    place = f"on {markup.escaped(str(device))}" if device else ""
    mfu = "" if facts.mfu is None else f"{format_percent(facts.mfu)} MFU"
    return f"{mfu} {place}".strip()


def _step_time_text(facts: RunFacts) -> str | None:
    parts = ", ".join(f"{name} {format_percent(share)}" for name, share in step_shares(facts))
    text = _format_known(facts.history.rate("step_seconds"), "{:.3g} s".format)
    return f"{text} ({parts})" if text and parts else text


def _step_time_tile(facts: RunFacts) -> Tile | None:
    longest = "".join(f", {format_percent(share)} {name}" for name, share in step_shares(facts)[:1])
    return _tile("step time", facts.history.rate("step_seconds"), "{:.3g} s".format, f"median{longest}")


def _duration_text(facts: RunFacts) -> str | None:
    so_far = " (so far)" if facts.state.going else ""
    return _format_known(facts.training_seconds, lambda seconds: format_duration(seconds) + so_far)


def _duration_tile(facts: RunFacts) -> Tile | None:
    left = _format_known(facts.seconds_remaining, lambda seconds: f"{format_duration(seconds)} left")
    return _tile("training time", facts.training_seconds, format_duration, left)


def _goodput_text(facts: RunFacts) -> str | None:
    """`91 % of 2:41 trained (6:12 starting, 2:05 saves)`."""
    if facts.goodput is None or facts.step is None:
        return None
    lost = [
        f"{format_duration(seconds)} {words}" for words, seconds in facts.goodput.losses if seconds >= 0.5
    ]
    share = f"{format_percent(facts.goodput.share)} of {format_duration(facts.goodput.total)} trained"
    return share + (f" ({', '.join(lost)})" if lost else "")


def _sources_text(facts: RunFacts) -> str | None:
    """Return where the steps and figures of another program come from: `steps observed, loss printed …`."""
    outcome = facts.section("outcome")
    sources = outcome.get("sources")
    if not isinstance(sources, Mapping):
        return None
    return ", ".join(f"{name}{source_in_words(outcome, name)}" for name in sources)


_TRAINING, _GPU = FigureGroup.TRAINING, FigureGroup.GPU
_PERFORMANCE, _TIMING = FigureGroup.PERFORMANCE, FigureGroup.TIMING
_training = partial(_computed, _TRAINING)
# Every figure, in the order of the text report.
FIGURES: list[Figure] = [
    _share("Current Epoch", "epoch", "epochs", lambda value: f"{value:.2f}".rstrip("0").rstrip(".")),
    _training("Reward", "reward", format_loss, "first_reward", tile=(1, _reward_tile), brief=_reward_words),
    _training("Training Loss", "loss", format_loss, "first_loss", tile=(1, _loss_tile), brief=_loss_words),
    _training("Validation Loss", "validation_loss", format_loss, json="val_loss", tile=(2, _validation_tile)),
    _training("Bits per Byte", "bits_per_byte", "{:.2f}".format),
    _logged(_TRAINING, "Learning Rate", "learning_rate", "{:.2e}".format),
    _logged(_TRAINING, "Gradient Norm", "grad_norm", "{:.3g}".format),
    _share("Total Steps", "step", "steps", counted="steps_done", tile=(3, _steps_tile), brief=_steps_words),
    Figure(
        _TRAINING,
        "Sources",
        _sources_text,
        lambda facts: {"sources": facts.section("outcome").get("sources")},
    ),
    _share("Step in Epoch", "step_in_epoch", "steps_per_epoch"),
    _curve(_TRAINING, "Reward Curve", "reward", format_loss),
    _curve(_TRAINING, "Loss Curve", "loss", format_loss),
    _curve(_TRAINING, "Validation Curve", "val_loss", format_loss),
    _curve(_TRAINING, "Learning Rate Curve", "learning_rate", "{:.2e}".format),
    Figure(_TRAINING, values=_last("tokens")),
    Figure(
        _GPU,
        "GPU Memory",
        _memory_text,
        _last("gpu_memory_bytes", "gpu_memory_total_bytes"),
        tile=(8, _memory_tile),
    ),
    _curve(_GPU, "GPU Memory Curve", "gpu_memory_bytes", format_gigabytes),
    _logged(_GPU, "GPU Memory Peak", "gpu_memory_peak_bytes", format_gigabytes),
    _rated(_GPU, "GPU Utilization", "gpu_utilization_percent", "{:.0f} %".format),
    _logged(_GPU, "Temperature", "gpu_temperature_celsius", "{:.0f} °C".format),
    _rated(_PERFORMANCE, "Throughput", "samples_per_second", "{:.1f} samples/sec".format),
    _rated(_PERFORMANCE, "Tokens/sec", "tokens_per_second", format_scaled, tile=(5, _tokens_tile)),
    _computed(
        _PERFORMANCE,
        "MFU",
        "mfu",
        format_percent,
        tile=(6, lambda facts: _tile("MFU", facts.mfu, format_percent, "of peak")),
        brief=_mfu_words,
    ),
    Figure(
        _PERFORMANCE,
        "Step Time",
        _step_time_text,
        _rates("step_seconds", *(f"{part}_seconds" for part in (*STEP_PARTS, "checkpoint"))),
        tile=(7, _step_time_tile),
    ),
    _computed(_PERFORMANCE, "Time Remaining", "seconds_remaining", format_duration),
    _computed(_PERFORMANCE, "Completion", "completion", format_percent),
    _computed(
        _TIMING, "Epoch Duration", "epoch_seconds", lambda seconds: f"{format_duration(seconds)} per epoch"
    ),
    Figure(
        _TIMING,
        "Training Duration",
        _duration_text,
        lambda facts: {"training_seconds": facts.training_seconds},
        tile=(4, _duration_tile),
    ),
    Figure(
        _TIMING,
        "Goodput",
        _goodput_text,
        lambda facts: {"goodput": facts.goodput.record() if facts.goodput and facts.step else None},
    ),
    _computed(_TIMING, "Estimated Total", "estimated_total_seconds", format_duration),
    Figure(
        _TIMING,
        brief=lambda facts, markup: "" if facts.usd is None else markup.strong(format_money(facts.usd)),
    ),
]
