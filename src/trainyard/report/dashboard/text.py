"""The report for a terminal and a log: one figure per line under plain headings (source document 004).

An unknown figure has no line, and a section without lines has no heading.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from trainyard.report.facts.curve import sparkline
from trainyard.report.facts.history import number
from trainyard.report.facts.quantities import gigabytes, hours, loss, size
from trainyard.report.facts.run_facts import RunFacts

Line = tuple[str, str | None]
STEP_PARTS = ("data", "forward", "backward", "optimizer")
"""The parts of a step, in their order; the metrics have `<part>_seconds` for each."""


def text_report(facts: RunFacts) -> str:
    """The whole report, ending in a newline."""
    sections = (
        ("TRAINING PROGRESS REPORT", _identity(facts)),
        ("TRAINING METRICS", _metrics(facts)),
        ("GPU RESOURCE USAGE", _gpu(facts)),
        ("PERFORMANCE METRICS", _performance(facts)),
        ("TIMING", _timing(facts)),
        ("CHECKPOINTS", _checkpoints(facts)),
        (_proof_heading(facts), _proof(facts)),
    )
    blocks = (_block(heading, lines) for heading, lines in sections)
    return "\n\n".join(block for block in blocks if block) + "\n"


def utc(moment: float) -> str:
    """Unix seconds as `2025-01-09T14:23:45Z`; a number that no calendar has is shown as it is."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{moment:.6g} s"


def _block(heading: str, lines: Iterable[Line]) -> str:
    known = [f"  {label}: {value}" for label, value in lines if value is not None]
    return "\n".join([heading, *known]) if known else ""


def _identity(facts: RunFacts) -> Iterable[Line]:
    yield "Status", str(facts.state)
    yield "Timestamp", None if facts.timestamp is None else utc(facts.timestamp)
    yield "Run", facts.name
    yield "Run Number", None if facts.run_number is None else str(facts.run_number)
    yield "Git SHA", None if facts.commit is None else facts.commit + (" (dirty)" if facts.dirty else "")


def _metrics(facts: RunFacts) -> Iterable[Line]:
    last = facts.history.last
    yield "Current Epoch", _of(last.get("epoch"), facts.epochs)
    yield "Reward", _with(facts.reward, ".4f")
    yield "Training Loss", _with(facts.loss, ".4f")
    yield "Validation Loss", _with(facts.validation_loss, ".4f")
    yield "Bits per Byte", _with(facts.bits_per_byte, ".2f")
    yield "Learning Rate", _with(last.get("learning_rate"), ".2e")
    yield "Gradient Norm", _with(last.get("grad_norm"), ".3g")
    yield "Total Steps", _of(facts.step, facts.steps)
    yield "Step in Epoch", _of(step_in_epoch(facts), facts.steps_per_epoch)
    line = sparkline(facts.history.curves["loss"])
    if line and facts.first_loss is not None and facts.loss is not None:
        yield "Loss Curve", f"{line} {loss(facts.first_loss)} → {loss(facts.loss)}"


def step_in_epoch(facts: RunFacts) -> int | None:
    """The position within the current pass over the data, counted from 1."""
    if not facts.step or facts.steps_per_epoch is None:
        return None
    return (facts.step - 1) % facts.steps_per_epoch + 1


def _gpu(facts: RunFacts) -> Iterable[Line]:
    last = facts.history.last
    yield "GPU Memory", memory(facts)
    yield "GPU Memory Peak", None if (peak := last.get("gpu_memory_peak_bytes")) is None else gigabytes(peak)
    yield "GPU Utilization", _with(last.get("gpu_utilization_percent"), ".0f", "%")
    yield "Temperature", _with(last.get("gpu_temperature_celsius"), ".0f", "°C")


def memory(facts: RunFacts) -> str | None:
    """`22.1 GB / 24.0 GB (92%)`; `22.1 GB` when the total is not known."""
    used = facts.history.last.get("gpu_memory_bytes")
    total = facts.history.last.get("gpu_memory_total_bytes")
    if used is None or not total:
        return None if used is None else gigabytes(used)
    return f"{gigabytes(used)} / {gigabytes(total)} ({used / total:.0%})"


def _performance(facts: RunFacts) -> Iterable[Line]:
    last = facts.history.last
    yield "Throughput", _with(last.get("samples_per_second"), ".1f", " samples/sec")
    yield "Tokens/sec", _with(last.get("tokens_per_second"), ".0f")
    yield "MFU", _with(facts.mfu, ".0%")
    yield "Step Time", _step_time(facts)
    yield "Time Remaining", _hours(facts.seconds_remaining)
    yield "Completion", _with(facts.completion, ".0%")


def _step_time(facts: RunFacts) -> str | None:
    seconds = facts.history.last.get("step_seconds")
    if seconds is None:
        return None
    parts = [f"{name} {share:.0%}" for name, share in step_shares(facts)]
    return f"{seconds:.3g} s" + (f" ({', '.join(parts)})" if parts else "")


def step_shares(facts: RunFacts) -> list[tuple[str, float]]:
    """The share of each part in the time of the last logged step, largest first; empty when not known."""
    known = {name: facts.history.last.get(f"{name}_seconds") for name in STEP_PARTS}
    spent = {name: value for name, value in known.items() if value is not None}
    total = sum(spent.values())
    shares = [(name, value / total) for name, value in spent.items()] if total > 0 else []
    return sorted(shares, key=lambda share: -share[1])


def _timing(facts: RunFacts) -> Iterable[Line]:
    spent, left = facts.training_seconds, facts.seconds_remaining
    epoch = epoch_seconds(facts)
    yield "Epoch Duration", None if epoch is None else f"{hours(epoch)}/epoch"
    so_far = " (so far)" if facts.state.going else ""
    yield "Training Duration", None if spent is None else hours(spent) + so_far
    yield "Estimated Total", None if spent is None or left is None else hours(spent + left)


def epoch_seconds(facts: RunFacts) -> float | None:
    """Time per pass over the data at the present pace."""
    pace = facts.history.seconds_per_step()
    return None if pace is None or facts.steps_per_epoch is None else pace * facts.steps_per_epoch


def _checkpoints(facts: RunFacts) -> Iterable[Line]:
    if facts.checkpoints:
        last = facts.checkpoints[-1]
        yield "Last Checkpoint", f"step {last.step}, {size(last.size)}, {last.path}"


def _proof_heading(facts: RunFacts) -> str:
    if facts.proof is None or facts.proof.proven:
        return "PROVEN"
    return f"NOT PROVEN: {', '.join(part.name for part in facts.proof.failing) or 'the record is incomplete'}"


def _proof(facts: RunFacts) -> Iterable[Line]:
    for part in facts.proof.parts if facts.proof else ():
        yield part.name.capitalize(), part.evidence
        yield "  Next", None if part.holds else part.next_step


def _of(value: float | None, total: int | None) -> str | None:
    if value is None:
        return None
    return f"{value:.0f}" if total is None else f"{value:.0f} / {total}"


def _with(value: float | None, form: str, unit: str = "") -> str | None:
    return None if number(value) is None else f"{value:{form}}{unit}"


def _hours(seconds: float | None) -> str | None:
    return None if seconds is None else hours(seconds)
