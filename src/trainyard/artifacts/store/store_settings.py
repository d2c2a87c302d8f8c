"""Choose the store of a run: from the command line, else from the run's own configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard.artifacts.store.store_address import StoreOptions, open_store
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.directory import RunDirectory
from trainyard.run.run_settings import read_settings, setting
from trainyard.run.untrusted_files import read_bytes

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store


class StoreSettings(NamedTuple):
    """The settings for opening a store."""

    url: str
    encryption: str


def open_store_of(
    run_dir: Path | None, url: str | None, options: StoreOptions, pace: Callable[[int], None]
) -> "Store":
    """Open the store at `url`, or else that of the run's configuration, whose encryption is the default."""
    url, encryption = store_settings(run_dir, url=url, encryption=options.get("encryption"))
    chosen: StoreOptions = {**options, "encryption": encryption, "pace": pace}
    return open_store(url, **chosen)


def store_settings(run_dir: Path | None, *, url: str | None, encryption: str | None) -> StoreSettings:
    """Complete the settings from the run's `config.yaml`. Raises ConfigError when no store is named."""
    settings = _settings(run_dir) if run_dir is not None else {}
    chosen = url or setting(settings, "artifacts.store")
    if not chosen:
        raise ConfigError("No store: give --store, or set artifacts.store in the configuration.")
    return StoreSettings(chosen, encryption or setting(settings, "artifacts.encryption") or "AES256")


def _settings(run_dir: Path) -> dict[str, Any]:
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: the run directory does not exist")
    path = RunDirectory(run_dir).config_file
    try:
        return read_settings(read_bytes(path), str(path))
    except FileNotFoundError:
        return {}
    except DamagedFileError as error:
        raise ConfigError(str(error)) from None
