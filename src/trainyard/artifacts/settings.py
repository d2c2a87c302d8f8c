"""Which store a run goes to: what the command line says, else what the run's own configuration says."""

from pathlib import Path
from typing import NamedTuple

from trainyard.errors import ConfigError
from trainyard.run.directory import RunDirectory


class StoreSettings(NamedTuple):
    """What a store is opened with."""

    url: str
    encryption: str


def store_settings(run_dir: Path | None, *, url: str | None, encryption: str | None) -> StoreSettings:
    """Fill in what was not given from the run's `config.yaml`. Raises ConfigError when no store is named."""
    section = _artifacts_section(run_dir) if run_dir is not None else {}
    chosen = url or section.get("store")
    if not chosen:
        raise ConfigError("No store: give --store, or set artifacts.store in the configuration.")
    return StoreSettings(chosen, encryption or section.get("encryption") or "AES256")


def _artifacts_section(run_dir: Path) -> dict[str, str]:
    import yaml

    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: there is no such run directory")
    path = RunDirectory(run_dir).config_file
    try:
        value = yaml.safe_load(path.read_bytes()) if path.is_file() else {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not readable as YAML ({error})") from None
    section = value.get("artifacts") if isinstance(value, dict) else None
    return section if isinstance(section, dict) else {}
