"""Whose program trains: the trainer of this repository, or any other program."""

from collections.abc import Mapping
from typing import Any

from trainyard.config.registries import DEFAULT_RECIPE, RECIPES


def is_program_run(run: Mapping[str, Any]) -> bool:
    """Return whether a `run.json` is that of another program, which decides itself what it does and logs."""
    recipe = run.get("recipe", DEFAULT_RECIPE)
    return not isinstance(recipe, str) or recipe not in RECIPES
