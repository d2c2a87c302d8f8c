"""Write the files that a Ray job carries in a variable, because its pods do not have them mounted."""

import json
from collections.abc import Mapping
from pathlib import Path

from trainyard.errors import ConfigError

VARIABLE = "TRAINYARD_FILES"
"""JSON, path -> text."""


def parse_job_files(text: str) -> dict[str, str]:
    """Return the files of the variable's value. Raises ConfigError for anything else."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(f"{VARIABLE}: not a JSON object of paths and texts")
    return found


def place_files(environment: Mapping[str, str]) -> None:
    """Write the files of `environment`. Raises ConfigError when one of them cannot be written."""
    for name, text in parse_job_files(environment.get(VARIABLE, "")).items():
        path = Path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{VARIABLE}: {name} cannot be written ({error.strerror})") from None
