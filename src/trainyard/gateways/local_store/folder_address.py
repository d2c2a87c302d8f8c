"""The address of a store in a folder, `file:///folder`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from trainyard.errors import ConfigError
from trainyard.gateways.local_store.folder import LocalStore

if TYPE_CHECKING:
    from trainyard.artifacts.store.store_address import StoreOptions


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
    return Path(os.fsdecode(encoded))
