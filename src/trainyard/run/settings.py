"""A run's `config.yaml` as plain values, for those that act on a run without training it.

Nothing is validated and no default is filled in: that is the affair of `config`, which wrote the file.
YAML 1.1, which PyYAML reads, is enough here: what `config` writes means the same in it and in YAML 1.2.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.outside import parse_yaml


def read_settings(content: str | bytes, name: str = "config.yaml") -> dict[str, Any]:
    """The sections of a `config.yaml`, called `name` in messages; none where it is no mapping.

    Raises ConfigError when it is no YAML.
    """
    try:
        values = parse_yaml(content, name)
    except DamagedFileError as error:
        raise ConfigError(str(error)) from None
    return values if isinstance(values, dict) else {}


def setting(settings: Mapping[str, Any], key: str) -> Any:
    """The value at the dotted `key`; None when there is none."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
