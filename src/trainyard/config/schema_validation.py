"""Validate plain values against the schema: a Config, or every problem with its place."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from trainyard.config.combinations import impossible_combinations
from trainyard.config.expectations import describe_actual, describe_expected
from trainyard.config.json_schema import fragment_of
from trainyard.config.keys import section_below, unknown_key
from trainyard.config.problems import DEFAULT, SET, Origin, Problem
from trainyard.config.schema import Config
from trainyard.config.section import Section
from trainyard.config.yaml.yaml_document import Document, KeyPath


def validate(
    document: Document, file: str, *, unknown: frozenset[str] = frozenset()
) -> tuple[Config | None, list[Problem]]:
    """Validate `document`; missing keys are reported at `file`.

    Combinations with `unknown` keys are skipped, because the weights decide these keys.
    """
    values = _with_all_sections(document.values, Config)
    try:
        config: Config | None = Config.model_validate(values)
        problems, wrong = [], set[KeyPath]()
    except ValidationError as error:
        details = error.errors(include_url=False)
        wrong = {tuple(str(part) for part in detail["loc"]) for detail in details}
        problems = [_problem(detail, document, file) for detail in details if _counts(detail, document)]
        config = _replace_wrong_values(values, wrong)
    if config and document.is_complete:
        doubtful = wrong | {tuple(key.split(".")) for key in unknown}
        problems += _combination_problems(config, document, doubtful, file)
    return (None if wrong else config), problems


def find_value_origin(document: Document, path: KeyPath, otherwise: Origin) -> Origin:
    """Return where the value of `path`, or the nearest section around it, was written."""
    for length in range(len(path), 0, -1):
        if origin := document.places.get(path[:length]):
            return origin
    return otherwise


def _with_all_sections(values: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    """Return `values` with an empty mapping for each absent section, so that one validator covers all."""
    result = dict(values)
    for name in section.model_fields:
        below = section_below(section, name)
        if below and isinstance(result.get(name, {}), dict):
            result[name] = _with_all_sections(result.get(name, {}), below)
    return result


def _counts(detail: Any, document: Document) -> bool:
    """Return whether a problem counts; a missing key may be in a file that could not be read."""
    return document.is_complete or detail["type"] != "missing"


def _problem(detail: Any, document: Document, file: str) -> Problem:
    path = tuple(str(part) for part in detail["loc"])
    key, origin = ".".join(path), find_value_origin(document, path, Origin(file))
    fragment = fragment_of(key)
    if detail["type"] == "extra_forbidden":
        message = unknown_key(path)
    elif detail["type"] == "missing":
        message = f"missing; expected {describe_expected(fragment)}"
    else:
        message = f"expected {describe_expected(fragment)}, got {describe_actual(detail['input'], fragment)}"
    return Problem(origin, key, message)


def _replace_wrong_values(values: dict[str, Any], wrong: set[KeyPath]) -> Config | None:
    """Return the configuration with defaults instead of wrong values, to check combinations."""
    repaired = _prune(values, wrong, ())
    repaired.setdefault("model", {}).setdefault("name", "unnamed")
    try:
        return Config.model_validate(_with_all_sections(repaired, Config))
    except ValidationError:
        return None


def _prune(values: Mapping[str, Any], wrong: set[KeyPath], path: KeyPath) -> dict[str, Any]:
    return {
        name: _prune(value, wrong, (*path, name)) if isinstance(value, dict) else value
        for name, value in values.items()
        if (*path, name) not in wrong
    }


def _combination_problems(
    config: Config, document: Document, wrong: set[KeyPath], file: str
) -> Iterator[Problem]:
    """Yield impossible combinations, except those with a default that replaced a wrong value."""
    for impossible in impossible_combinations(config):
        paths = [tuple(key.split(".")) for key in impossible.keys]
        if any(path[:length] in wrong for path in paths for length in range(1, len(path) + 1)):
            continue
        origins = [find_value_origin(document, path, DEFAULT) for path in paths]
        blamed = next((origin for origin in origins if origin.file == SET), origins[0])
        yield Problem(Origin(file) if blamed == DEFAULT else blamed, impossible.keys[0], impossible.reason)
