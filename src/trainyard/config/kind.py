"""The kind of a run: who trains it, and who decides its steps.

`Config.kind` answers for a run on this machine, `kind_in_job` for one in pods, `kind_of_run` from `run.json`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from trainyard.config.registries import DEFAULT_RECIPE, PRESETS, RECIPES


class RunKind(Enum):
    """Who trains a run, and who decides its steps."""

    TRAINER = "trainer"
    """The trainer of this repository."""
    PLANNED = "planned"
    """In pods, a preset with `log`: the plan decides the steps and which of them the program logs."""
    PROGRAM = "program"
    """Any other program: it decides itself which steps it does and logs."""


def kind_of_recipe(recipe: str) -> RunKind:
    """Return the kind of a run of `recipe` on this machine, where every preset runs as any program does."""
    return RunKind.TRAINER if recipe in RECIPES else RunKind.PROGRAM


def kind_in_job(recipe: str) -> RunKind:
    """Return the kind of a run of `recipe` in the pods of a job."""
    is_planned = recipe in PRESETS and PRESETS[recipe].preset().log is not None
    return RunKind.PLANNED if is_planned else kind_of_recipe(recipe)


def kind_of_run(run: Mapping[str, Any]) -> RunKind:
    """Return the kind that a `run.json` records: only runs of programs have `recipe` and `program`."""
    recipe = run.get("recipe", DEFAULT_RECIPE)
    if isinstance(recipe, str) and recipe in RECIPES:
        return RunKind.TRAINER
    return RunKind.PROGRAM if isinstance(run.get("program"), Mapping) else RunKind.PLANNED
