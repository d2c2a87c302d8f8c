"""The configuration as JSON Schema: for editors, the reference and the words of error messages.

Overlays are partial, so the schema requires nothing; missing keys are found when a configuration is loaded.
"""

from functools import cache
from typing import Any

from trainyard.config.keys import leaf_keys
from trainyard.config.schema import Config

Fragment = dict[str, Any]
_EXTENDS: Fragment = {
    "description": "A configuration file, or a list of them, that this one is laid over; paths "
    "are relative to this file, and later ones win.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "null"},
    ],
}


def configuration_schema() -> Fragment:
    """The schema that is published beside the configuration files."""
    plain = _simplify(Config.model_json_schema())
    _allow_null(plain["$defs"]["ModelConfig"]["properties"], "architecture")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Trainyard configuration",
        "description": "A training configuration, or an overlay of one.",
        "type": "object",
        "additionalProperties": False,
        "properties": {"extends": _EXTENDS, **plain["properties"]},
        "$defs": plain["$defs"],
    }


def _allow_null(properties: dict[str, Fragment], name: str) -> None:
    """Allow null for a section that the weights may fill completely (`from_weights`)."""
    section = properties[name]
    kept = {key: section.pop(key) for key in list(section) if key not in ("description", "default")}
    section["anyOf"] = [kept, {"type": "null"}]


@cache
def _whole_schema() -> Fragment:
    return Config.model_json_schema()


def fragment_of(key: str) -> Fragment:
    """The schema of the value or section under a dotted key; empty if there is none."""
    root = _whole_schema()
    fragment: Fragment = root
    for name in key.split("."):
        if "properties" in fragment:
            fragment = fragment["properties"].get(name, {})
        else:  # an item of a list, or a value of a mapping
            choices = fragment.get("anyOf", [fragment])
            below = (choice.get("items") or choice.get("additionalProperties") for choice in choices)
            fragment = next((each for each in below if isinstance(each, dict)), {})
        if "$ref" in fragment:
            described = {"description": fragment["description"]} if "description" in fragment else {}
            fragment = {**root["$defs"][fragment["$ref"].rpartition("/")[2]], **described}
    return fragment


def types_of(key: str) -> set[str]:
    """Return the types of JSON that the value under a dotted key can have."""
    fragment = fragment_of(key)
    return {str(choice.get("type")) for choice in fragment.get("anyOf", [fragment])}


def value_fragments() -> dict[str, Fragment]:
    """The schema of every single value by its dotted key."""
    return {key: fragment_of(key) for key in leaf_keys()}


def _simplify(schema: Fragment) -> Fragment:
    """Return `schema` without the titles that repeat the keys, and with nothing required."""
    result = {name: value for name, value in schema.items() if name not in ("title", "required")}
    for group in ("properties", "$defs"):
        if group in result:
            result[group] = {name: _simplify(value) for name, value in result[group].items()}
    return result
