"""The `config.yaml` of a run as it lies there, for reports and messages that must come about anyway.

Nothing is validated: a file that is missing or no YAML has no values. Training does not read it here.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError
from trainyard.run.files import sha256_of_file
from trainyard.run.settings import read_settings, setting


def read_config_text(path: Path) -> str | None:
    """The file as it is; None when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def config_value(text: str | None, key: str) -> Any:
    """The value at the dotted `key`; None when there is none."""
    with suppress(ConfigError):
        return setting(read_settings(text or ""), key)
    return None


def config_settings(path: Path) -> dict[str, Any]:
    """The sections of the file; none when it is missing or no YAML."""
    with suppress(ConfigError, OSError):
        return read_settings(path.read_bytes())
    return {}


def config_digests(path: Path) -> frozenset[str]:
    """The SHA-256 that the file may be on record by, of its values or its bytes; none if it is missing."""
    from trainyard.config.load import config_sha256, load_config

    if not path.is_file():
        return frozenset()
    digests = {sha256_of_file(path)}
    # Another trainer's configuration is known by its bytes only.
    with suppress(ConfigError):
        digests.add(config_sha256(load_config(path).config))
    return frozenset(digests)
