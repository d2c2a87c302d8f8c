"""Read the `config.yaml` of a run for reports and messages, which must be written even if it is damaged.

Nothing is validated: a file that is missing or not YAML has no values. Training reads the file elsewhere.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.run_settings import read_settings, setting, settings_of_config
from trainyard.run.untrusted_files import MOST_YAML_BYTES, read_bytes


def read_config_text(path: Path) -> str | None:
    """The unchanged text of the file; None when it cannot be read."""
    try:
        return read_bytes(path, most=MOST_YAML_BYTES).decode("utf-8", errors="replace")
    except (OSError, DamagedFileError):
        return None


def config_value(text: str | None, key: str) -> Any:
    """The value at the dotted `key`; None when there is none."""
    with suppress(ConfigError):
        return setting(read_settings(text or ""), key)
    return None


def config_settings(path: Path) -> dict[str, Any]:
    """The sections of the file; empty when it is missing or not YAML."""
    with suppress(OSError, DamagedFileError):
        return settings_of_config(read_bytes(path, most=MOST_YAML_BYTES, links=False))
    return {}
