"""Load a configuration: files, what they extend and single values from the command line, checked together.

    file -> documents -> layers -> overrides -> (weights) -> validation -> Config and the origin of each value

All errors are found in one pass and raised as one ConfigError. This module reads neither the environment nor
weights; the caller passes in a reader of weights.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config.problems import DEFAULT, Origin, error_of
from trainyard.config.registries import (
    COMMAND,
    PROGRAMS,
    RECIPES,
)
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ConfigError

if TYPE_CHECKING:
    from trainyard.config.from_weights import ReadWeights
    from trainyard.config.schema import Config
    from trainyard.config.yaml.yaml_document import Document

__all__ = ["LoadedConfig", "Origin", "config_sha256", "dump_yaml", "load_config", "values_sha256"]

_COMMANDS = {"program": ("command", "environment", "resume"), "evaluation": ("command",)}


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and where each of its values came from."""

    config: "Config"
    """The values without their secrets, so that every record, digest and comparison can have them."""
    origins: Mapping[str, Origin]
    """Origins by dotted key, in the order of the schema; complete."""
    given: "Config"
    """The values with their secrets, to start a program with."""


def load_config(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    read_weights: "ReadWeights | None" = None,
) -> LoadedConfig:
    """Load `path` and the files it extends, then apply `overrides` (`key=value`).

    `read_weights` returns what the weights of model.path declare about keys that are left open
    (`from_weights`); without it these keys keep the values of the files or their defaults. Raises
    ConfigError that lists every problem with its file, line and key.
    """
    from trainyard.config.from_weights import (
        fill_open_keys,
        null_architecture,
        open_keys,
        refuse_null_architecture,
    )
    from trainyard.config.keys import leaf_keys
    from trainyard.config.overrides import apply_overrides
    from trainyard.config.schema_validation import validate
    from trainyard.config.yaml.layers import LayerReader

    reader = LayerReader()
    document = reader.read(path)
    if {"meaning", "command"} <= document.values.keys():
        raise ConfigError(
            f"{path}: describes a program and is not a configuration. Write a configuration with "
            f"recipe: {path.stem}, or add --set recipe={path.stem} to yours"
        )
    dropped = null_architecture(document)
    apply_overrides(document, overrides)
    _add_defaults_of_program(document)
    if null_problem := refuse_null_architecture(document, dropped):
        document.problems.append(null_problem)
    readable = read_weights if document.is_complete and not document.problems else None
    unknown = fill_open_keys(document, readable) if readable else open_keys(document)
    config, problems = validate(document, os.path.normpath(path), unknown=unknown)
    problems = [*document.problems, *problems]
    if problems or config is None:
        raise error_of(problems, [*reader.files, *overrides])
    places = {".".join(place): origin for place, origin in document.places.items()}
    origins = {key: places.get(key, DEFAULT) for key in leaf_keys()}
    return LoadedConfig(mask_config(config), origins, config)


def _add_defaults_of_program(document: "Document") -> None:
    """Add the values of another program's preset, and a model name, where the files set none."""
    values = document.values
    recipe = values.get("recipe")
    if not isinstance(recipe, str) or recipe in RECIPES or recipe not in PROGRAMS:
        return
    preset = PROGRAMS.read(recipe) if recipe != COMMAND else {}
    _put_missing(document, preset.get("defaults", {}), ())
    program, model = values.get("program", {}), values.get("model", {})
    if "log" in preset or not isinstance(program, dict) or not isinstance(model, dict):
        return
    if model.get("name") is None:
        command = program.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else [str(program.get("script"))]
        script = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if command else "")
        document.put(("model", "name"), Path(script).stem or recipe, DEFAULT)


def _put_missing(document: "Document", defaults: Mapping[str, Any], path: tuple[str, ...]) -> None:
    section: Any = document.values
    for name in path:
        section = section.get(name, {}) if isinstance(section, dict) else None
    for name, value in defaults.items() if isinstance(section, dict) else ():
        if isinstance(value, dict):
            _put_missing(document, value, (*path, name))
        elif name not in section:
            document.put((*path, name), value, DEFAULT)


def mask_config(config: "Config", known: SecretFilter | None = None) -> "Config":
    """Return `config` without its secrets; those that `known` knows are replaced in its commands."""
    values = config.to_plain()
    masked = SecretFilter().mask_values(values)
    if known is not None:
        for section, keys in _COMMANDS.items():
            masked[section] |= known.mask_values({key: masked[section][key] for key in keys})
    return config if masked == values else type(config).model_validate(masked)


def dump_yaml(config: "Config") -> str:
    """Return `config` as YAML that `load_config` reads back as an equal one."""
    from trainyard.config.yaml.scalars import dump_values

    return dump_values(config.to_plain())


def config_sha256(config: "Config") -> str:
    """Return the hex SHA-256 of all values of `config`, as JSON with sorted keys.

    It includes values that cannot change the weights, so that equal digests mean equal configurations.
    """
    return values_sha256(config.to_plain())


def computation_sha256(config: "Config") -> str:
    """Return the digest of `config` without keys that only divide a step or a save, judge a run, or end it.

    Two configurations with the same digest and the same global batch compute the same steps, up to rounding:
    they add the same numbers in another order.
    """
    values = config.to_plain()
    for key in ("batch_size", "gradient_accumulation_steps"):
        del values["training"][key]
    for key in ("replicas", "tensor_parallel", "on_fallback"):
        del values["compute"][key]
    del values["checkpointing"]["shared"], values["proof"], values["evaluation"], values["limits"]
    if values["compute"]["strategy"] == "hsdp":
        values["compute"]["strategy"] = "fsdp"
    return values_sha256(values)


def values_sha256(values: Mapping[str, Any]) -> str:
    """Return the hex SHA-256 of plain values, as JSON with sorted keys.

    Raises TypeError or ValueError for values that JSON cannot hold.
    """
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
