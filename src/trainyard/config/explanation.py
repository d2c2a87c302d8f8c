"""List every value of a configuration with its origin, for people or as data."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.config.problems import Origin, show_value

_WIDEST = 48
"""Most columns of the values; a longer value moves only the origin in its own line."""


def explanation_lines(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Iterator[str]:
    """Aligned lines of key, value and origin: `training.max_steps   600   configs/smoke.yaml:28`."""
    rows = [(key, show_value(_value_at(values, key)), str(origin)) for key, origin in origins.items()]
    widest_key = max(len(key) for key, _, _ in rows)
    widest_value = min(max(len(value) for _, value, _ in rows), _WIDEST)
    for key, value, origin in rows:
        yield f"{key:<{widest_key}}  {value:<{widest_value}}  {origin}"


def as_data(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> dict[str, dict[str, Any]]:
    """Return by dotted key the value, the file (or `--set`, or `default`) and, in files, the line."""
    return {
        key: {"value": _value_at(values, key), "file": origin.file}
        | ({} if origin.line is None else {"line": origin.line})
        for key, origin in origins.items()
    }


def _value_at(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for name in key.split("."):
        found = found[name]
    return found
