"""Every value of a configuration with the place it came from, one aligned line each."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.config.problems import Origin

_WIDEST = 48


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key of nested plain data."""
    found: Any = values
    for name in key.split("."):
        found = found[name]
    return found


def explain(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Iterator[str]:
    """Lines of key, value and origin: `training.max_steps   600   configs/smoke.yaml:30`."""
    from trainyard.config.expectations import shown

    rows = [(key, shown(value_at(values, key)), str(origin)) for key, origin in origins.items()]
    keys = max(len(key) for key, _, _ in rows)
    widest = min(max(len(value) for _, value, _ in rows), _WIDEST)
    for key, value, origin in rows:
        yield f"{key:<{keys}}  {value:<{widest}}  {origin}"
