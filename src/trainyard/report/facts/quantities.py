"""Numbers for people: with units, and with only the digits that matter. Bytes are decimal (1 GB = 10⁹)."""

from collections.abc import Mapping
from typing import Any

from trainyard.run.sizes import format_size

_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def format_duration(seconds: float) -> str:
    """`4.2 s`, `1:52`, `6 h 12 m`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE}:{whole % _MINUTE:02d}"
    if whole < 2 * _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} m"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def format_age_ago(seconds: float) -> str:
    """`40 s ago`, `12 m ago`, `3 h ago`, `2 d ago`."""
    for size, unit in ((2 * _DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= size:
            return f"{int(seconds // min(size, _DAY))} {unit} ago"
    return f"{max(0, int(seconds))} s ago"


def format_scaled(value: float) -> str:
    """`41.2 k`, `19.7 M`; below a thousand without a suffix, with at most three digits."""
    for size, unit in _SCALES:
        if abs(value) >= size * 0.9995:
            return f"{_three(value / size)} {unit}"
    return _three(value)


def format_progress(done: float, total: float | None, unit: str = "B") -> str:
    """`1.2 of 4.8 GB`, `312 of 1,614 files`; without a total `1.2 GB`. `unit` names anything but bytes."""
    if unit != "B":
        return f"{done:,.0f} {unit}" if total is None else f"{done:,.0f} of {total:,.0f} {unit}"
    if total is None:
        return format_size(done)
    scale, prefix = next(((scale, prefix) for scale, prefix in _SCALES if total >= scale), (1.0, ""))
    digits = 1 if prefix else 0
    return f"{done / scale:.{digits}f} of {total / scale:.{digits}f} {prefix}B"


def format_gigabytes(count: float) -> str:
    """`22.1 GB`; also small sizes are in GB."""
    return f"{count / 1e9:.1f} GB"


def format_loss(value: float) -> str:
    """About three significant digits: `5.56`, `0.0123`, `12.30`."""
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.3g}"


def loss_or_empty(value: float | None) -> str:
    return "" if value is None else format_loss(value)


def format_percent(fraction: float) -> str:
    return f"{fraction:.0%}".replace("%", " %")


def format_money(usd: float) -> str:
    """`$ 214`, `$ 3.20`: with cents only below ten dollars."""
    return f"$ {usd:,.2f}" if usd < 10 else f"$ {usd:,.0f}"


def format_count(count: float, noun: str) -> str:
    """`1 step`, `5,000 steps`."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def format_data_files(data: Mapping[str, Any]) -> str:
    """`729 files, 3 skipped`: the files used, from the `data` section of `run.json`; empty when not known."""
    counts = {name: data.get(f"{name}_files") for name in ("train", "validation", "skipped")}
    train, held_out, skipped = (value if isinstance(value, int) else 0 for value in counts.values())
    if not train:
        return ""
    return format_count(train + held_out, "file") + (f", {skipped:,} skipped" if skipped else "")


def _three(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    digits = 0 if abs(value) >= 100 else 1
    return f"{value:.{digits}f}" if abs(value) >= 0.9995 else f"{value:.3g}"
