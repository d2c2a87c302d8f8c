"""The address of a store in a folder, `file:///folder`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from trainyard.errors import ConfigError
from trainyard.gateways import SHOWN_CHARACTERS
from trainyard.gateways.local_store.folder import LocalStore

if TYPE_CHECKING:
    from trainyard.artifacts.store.store_address import StoreOptions

_NAME_BYTES, _PATH_BYTES = 255, 3500
"""The limits of names and paths on Linux (4,095 bytes), less what is stored below the folder."""


def open_at(url: str, rest: str, options: "StoreOptions") -> LocalStore:
    """Open the store; `rest` is `url` after `file://`. Raises ConfigError for an invalid address."""
    pace = options.get("pace")
    return LocalStore(folder_at(url, rest), pace) if pace else LocalStore(folder_at(url, rest))


def require_address(url: str, rest: str) -> None:
    """Raise ConfigError when `rest` is not a path of a folder."""
    folder_at(url, rest)


def names_a_store(rest: str) -> bool:
    """Return whether `rest` is the path of a folder."""
    try:
        folder_at("", rest)
    except ConfigError:
        return False
    return True


def folder_at(url: str, rest: str) -> Path:
    """Return the folder. Raises ConfigError for an invalid path."""
    path = rest.removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigError(f"{url}: a folder's path must be absolute, with three slashes: file:///{rest}")
    encoded = unquote_to_bytes(path.encode(errors="surrogateescape"))  # names are bytes, of any encoding
    if b"\0" in encoded:
        raise ConfigError(f"{url}: %00 stands for a byte that no path can hold")
    if len(encoded) > _PATH_BYTES or any(len(name) > _NAME_BYTES for name in encoded.split(b"/")):
        raise ConfigError(
            f"{url[:SHOWN_CHARACTERS]}…: no path of a folder: a name has at most {_NAME_BYTES} bytes, "
            f"and a store's path at most {_PATH_BYTES:,}"
        )
    return Path(os.fsdecode(encoded))
