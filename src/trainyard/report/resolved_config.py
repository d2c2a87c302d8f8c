"""The `config.yaml` of a run as it lies there, for reports and messages that must come about anyway.

Nothing is validated: a file that is missing or no YAML has no values. Training does not read it here.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.outside import MOST_YAML_BYTES, read_bytes
from trainyard.run.settings import read_settings, setting


def read_config_text(path: Path) -> str | None:
    """The file as it is; None when it cannot be read."""
    try:
        return read_bytes(path, most=MOST_YAML_BYTES).decode("utf-8", errors="replace")
    except (OSError, DamagedFileError):
        return None


def config_value(text: str | None, key: str) -> Any:
    """The value at the dotted `key`; None when there is none."""
    with suppress(ConfigError):
        return setting(read_settings(text or ""), key)
    return None


def settings_of_config(content: bytes | None) -> dict[str, Any]:
    """The sections of a `config.yaml`; none when it is missing or no YAML."""
    with suppress(ConfigError):
        return read_settings(content or b"")
    return {}


def config_settings(path: Path) -> dict[str, Any]:
    """The sections of the file; none when it is missing or no YAML."""
    return settings_of_config(_content(path))


def config_digests(path: Path) -> frozenset[str]:
    """The SHA-256 that the file may be on record by, of its values or its bytes; none if it is missing."""
    from trainyard.config.load import config_sha256, load_config

    content = _content(path)
    if content is None:
        return frozenset()
    digests = {hashlib.sha256(content).hexdigest()}
    # Another trainer's configuration is known by its bytes only.
    with suppress(ConfigError):
        digests.add(config_sha256(load_config(path).config))
    return frozenset(digests) if _content(path) == content else frozenset()


def _content(path: Path) -> bytes | None:
    with suppress(OSError, DamagedFileError):
        return read_bytes(path, most=MOST_YAML_BYTES, links=False)
    return None
