"""The figures of a run, as every report shows them: text, JSON, HTML, Markdown and Slack.

`figure_values` has every value once; the other functions write some of them for people. Empty and unknown
values are left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

Form = Callable[[float], str]
Line = tuple[str, str | None]


def figure_values(facts: RunFacts) -> dict[str, dict[str, Any]]:
    """Return the figures by group and name, as the JSON report has them: base units, None where not known."""
    last, rate = facts.history.last.get, facts.history.rate
    step, steps, done, per_epoch = facts.step, facts.steps, facts.steps_done, facts.steps_per_epoch
    spent, left, pace = facts.training_seconds, facts.seconds_remaining, facts.history.seconds_per_step()
    return {
        "training_metrics": {
            "epoch": facts.epoch,
            "epochs": facts.epochs,
            "reward": facts.reward,
            "first_reward": facts.first_reward,
            "loss": facts.loss,
            "first_loss": facts.first_loss,
            "val_loss": facts.validation_loss,
            "bits_per_byte": facts.bits_per_byte,
            "learning_rate": last("learning_rate"),
            "grad_norm": last("grad_norm"),
            "step": step,
            "steps": steps,
            "sources": facts.outcome.get("sources"),
            "step_in_epoch": (step - 1) % per_epoch + 1 if step and per_epoch else None,
            "steps_per_epoch": per_epoch,
            "tokens": last("tokens"),
        },
        "gpu_resource_usage": {
            "gpu_memory_bytes": last("gpu_memory_bytes"),
            "gpu_memory_total_bytes": last("gpu_memory_total_bytes"),
            "gpu_memory_peak_bytes": last("gpu_memory_peak_bytes"),
            "gpu_utilization_percent": rate("gpu_utilization_percent"),
            "gpu_temperature_celsius": last("gpu_temperature_celsius"),
        },
        "performance_metrics": {
            "samples_per_second": rate("samples_per_second"),
            "tokens_per_second": rate("tokens_per_second"),
            "mfu": facts.mfu,
            "step_seconds": rate("step_seconds"),
            **{f"{part}_seconds": rate(f"{part}_seconds") for part in STEP_PARTS},
            "seconds_remaining": left,
            "completion": min(1.0, done / steps) if steps and done is not None else None,
        },
        "timing": {
            "epoch_seconds": pace * per_epoch if pace is not None and per_epoch else None,
            "training_seconds": spent,
            "goodput": facts.goodput.record() if facts.goodput and step else None,
            "estimated_total_seconds": spent + left if spent is not None and left is not None else None,
        },
    }


def text_figures(facts: RunFacts) -> dict[str, list[Line]]:
    """Return the figures of the text report by heading: label and text, None where not known."""
    training, gpu, performance, timing = figure_values(facts).values()
    epoch = _format_known(timing["epoch_seconds"], format_duration)
    spent = _format_known(facts.training_seconds, format_duration)
    return {
        "TRAINING METRICS": [
            ("Current Epoch", _share(facts.epoch, facts.epochs, _format_epoch)),
            ("Reward", _format_known(facts.reward, format_loss)),
            ("Training Loss", _format_known(facts.loss, format_loss)),
            ("Validation Loss", _format_known(facts.validation_loss, format_loss)),
            ("Bits per Byte", _format_known(facts.bits_per_byte, "{:.2f}".format)),
            ("Learning Rate", _format_known(training["learning_rate"], "{:.2e}".format)),
            ("Gradient Norm", _format_known(training["grad_norm"], "{:.3g}".format)),
            ("Total Steps", _share(facts.steps_done, facts.steps, "{:,.0f}".format)),
            ("Sources", _sources_text(facts.outcome)),
            ("Step in Epoch", _share(training["step_in_epoch"], facts.steps_per_epoch, "{:,.0f}".format)),
            ("Reward Curve", _curve_text(facts, "reward", format_loss)),
            ("Loss Curve", _curve_text(facts, "loss", format_loss)),
            ("Validation Curve", _curve_text(facts, "val_loss", format_loss)),
            ("Learning Rate Curve", _curve_text(facts, "learning_rate", "{:.2e}".format)),
        ],
        "GPU RESOURCE USAGE": [
            ("GPU Memory", _memory_text(gpu["gpu_memory_bytes"], gpu["gpu_memory_total_bytes"])),
            ("GPU Memory Curve", _curve_text(facts, "gpu_memory_bytes", format_gigabytes)),
            ("GPU Memory Peak", _format_known(gpu["gpu_memory_peak_bytes"], format_gigabytes)),
            ("GPU Utilization", _format_known(gpu["gpu_utilization_percent"], "{:.0f} %".format)),
            ("Temperature", _format_known(gpu["gpu_temperature_celsius"], "{:.0f} °C".format)),
        ],
        "PERFORMANCE METRICS (medians of the last tenth)": [
            ("Throughput", _format_known(performance["samples_per_second"], "{:.1f} samples/sec".format)),
            ("Tokens/sec", _format_known(performance["tokens_per_second"], format_scaled)),
            ("MFU", _format_known(facts.mfu, format_percent)),
            ("Step Time", _step_time_text(facts)),
            ("Time Remaining", _format_known(facts.seconds_remaining, format_duration)),
            ("Completion", _format_known(performance["completion"], format_percent)),
        ],
        "TIMING": [
            ("Epoch Duration", epoch and f"{epoch} per epoch"),
            ("Training Duration", spent and spent + " (so far)" * facts.state.going),
            ("Goodput", _goodput_text(facts) if timing["goodput"] else None),
            ("Estimated Total", _format_known(timing["estimated_total_seconds"], format_duration)),
        ],
    }


@dataclass(frozen=True)
class Tile:
    """A figure at the top of the HTML report."""

    name: str
    value: str
    comparison: str = ""


def figure_tiles(facts: RunFacts) -> list[Tile]:
    """Return the tiles of the HTML report, in their order; unknown figures have none."""
    last, rate = facts.history.last.get, facts.history.rate
    loss = facts.loss if facts.reward is None else None  # the loss of a run with rewards says little
    tokens = facts.outcome_figure("tokens") or last("tokens")
    memory = last("gpu_memory_total_bytes")
    first, left = facts.first_loss, facts.seconds_remaining
    was = "" if first is None else f"was {format_loss(first)}"
    remains = "" if left is None else f"{format_duration(left)} left"
    of_memory = f"of {format_gigabytes(memory)}" if memory else ""
    whole = f"median, of {format_scaled(tokens)}" if tokens else "median"
    longest = "".join(f", {format_percent(share)} {name}" for name, share in step_shares(facts)[:1])
    tiles: tuple[tuple[str, float | None, Form, str | None], ...] = (
        ("reward", facts.reward, "{:.2f}".format, _format_known(facts.first_reward, "was {:.2f}".format)),
        ("training loss", loss, format_loss, was),
        ("validation loss", facts.validation_loss, format_loss, _bits_text(facts)),
        ("steps", facts.steps_done, "{:,}".format, _format_known(facts.steps, "of {:,}".format)),
        ("training time", facts.training_seconds, format_duration, remains),
        ("tokens/s", rate("tokens_per_second"), format_scaled, whole),
        ("MFU", facts.mfu, format_percent, "median, of peak"),
        ("step time", rate("step_seconds"), "{:.3g} s".format, f"median{longest}"),
        ("GPU memory", last("gpu_memory_bytes"), format_gigabytes, of_memory),
    )
    return [Tile(name, form(value), beside or "") for name, value, form, beside in tiles if value is not None]


def brief_figures(
    facts: RunFacts, *, strong: Callable[[str], str] = str, escaped: Callable[[str], str] = str
) -> list[str]:
    """`loss 5.56 → 1.08, 1.71 bits/byte`, `600 steps in 1:52`, `58 % MFU on NVIDIA H100`, where known.

    A run that trains on rewards has `reward 0.53 → 0.91` instead of losses. `strong` marks up losses, rewards
    and costs, `escaped` is applied to text that comes from the run.
    """
    found = list[str]()
    if facts.reward is not None:
        was = _format_known(facts.first_reward, "{:.2f} → ".format) or ""
        found.append(f"reward {strong(f'{was}{facts.reward:.2f}')}")
    elif facts.loss is not None:
        was = _format_known(facts.first_loss, lambda loss: f"{format_loss(loss)} → ") or ""
        bits = f", {bits}" if (bits := _bits_text(facts)) else ""
        found.append(f"loss {strong(was + format_loss(facts.loss))}{bits}")
    if facts.steps_done is not None:
        time = _format_known(facts.training_seconds, lambda seconds: f" in {format_duration(seconds)}") or ""
        found.append(f"{format_count(facts.steps_done, 'step')}{time}")
    device = facts.machine.get("device_name") or facts.machine.get("device")
    mfu = _format_known(facts.mfu, lambda share: f"{format_percent(share)} MFU ") or ""
    found.append(f"{mfu}{f'on {escaped(str(device))}' if device else ''}".strip())
    found.append("" if facts.usd is None else strong(format_money(facts.usd)))
    return [words for words in found if words]


def step_shares(facts: RunFacts) -> list[tuple[str, float]]:
    """The share of each part in the time of a step, largest first; empty when not known."""
    known = {name: facts.history.rate(f"{name}_seconds") for name in STEP_PARTS if name != "checkpoint"}
    spent = {name: value for name, value in known.items() if value is not None}
    total = sum(spent.values())
    shares = [(name, value / total) for name, value in spent.items()] if total > 0 else []
    return sorted(shares, key=lambda share: -share[1])


def _format_known(value: float | None, form: Form) -> str | None:
    return None if value is None else form(value)


def _share(value: float | None, of: float | None, form: Form) -> str | None:
    """`340 / 600`; the first alone where the total is not known."""
    return None if value is None else form(value) if of is None else f"{form(value)} / {form(of)}"


def _curve_text(facts: RunFacts, name: str, form: Form) -> str | None:
    """The values over the steps as a line of blocks, with the first and the last value."""
    curve = facts.curve(name)
    line = sparkline(curve)
    return f"{line} {form(curve.values[0])} → {form(curve.values[-1])}" if line else None


def _bits_text(facts: RunFacts) -> str | None:
    return _format_known(facts.bits_per_byte, "{:.2f} bits/byte".format)


def _memory_text(used: float | None, total: float | None) -> str | None:
    """`22.1 GB / 24.0 GB (92 %)`; `22.1 GB` when the total is not known."""
    if used is None or not total:
        return _format_known(used, format_gigabytes)
    return f"{format_gigabytes(used)} / {format_gigabytes(total)} ({format_percent(used / total)})"


def _step_time_text(facts: RunFacts) -> str | None:
    parts = ", ".join(f"{name} {format_percent(share)}" for name, share in step_shares(facts))
    text = _format_known(facts.history.rate("step_seconds"), "{:.3g} s".format)
    return f"{text} ({parts})" if text and parts else text


def _goodput_text(facts: RunFacts) -> str | None:
    """`91 % of 2:41 trained (6:12 starting, 2:05 saves)`."""
    if (goodput := facts.goodput) is None:
        return None
    lost = [f"{format_duration(seconds)} {words}" for words, seconds in goodput.losses if seconds >= 0.5]
    share = f"{format_percent(goodput.share)} of {format_duration(goodput.total)} trained"
    return share + (f" ({', '.join(lost)})" if lost else "")


def _format_epoch(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _sources_text(outcome: Mapping[str, Any]) -> str | None:
    """Return where the steps and figures of another program come from: `steps observed, loss printed …`."""
    sources = outcome.get("sources")
    if not isinstance(sources, Mapping):
        return None
    return ", ".join(f"{name}{source_in_words(outcome, name)}" for name in sources)
