"""The differences of a run's configuration from the last green run in its folder, and from the defaults.

A runner that keeps its runs has them all in one folder. Elsewhere there is no run to compare with.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainyard.config.registries import COMMAND
from trainyard.config.schema import Config
from trainyard.errors import DamagedFileError
from trainyard.report.facts.history import finite_or_none
from trainyard.report.facts.proof_record import read_proof
from trainyard.report.facts.run_facts import read_record
from trainyard.run.directory import RunDirectory
from trainyard.run.run_settings import setting, settings_of_config
from trainyard.run.situation import flat_values
from trainyard.run.untrusted_files import MOST_YAML_BYTES, read_bytes

_RUNS = 200
"""At most this many neighbours are examined, the newest first."""


@dataclass(frozen=True)
class ConfigChange:
    """One key that differs."""

    key: str
    """The dotted path of the key."""
    values: tuple[object, ...]
    """Its value in each run, the earlier one first; None where the key is absent."""


def config_changes(directory: Path) -> tuple[str, tuple[ConfigChange, ...]] | None:
    """Return the last proven run beside the one in `directory`, and the changes since; None without one."""
    neighbour = _last_green(directory)
    changes = changed_settings([neighbour, directory]) if neighbour else None
    return (neighbour.name, changes) if neighbour and changes is not None else None


def changed_settings(runs: Sequence[Path]) -> tuple[ConfigChange, ...] | None:
    """Return the settings in which the runs differ; None when one of them has no readable configuration."""
    settings = [_flat_settings(_settings(run)) for run in runs]
    if not all(settings):
        return None
    changes = (
        ConfigChange(key, tuple(one.get(key) for one in settings)) for key in sorted({*chain(*settings)})
    )
    return tuple(change for change in changes if any(value != change.values[0] for value in change.values))


def changes_from_defaults(directory: Path) -> tuple[ConfigChange, ...] | None:
    """Return the settings that are not the defaults; None when the configuration cannot be read."""
    settings = _settings(directory)
    model = settings.get("model")
    needed = {"model": {"name": model.get("name")}} if isinstance(model, Mapping) else {}
    try:
        defaults = _flat_settings(Config.model_validate(needed).model_dump(mode="json", exclude_none=True))
    except ValidationError:
        return None
    defaults.pop("model.name", None)  # it has no default: the run's own was given to the model above
    own = _flat_settings(settings).items()
    found = (ConfigChange(key, (defaults.get(key), value)) for key, value in own)
    return tuple(change for change in found if change.values[0] != change.values[1])


def _flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted keys; an empty mapping, in which nothing is set, is left out."""
    return {key: value for key, value in flat_values(settings).items() if value != {}}


def format_setting(value: object) -> str:
    """The value of a setting as JSON, of at most 200 characters; empty if it is absent."""
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)[:200]


def _last_green(directory: Path) -> Path | None:
    """The proven run of the same recipe or program that finished last before this one started."""
    own = directory.resolve()
    start = finite_or_none(read_record(RunDirectory(own).run_file).get("created"))
    found = [(end, run) for run in _neighbours(own) if (end := _proven_at(run)) is not None]
    earlier = sorted(((e, run) for e, run in found if start is None or e <= start), reverse=True)
    return next((run for _, run in earlier if _trains(run) == _trains(own)), None)


def _trains(run: Path) -> tuple[object, object]:
    """Return the recipe of a run; of another program also its name, which is that of the model."""
    settings = _settings(run)
    recipe = settings.get("recipe")
    return recipe, setting(settings, "model.name") if recipe == COMMAND else None


def _neighbours(own: Path) -> list[Path]:
    runs = []
    with suppress(OSError):
        for run in own.parent.iterdir():
            if run != own:
                with suppress(OSError):
                    runs.append((RunDirectory(run).run_file.stat().st_mtime, run))
    return [run for _, run in sorted(runs, reverse=True)[:_RUNS]]


def _proven_at(run: Path) -> float | None:
    """Return when `run` finished, if it is proven; otherwise None."""
    layout = RunDirectory(run)
    if read_record(layout.report / "proof.json").get("proven") is not True:
        return None  # its records, which may be long, are not hashed
    record = read_record(layout.run_file)
    proof, outcome = read_proof(layout, record), record.get("outcome")
    if proof is None or not proof.proven or not isinstance(outcome, Mapping):
        return None
    return finite_or_none(outcome.get("finished"))


def _settings(run: Path) -> dict[str, Any]:
    with suppress(OSError, DamagedFileError):
        return settings_of_config(
            read_bytes(RunDirectory(run).config_file, most=MOST_YAML_BYTES, links=False)
        )
    return {}
