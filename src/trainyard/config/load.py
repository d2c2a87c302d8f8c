"""Load a configuration: files, what they extend and single values from the command line, checked together.

    file -> layers -> overrides -> (weights) -> validation -> Config and the origin of each value

All errors are found in one pass and raised as one ConfigError. This module reads neither the environment nor
weights; the caller passes in a reader of weights. A later base wins over an earlier one, and a file wins over
its bases: mappings merge; everything else is replaced, also by null.
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
from trainyard.config.expectations import describe_actual, describe_expected
from trainyard.config.from_weights import (
    ReadWeights,
    fill_open_keys,
    null_architecture,
    open_keys,
    refuse_null_architecture,
)
from trainyard.config.json_schema import fragment_of
from trainyard.config.keys import leaf_keys, section_at, unknown_key
from trainyard.config.problems import DEFAULT, SET, Document, Origin, shorten
from trainyard.config.registries import COMMAND, PRESETS
from trainyard.config.schema import Config
from trainyard.config.secret_filter import SecretFilter
from trainyard.config.yaml_reader import (
    MOST_BYTES,
    KeyPath,
    Values,
    YamlError,
    compose_one,
    decode,
    dump_values,
    plain_value,
)
from trainyard.errors import ConfigError

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
    document.values = _read(path, document, (), file)
    if {"meaning", "command"} <= document.values.keys():
        raise ConfigError(
            f"{path}: describes a program and is not a configuration. Write a configuration with "
            f"recipe: {path.stem}, or add --set recipe={path.stem} to yours"
        )
    is_complete, dropped = not document.problems, null_architecture(document)
    for argument in overrides:
        _apply(document, argument)
    document.sources += overrides
    _add_defaults_of_program(document)
    refuse_null_architecture(document, dropped)
    if read_weights and not document.problems:
        unknown = fill_open_keys(document, read_weights)
    else:
        unknown = open_keys(document)
    config = _validate(document, file, unknown, is_complete=is_complete)
    if document.problems or config is None:
        raise document.error()
    places = {".".join(place): origin for place, origin in document.places.items()}
    origins = {key: places.get(key, DEFAULT) for key in leaf_keys()}
    return LoadedConfig(mask_config(config), origins, config)


def _read(path: Path, document: Document, chain: tuple[str, ...], named_at: Origin) -> dict[str, Any]:
    """Return the values of `path` over those of the files that it extends, and note places and problems."""
    shown, values, found = os.path.normpath(path), Values(), None
    if problem := _unreadable(shown, chain):
        document.problems.append((named_at, "extends" if chain else "", problem))
        return {}
    try:
        found = values.of(compose_one(decode(Path(shown).read_bytes())))
        if not isinstance(found, dict):
            what = "empty" if found is None else "not a mapping"
            values.problems.append(YamlError(f"{what}; a configuration is a mapping of sections"))
    except YamlError as error:
        values.problems.append(error)
    own: dict[str, Any] = found if isinstance(found, dict) else {}
    document.problems += [(Origin(shown, e.line), e.key, str(e)) for e in values.problems]
    below: dict[str, Any] = {}
    named_at = Origin(shown, values.lines.get(("extends",)))
    named = own.pop("extends", None)
    bases = [] if named is None else named if isinstance(named, list) else [named]
    if any(not isinstance(base, str) or not base or "\0" in base for base in bases):
        document.problems.append((named_at, "extends", "expected the path of a file, or a list of paths"))
        bases = []
    for base in bases:
        _merge(below, _read(Path(shown).parent / base, document, (*chain, shown), named_at))
    document.places |= {place: Origin(shown, line) for place, line in values.lines.items()}
    document.sources.append(shown)
    return _merge(below, own)


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in above.items():
        section = below.get(key)
        if isinstance(value, dict):
            value = _merge(section if isinstance(section, dict) else {}, value)
        below[key] = value
    return below


def _unreadable(shown: str, chain: tuple[str, ...]) -> str:
    """Return why a file cannot be read, by its name if another file of `chain` extends it; else nothing."""
    path, named = Path(shown), f"{shorten(shown)}: " if chain else ""
    try:
        if os.path.realpath(path) in map(os.path.realpath, chain):
            return f"a cycle: {' → '.join([*chain, shown])}"
        if path.is_dir():
            names = sorted(str(each) for each in path.glob("*.yaml"))[:3]
            some = f", such as {', '.join(names)}" if names else ""
            return f"{named}is a directory; name a file in it{some}"
        if not path.exists():
            near = _nearest_file(path)
            return f"{named}no such file{near and f'; did you mean {near}?'}"
        if not path.is_file():  # a pipe would be waited for, and a device may never end
            return f"{named}is not a regular file; name a file"
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                return f"{named}more than {MOST_BYTES >> 20} MB; a configuration is some kilobytes"
    except OSError as error:
        return f"{named}cannot be read ({error.strerror})"
    return ""


def _nearest_file(path: Path) -> str:
    """Return the YAML file of that name below configs/, else the one whose name is most similar."""
    named = path.name.removesuffix(".yml").removesuffix(".yaml") + ".yaml"
    for below in (".", "configs", "configs/models", "models"):
        if (there := path.parent / below / named).is_file():
            return str(there)
    is_folder = path.parent.is_dir()
    files = path.parent.glob("*.yaml") if is_folder else path.parent.parent.glob("*/*.yaml")
    names = {each.name if is_folder else str(each): str(each) for each in sorted(files)}
    near = difflib.get_close_matches(path.name if is_folder else str(path), names, n=1)
    return names[near[0]] if near else ""


def _apply(document: Document, argument: str) -> None:
    key, equals, text = argument.partition("=")
    key, origin = key.strip(), Origin(SET, argument=argument)
    try:
        if not equals or not key:
            raise ValueError("expected key=value, for example training.max_steps=50")
        if key not in leaf_keys():
            raise ValueError(_no_value(tuple(key.split("."))))
        document.put(tuple(key.split(".")), _value_in(text.strip(), key), origin)
    except ValueError as error:
        document.problems.append((origin, key, str(error)))


def _no_value(path: KeyPath) -> str:
    if section := section_at(path):
        keys = ", ".join(".".join((*path, name)) for name in section.model_fields)
        return f"a section; set one of its values: {keys}"
    if ".".join(path[:-1]) in leaf_keys():
        return f"unknown key; {'.'.join(path[:-1])} is a single value"
    return unknown_key(path, dotted=True)


def _value_in(text: str, key: str) -> Any:
    """Parse text as YAML if it is quoted, or a collection that the key takes; else as one plain value."""
    fragment, values = fragment_of(key), Values()
    kinds = {choice.get("type") for choice in fragment.get("anyOf", [fragment])}
    is_quoted = text[:1] in ("'", '"')
    if not is_quoted and not (text[:1] in ("[", "{") and kinds & {"array", "object"}):
        return plain_value(text)
    try:
        found = values.of(compose_one(text))
    except YamlError:
        found = None
    if values.problems or not isinstance(found, str if is_quoted else list | dict):
        if is_quoted:
            raise ValueError("the quotes are not closed, or text follows them")
        raise ValueError("not a YAML list or mapping; quote words with special characters")
    return found


def _add_defaults_of_program(document: Document) -> None:
    """Add the values of another program's preset, and a model name, where the files set none."""
    recipe = document.values.get("recipe")
    if not isinstance(recipe, str) or recipe not in (COMMAND, *PRESETS):
        return
    preset = PRESETS.read(recipe) if recipe != COMMAND else {}
    document.values = _merge(_merge({}, preset.get("defaults", {})), document.values)
    program, model = document.values.get("program", {}), document.values.get("model", {})
    if "log" in preset or not isinstance(program, dict) or not isinstance(model, dict):
        return
    if model.get("name") is None:
        command = program.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else [str(program.get("script"))]
        script = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if command else "")
        document.put(("model", "name"), Path(script).stem or recipe, DEFAULT)


def _validate(
    document: Document, file: Origin, unknown: frozenset[str], *, is_complete: bool
) -> Config | None:
    """Return the Config, and add the problems of `document`; missing keys are reported at `file`.

    Without a file that could not be read, keys may be missing. Combinations with `unknown` keys are skipped,
    because the weights decide these keys.
    """
    values, wrong = {"model": {}} | document.values, {tuple(key.split(".")) for key in unknown}
    try:
        config: Config | None = Config.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = tuple(str(part) for part in detail["loc"])
            wrong.add(path)
            if is_complete or detail["type"] != "missing":
                document.problems.append(
                    (document.origin_of(path, file), ".".join(path), _message(detail, path))
                )
        config = _with_defaults_instead(values, wrong)
    for impossible in impossible_combinations(config) if config and is_complete else ():
        paths = [tuple(key.split(".")) for key in impossible.keys]
        if not any(path[:length] in wrong for path in paths for length in range(1, len(path) + 1)):
            origins = [document.origin_of(path, file) for path in paths]
            blamed = next((origin for origin in origins if origin.file == SET), origins[0])
            document.problems.append((blamed, impossible.keys[0], impossible.reason))
    return config


def _message(detail: Any, path: KeyPath) -> str:
    if detail["type"] == "extra_forbidden":
        return unknown_key(path)
    fragment = fragment_of(".".join(path))
    expected = f"expected {describe_expected(fragment)}"
    if detail["type"] == "missing":
        return f"missing; {expected}"
    return f"{expected}, got {describe_actual(detail['input'], fragment)}"


def _with_defaults_instead(values: Mapping[str, Any], wrong: set[KeyPath]) -> Config | None:
    """Return the configuration with defaults instead of wrong values, to check combinations."""

    def right(section: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        kept = {name: value for name, value in section.items() if (*path, name) not in wrong}
        return {n: right(each, (*path, n)) if isinstance(each, dict) else each for n, each in kept.items()}

    repaired = right(values, ())
    repaired.setdefault("model", {}).setdefault("name", "unnamed")
    try:
        return Config.model_validate(repaired)
    except ValidationError:
        return None


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
