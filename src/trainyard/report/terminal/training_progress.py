"""The progress of a training run: one live line on a terminal, plain lines in a log.

It formats rows and events, and gives the live line to its caller; it reads no file and writes to no terminal.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainyard.report.facts.quantities import format_age_ago, format_duration, format_scaled
from trainyard.report.terminal.phase import PhaseDisplay, bar, phase_line
from trainyard.run.records import Row

_logger = logging.getLogger(__name__)
_LOG_SECONDS = 10.0
"""In a log, the least time between two steps; validations and the last step are always logged."""
_OLD_SECONDS = 2.0
"""On a terminal, figures that are older than this are shown with their age."""
_SILENT_SECONDS = 60.0
"""In a log, a step that takes longer than this gets a line, and another each time the wait has doubled."""
_WARNINGS = frozenset(("network_degraded", "step_skipped", "loss_spike"))


class ProgressDisplay(PhaseDisplay):
    """Shows one segment: its rows, its events, and the work before, between and after the steps.

    If `live`, a terminal shows the line; otherwise rows and events are logged.
    """

    def __init__(self, *, live: bool, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("training", clock=clock)
        self._live = live
        self._steps = self._first_step = 0
        self._started = self._came = clock()
        self._row: Row | None = None
        """The last row; None before the first step."""
        self._last_logged = -math.inf
        self._silent_until = math.inf
        self._tokens_per_byte: float | None = None
        self._is_over = False
        self.was_done_before = False
        """Whether all steps had been done when the run was started."""

    def on_row(self, row: Row) -> None:
        now = self._clock()
        if row.get("val_loss") and "val_bits_per_byte" in row:
            self._tokens_per_byte = row["val_bits_per_byte"] * math.log(2) / row["val_loss"]
        self._row, self._came, self._silent_until = row, now, now + _SILENT_SECONDS
        self.begin("")
        if self._live:
            return
        if "val_loss" in row or row["step"] == self._steps or now - self._last_logged >= _LOG_SECONDS:
            _logger.info("%s", log_line(row, self._steps))
            self._last_logged = now

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "working":
            self.begin(fields["what"])
            return
        if event == "started":
            self._steps, self._first_step = int(fields["steps"]), int(fields["step"])
            self._started = self._clock()
            compiling = ", compiling" if fields.get("compiles") else ""
            self.begin(f"step {self._first_step + 1}/{self._steps}{compiling}")
        self.was_done_before |= event == "finished_before"
        self._is_over |= event == "hang_suspected"  # its message is the last line
        if (line := event_line(event, fields)) is None:
            return
        if event in _WARNINGS:
            _logger.warning("%s", line)
        elif not self._live:
            _logger.log(logging.WARNING if event == "checkpoint_failed" else logging.INFO, "%s", line)

    def line(self, width: int) -> str:
        row, now = self._row, self._clock()
        if self._is_over:
            return ""
        if row is None:
            return super().line(width)
        return phase_line(self.phase, self._parts(row, now), width, now=now)

    def log_progress(self) -> None:
        now, row = self._clock(), self._row
        if row is None or self._work.what:
            super().log_progress()
        elif now >= self._silent_until:
            silent = now - self._came
            self._silent_until = now + silent
            _logger.info("training: step %s/%s, was %s", row["step"], self._steps, format_age_ago(silent))

    def _parts(self, row: Row, now: float) -> dict[str, str]:
        """The figures of the last row and its age, or the work that is done between the steps."""
        beside = self._work
        if beside.what:
            return {"step": f"step {row['step']}/{self._steps}"} | beside.parts(now)
        done, old = row["step"] - self._first_step, now - self._came
        pace = (self._came - self._started) / done if done else None
        left = "-:--" if pace is None else format_duration(pace * (self._steps - row["step"]))
        return {
            "step": f"step {row['step']}/{self._steps}",
            "since": format_age_ago(old) if old >= _OLD_SECONDS else "",
            "loss": _loss(row),
            "bits": self._bits(row["loss"]) if "loss" in row else "",
            "speed": f"{format_scaled(row['tokens_per_second'])} tok/s",
            "left": f"{left} left",
            "bar": bar(row["step"] / self._steps if self._steps else 1.0),
        }

    def _bits(self, loss: float) -> str:
        """The training loss in bits per byte; empty until a validation has given the tokens per byte."""
        per_byte = self._tokens_per_byte
        return "" if per_byte is None else f"{loss / math.log(2) * per_byte:.2f} bits/byte"


def _loss(row: Row) -> str:
    """The loss of a row; that of a skipped step may not be finite, and is then absent."""
    loss = f"loss {row['loss']:.3f}" if "loss" in row else "loss not finite"
    return f"{loss}, skipped" if row.get("skipped") else loss


def log_line(row: Row, steps: int) -> str:
    """`step 100/600 loss 2.871 val_loss 2.902 tokens/s 41,220`, and the MFU of a GPU."""
    parts = [f"step {row['step']}/{steps}", _loss(row)]
    if "val_loss" in row:
        parts.append(f"val_loss {row['val_loss']:.3f}")
    parts.append(f"tokens/s {row['tokens_per_second']:,.0f}")
    if "mfu" in row and "gpu_memory_bytes" in row:  # that of a CPU is only an estimate
        parts.append(f"mfu {row['mfu']:.2f}")
    return " ".join(parts)


# A sentence for each event that people want to see when it happens.
_SENTENCES = {
    "validated": "the given weights have a validation loss of {val_loss:.3f}",
    "finished_before": "all {step} steps were done before; nothing was trained",
    "checkpoint_saved": "checkpoint {name} saved: {megabytes:.1f} MB, blocked {milliseconds:.0f} ms",
    "checkpoint_removed": "checkpoint {name} removed (keep_last {keep_last})",
    "checkpoint_failed": "checkpoint {name} failed",
    "network_degraded": "network: {reason}",
    "step_skipped": "step {step} skipped: {reason}",
    "loss_spike": "step {step}: the loss is {loss:.3g}, it was {compared_with:.3g}",
    "network": "network: {verdict}, channels of {ranks_seen} of {world_size} ranks",
    "network_measured": "network: all-reduce at {bus_gb_per_second:.3g} GB/s before training",
}


def event_line(event: str, fields: dict[str, Any]) -> str | None:
    """The sentence for an event; None for an event without one."""
    if event == "started":
        where = f"at step {fields['step']}" if fields["step"] else "from the start"
        return f"run {fields['run_id']} trains {where} to {fields['steps']}"
    shown = {**fields, "name": f"step-{fields.get('step', 0):08d}"}
    if event == "checkpoint_saved":
        shown |= {"megabytes": fields["bytes"] / 1e6, "milliseconds": fields["seconds"] * 1e3}
    sentence = _SENTENCES.get(event)
    return sentence and sentence.format(**shown)


def summary_line(outcome: Mapping[str, Any], *, done_before: bool = False) -> str:
    """`600 steps, 19.7 M tokens in 1:52 · loss 5.56 → 1.08 · validation 1.71 bits/byte`.

    With `done_before`, it says that all steps were done before.
    """
    tokens, seconds = format_scaled(outcome["tokens"]), format_duration(outcome["seconds"])
    line = f"{outcome['steps']} steps, {tokens} tokens in {seconds}"
    if "final_loss" in outcome:
        line += f" · loss {outcome['first_loss']:.2f} → {outcome['final_loss']:.2f}"
    if "bits_per_byte" in outcome:
        line += f" · validation {outcome['bits_per_byte']:.2f} bits/byte"
    return f"nothing to do, all steps were done before: {line}" if done_before else line
