"""A training run while it goes on: one live line on a terminal, plain lines in a log.

It formats rows and events and writes them where it is told; it reads no file.
"""

import logging
import math
import shutil
import time
from collections.abc import Mapping
from typing import Any, TextIO

from trainyard.report.quantities import duration, scaled
from trainyard.run.records import Row

_logger = logging.getLogger(__name__)
_LOG_SECONDS = 10.0
"""In a log, steps are said this far apart at least; validations and the last step always."""
_REDRAW_SECONDS = 0.1
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 16
_LEFT_OUT_FIRST = ("bar", "bits", "speed", "left")


class ProgressDisplay:
    """Shows the rows and events of one segment. `live` is the terminal to draw on, None for plain lines."""

    def __init__(self, live: TextIO | None) -> None:
        self._live = live
        self._steps = 0
        self._first_step = 0
        self._started = time.monotonic()
        self._last_shown = -math.inf
        self._tokens_per_byte: float | None = None

    def on_row(self, row: Row) -> None:
        now = time.monotonic()
        if row.get("val_loss") and "val_bits_per_byte" in row:
            self._tokens_per_byte = row["val_bits_per_byte"] * math.log(2) / row["val_loss"]
        must = "val_loss" in row or row["step"] == self._steps
        if self._live is not None:
            if must or now - self._last_shown >= _REDRAW_SECONDS:
                self._draw(self._live_line(row, now))
                self._last_shown = now
        elif must or now - self._last_shown >= _LOG_SECONDS:
            _logger.info("%s", log_line(row, self._steps))
            self._last_shown = now

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "started":
            self._steps, self._first_step = int(fields["steps"]), int(fields["step"])
            self._started = time.monotonic()
        if event in ("hang_suspected", "network_degraded"):
            self.close()  # its message follows on the terminal
        if (line := event_line(event, fields)) is None:
            return
        if event == "network_degraded":
            _logger.warning("%s", line)
        elif self._live is None:
            _logger.log(logging.WARNING if event == "checkpoint_failed" else logging.INFO, "%s", line)

    def close(self) -> None:
        """Leave the terminal with the live line erased."""
        if self._live is not None:
            self._draw("")

    def _draw(self, line: str) -> None:
        assert self._live is not None
        self._live.write(f"\r\x1b[2K{line[: _width()]}")
        self._live.flush()

    def _live_line(self, row: Row, now: float) -> str:
        done = row["step"] - self._first_step
        left = duration((now - self._started) / done * (self._steps - row["step"])) if done else "-:--"
        share = row["step"] / self._steps if self._steps else 1.0
        parts = {
            "step": f"  training      step {row['step']}/{self._steps}",
            "loss": f"loss {row['loss']:.3f}",
            "reward": f"reward {row['reward']:.3f}" if "reward" in row else "",
            "bits": self._bits(row["loss"]),
            "speed": f"{scaled(row['tokens_per_second'])} tok/s",
            "left": f"{left} left",
            "bar": bar(share),
        }
        return fitted(parts, _width())

    def _bits(self, loss: float) -> str:
        """The training loss in bits a byte, once a validation has told how many tokens a byte has."""
        return (
            ""
            if self._tokens_per_byte is None
            else f"{loss / math.log(2) * self._tokens_per_byte:.2f} bits/byte"
        )


def fitted(parts: Mapping[str, str], width: int) -> str:
    """The parts in one line of `width` cells: what people can best do without is left out first."""
    kept = {name: part for name, part in parts.items() if part}
    for name in _LEFT_OUT_FIRST:
        if len(line := "  ".join(kept.values())) <= width:
            return line
        kept.pop(name, None)
    return "  ".join(kept.values())


def log_line(row: Row, steps: int) -> str:
    """`step 100/600 loss 2.871 val_loss 2.902 tokens/s 41,220`."""
    parts = [f"step {row['step']}/{steps}", f"loss {row['loss']:.3f}"]
    if "reward" in row:
        parts.append(f"reward {row['reward']:.3f}")
    if "val_loss" in row:
        parts.append(f"val_loss {row['val_loss']:.3f}")
    parts.append(f"tokens/s {row['tokens_per_second']:,.0f}")
    if "mfu" in row:
        parts.append(f"mfu {row['mfu']:.2f}")
    return " ".join(parts)


def event_line(event: str, fields: dict[str, Any]) -> str | None:
    """A sentence for the events that people want to hear of as they happen."""
    if event == "started":
        where = f"at step {fields['step']}" if fields["step"] else "from the start"
        return f"run {fields['run_id']} trains {where} to {fields['steps']}"
    if event == "finished_before":
        return f"all {fields['step']} steps were done before; nothing was trained"
    if event == "warm_started":
        losses = f"loss {fields['first_loss']:.2f} → {fields['final_loss']:.2f}"
        return f"started warm: {fields['steps']} supervised steps, {losses}"
    name = f"step-{fields.get('step', 0):08d}"
    if event == "checkpoint_saved":
        size, blocked = fields["bytes"] / 1e6, fields["seconds"] * 1e3
        return f"checkpoint {name} saved: {size:.1f} MB, blocked {blocked:.0f} ms"
    if event == "checkpoint_removed":
        return f"checkpoint {name} removed (keep_last {fields['keep_last']})"
    if event == "profiled":
        return f"profile written to logs/: {', '.join(fields['files'])}"
    if event == "checkpoint_failed":
        return f"checkpoint {name} failed"
    if event == "network_degraded":
        return f"network: {fields['reason']}"
    return None


def summary_line(outcome: Mapping[str, Any]) -> str:
    """`600 steps, 19.7 M tokens in 1:52 · loss 5.56 → 1.08 · validation 1.71 bits/byte`."""
    line = f"{outcome['steps']} steps, {scaled(outcome['tokens'])} tokens in {duration(outcome['seconds'])}"
    if "final_reward" in outcome:
        line += f" · reward {outcome['first_reward']:.2f} → {outcome['final_reward']:.2f}"
    elif "final_loss" in outcome:
        line += f" · loss {outcome['first_loss']:.2f} → {outcome['final_loss']:.2f}"
    if "bits_per_byte" in outcome:
        line += f" · validation {outcome['bits_per_byte']:.2f} bits/byte"
    return line


def bar(share: float) -> str:
    """A bar of 16 cells, drawn in eighths."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR_CELLS * 8)
    full, part = divmod(eighths, 8)
    return "▕" + (_EIGHTHS[8] * full + (_EIGHTHS[part] if part else "")).ljust(_BAR_CELLS) + "▏"


def _width() -> int:
    """Cells of a line; the last one stays free, where some terminals would wrap."""
    return shutil.get_terminal_size().columns - 1
