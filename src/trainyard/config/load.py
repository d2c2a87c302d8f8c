"""Load a configuration: files, what they extend and single values from the command line, checked together.

    file -> layers -> overrides -> (weights) -> validation -> Config and the origin of each value

A file that cannot be read is one ConfigError; else all wrong values are; else all impossible combinations.
This module reads neither the environment nor weights; the caller passes in a reader of weights. A later base
wins over an earlier one, and a file wins over its bases: mappings merge; everything else is replaced, also by
null.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainyard.config.combinations import impossible_combinations
from trainyard.config.from_weights import (
    ReadWeights,
    fill_open_keys,
    null_architecture,
    open_keys,
    require_weights,
)
from trainyard.config.key_lookup import leaf_keys, section_at, takes_collection, unknown_key
from trainyard.config.problems import DEFAULT, SET, Document, Origin, describe_error, merge, shorten
from trainyard.config.registries import COMMAND, PRESETS
from trainyard.config.schema import Config
from trainyard.config.secret_filter import SecretFilter
from trainyard.config.yaml_reader import (
    MOST_BYTES,
    KeyPath,
    YamlError,
    compose_one,
    dump_values,
    plain_value,
    values_of,
)

__all__ = ["LoadedConfig", "Origin", "config_sha256", "dump_yaml", "load_config", "values_sha256"]
_COMMANDS = {"program": ("command", "environment", "resume"), "evaluation": ("command",)}


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and where each of its values came from."""

    config: Config
    """The values without their secrets, so that every record, digest and comparison can have them."""
    origins: Mapping[str, Origin]
    """Origins by dotted key, in the order of the schema; complete."""
    given: Config
    """The values with their secrets, to start a program with."""


def load_config(
    path: Path, overrides: Sequence[str] = (), *, read_weights: ReadWeights | None = None
) -> LoadedConfig:
    """Load `path` and the files it extends, then apply `overrides` (`key=value`; the last one wins).

    `read_weights` returns what the weights of model.path declare about keys that are left open
    (`from_weights`); without it these keys keep the values of the files or their defaults. Raises
    ConfigError that lists every problem with its file, line and key.
    """
    document, file = Document(), Origin(os.path.normpath(path))
    _read(path, document, file)
    null = null_architecture(document)
    for argument in overrides:
        _apply(document, argument)
    _add_defaults_of_program(document)
    require_weights(document, null)
    if read_weights and not document.problems:
        unknown = fill_open_keys(document, read_weights)
    else:
        unknown = open_keys(document)
    if not (config := _validate(document, file, unknown)) or document.problems:
        raise document.error()
    places = {".".join(place): origin for place, origin in document.places.items()}
    origins = {key: places.get(key, DEFAULT) for key in leaf_keys()}
    return LoadedConfig(mask_config(config), origins, config)


def _read(path: Path, document: Document, named_at: Origin, chain: tuple[str, ...] = ()) -> None:
    """Put the values of `path` over those of its bases into `document`, with their places."""
    shown, lines = os.path.normpath(path), dict[KeyPath, int]()
    key, name = ("extends", f"{shorten(shown)}: ") if chain else ("", "")
    try:
        if os.path.realpath(shown) in map(os.path.realpath, chain):
            raise document.error(named_at, key, f"{name}a cycle: {' → '.join([*chain, shown])}")
        with Path(shown).open("rb") as file:
            own = values_of(compose_one(file.read(MOST_BYTES + 1)), lines)
    except FileNotFoundError:
        near = _nearest_file(Path(shown))
        near = f"; did you mean {near}?" if near else ""
        raise document.error(named_at, key, f"{name}no such file{near}") from None
    except YamlError as error:
        raise document.error(Origin(shown, error.line), error.key, str(error)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise document.error(named_at, key, f"{name}cannot be read ({reason})") from None
    if not isinstance(own, dict):
        what = "empty" if own is None else "not a mapping"
        raise document.error(Origin(shown), "", f"{what}; a configuration is a mapping of sections")
    extends, named = Origin(shown, lines.get(("extends",))), own.pop("extends", None)
    bases = named if isinstance(named, list) else [] if named is None else [named]
    if any(not isinstance(base, str) for base in bases):
        raise document.error(extends, "extends", "expected the path of a file, or a list of paths")
    for base in bases:
        _read(Path(shown).parent / base, document, extends, (*chain, shown))
    merge(document.values, own)
    document.places |= {place: Origin(shown, line) for place, line in lines.items()}
    document.files.append(shown)


def _nearest_file(path: Path) -> str:
    """Return the YAML file near `path` whose name is the same or most similar; empty without one."""
    folder = path.parent if path.parent.is_dir() else path.parent.parent
    nearest_last = ("*/*.yaml", "configs/models/*.yaml", "models/*.yaml", "configs/*.yaml", "*.yaml")
    files = {each.stem: str(each) for pattern in nearest_last for each in sorted(folder.glob(pattern))}
    name = path.name.removesuffix(".yml").removesuffix(".yaml")
    return next((files[near] for near in difflib.get_close_matches(name, files, n=1)), "")


def _apply(document: Document, argument: str) -> None:
    """Set the value of a `key=value`; a quoted text, and a collection that the key takes, are YAML."""
    key, equals, text = (part.strip() for part in argument.partition("="))
    path, origin = tuple(key.split(".")), Origin(SET, argument=argument)
    is_yaml = text[:1] in ('"', "'") or (text[:1] in ("[", "{") and takes_collection(path))
    try:
        if not equals or not key:
            raise ValueError("expected key=value, for example training.max_steps=50")
        if section := section_at(path):
            keys = ", ".join(f"{key}.{name}" for name in section.model_fields)
            raise ValueError(f"a section; set one of its values: {keys}")
        if key not in leaf_keys():
            raise ValueError(unknown_key(path, dotted=True))
        value = values_of(compose_one(text), {}) if is_yaml else plain_value(text)
        document.put(path, value, origin)
    except ValueError as error:
        closed = "the quotes or brackets are not closed, or text follows them"
        document.problems.append((origin, key, closed if isinstance(error, YamlError) else str(error)))


def _add_defaults_of_program(document: Document) -> None:
    """Add the values of another program's preset, and a model name, where the files set none."""
    recipe = document.values.get("recipe")
    if not isinstance(recipe, str) or recipe not in (COMMAND, *PRESETS):
        return
    preset = PRESETS[recipe].preset() if recipe != COMMAND else None
    document.values = merge(merge({}, preset.defaults if preset else {}), document.values)
    program, model = document.values.get("program", {}), document.values.get("model", {})
    if not isinstance(program, dict) or not isinstance(model, dict):
        return
    if model.get("name") is None:
        command = program.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else [str(program.get("script"))]
        script = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if command else "")
        document.put(("model", "name"), Path(script).stem or recipe, DEFAULT)


def _validate(document: Document, file: Origin, unknown: frozenset[str]) -> Config | None:
    """Return the Config, or add the problems to `document`; missing keys are reported at `file`.

    Combinations with `unknown` keys are skipped, because the weights decide these keys.
    """
    try:
        config = Config.model_validate({"model": {}} | document.values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = tuple(map(str, detail["loc"]))
            problem = describe_error(detail, path)
            document.problems.append((document.origin_of(path, file), ".".join(path), problem))
        return None
    for keys, reason in impossible_combinations(config):
        key, *_ = involved = keys.split()
        if unknown.isdisjoint(involved):
            origins = [document.origin_of(tuple(each.split(".")), file) for each in involved]
            blamed = next((origin for origin in origins if origin.file == SET), origins[0])
            document.problems.append((blamed, key, reason))
    return config


def mask_config(config: Config, known: SecretFilter | None = None) -> Config:
    """Return `config` without its secrets; those that `known` knows are replaced in its commands."""
    values = config.to_plain()
    masked = SecretFilter().mask_values(values)
    if known is not None:
        for section, keys in _COMMANDS.items():
            masked[section] |= known.mask_values({key: masked[section][key] for key in keys})
    return config if masked == values else type(config).model_validate(masked)


def dump_yaml(config: Config) -> str:
    """Return `config` as YAML that `load_config` reads back as an equal one."""
    return dump_values(config.to_plain())


def config_sha256(config: Config) -> str:
    """Return the hex SHA-256 of all values of `config`, as JSON with sorted keys.

    It includes values that cannot change the weights, so that equal digests mean equal configurations.
    """
    return values_sha256(config.to_plain())


def computation_sha256(config: Config) -> str:
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
