"""Read a run's `config.yaml` as plain values, for tools that work on a run without training it.

Nothing is validated and no default is filled in; `config`, which wrote the file, did both.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainyard.config.yaml_reader import parse_yaml
from trainyard.errors import ConfigError, DamagedFileError


def read_settings(content: str | bytes, name: str = "config.yaml") -> dict[str, Any]:
    """Return the sections of a `config.yaml`, called `name` in messages; empty if it is not a mapping.

    Raises ConfigError when it is not valid YAML.
    """
    try:
        values = parse_yaml(content, name)
    except DamagedFileError as error:
        raise ConfigError(str(error)) from None
    return values if isinstance(values, dict) else {}


def settings_of_config(content: bytes | None) -> dict[str, Any]:
    """Return the sections of a `config.yaml`; empty if it is missing or not YAML."""
    with suppress(ConfigError):
        return read_settings(content or b"")
    return {}


def setting(settings: Mapping[str, Any], key: str) -> Any:
    """Return the value at the dotted `key`; None if there is none."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
