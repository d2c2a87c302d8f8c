"""Fill model keys that are left open from the weights that `model.path` names.

    document + what the weights declare -> document whose open keys have the weights' values

A key is open when it is set nowhere. With `--set model.path=…` the keys of the configuration files are open
too, because they describe another model. `model: {architecture: null}` in a file opens the
architecture. Other keys stay; opening the weights checks whether they fit. This module reads no weights: the
caller passes in what they declare.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.config.keys import leaf_keys
from trainyard.config.problems import SET, Document, Origin
from trainyard.config.yaml_reader import KeyPath

ARCHITECTURE = ("model", "architecture")
PATH = ("model", "path")
TOKENIZER = "model.tokenizer"
NAME = "model.name"
NO_WEIGHTS = (
    "not set, and model.architecture is null, which leaves the model to its weights; name them, such as "
    "--set model.path=HuggingFaceTB/SmolLM2-135M, or describe the model in model.architecture"
)


@dataclass(frozen=True)
class DeclaredShape:
    """The shape of a model as its weights declare it."""

    source: str
    """Source of the values: `config.json of ~/models/SmolLM2-135M`."""
    values: Mapping[str, Any]
    """Values by dotted key; an architecture key that is absent has its default."""
    path: str
    """Path of the weights, with the commit if there is one."""


ReadWeights = Callable[[str, frozenset[str]], DeclaredShape | None]
"""Returns the values that `model.path` declares for the open keys; None when they are not known."""


def null_architecture(document: Document) -> dict[KeyPath, Origin]:
    """Treat `architecture: null` as an empty section and drop the keys of extended files.

    Returns the places of the dropped keys, for `refuse_null_architecture`.
    """
    model = document.values.get("model")
    if not isinstance(model, dict) or model.get("architecture", {}) is not None:
        return {}
    model["architecture"] = {}
    dropped = [path for path in document.places if path[:2] == ARCHITECTURE]
    return {path: document.places.pop(path) for path in dropped}


def refuse_null_architecture(document: Document, places: Mapping[KeyPath, Origin]) -> None:
    """Note a problem, at the line of the null, if no weights can fill the null architecture."""
    if places and _path(document) is None and document.values["model"]["architecture"] == {}:
        document.problems.append((places[ARCHITECTURE], ".".join(PATH), NO_WEIGHTS))


def open_keys(document: Document) -> frozenset[str]:
    """Return the keys that the weights decide; none if `model.path` is not set."""
    if _path(document) is None:
        return frozenset()
    by_command = document.places.get(PATH, Origin("")).file == SET
    return frozenset(key for key in leaf_keys() if _is_open(document, key, by_command=by_command))


def fill_open_keys(document: Document, read: ReadWeights) -> frozenset[str]:
    """Set the open keys of `document` from `read`; returns the keys that stay unknown."""
    path, unknown = _path(document), open_keys(document)
    if path is None:
        return unknown
    declared = read(path, unknown)
    if declared is None:
        return unknown
    document.values["model"]["path"] = declared.path
    origin = Origin(declared.source)
    for key in unknown:
        if key in declared.values:
            document.put(tuple(key.split(".")), declared.values[key], origin)
        elif key.startswith(".".join(ARCHITECTURE)):
            _remove(document, tuple(key.split(".")))
    return frozenset()


def _path(document: Document) -> str | None:
    model = document.values.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    return path if isinstance(path, str) and path else None


def _is_open(document: Document, key: str, *, by_command: bool) -> bool:
    describes_the_model = key.startswith("model.architecture.") or key in (TOKENIZER, NAME)
    if not describes_the_model or (key == NAME and not by_command):
        return False
    origin = document.places.get(tuple(key.split(".")))
    return origin is None or (by_command and origin.file != SET)


def _remove(document: Document, path: KeyPath) -> None:
    section: Any = document.values
    for name in path[:-1]:
        section = section.get(name) if isinstance(section, dict) else None
    if isinstance(section, dict):
        section.pop(path[-1], None)
    document.places.pop(path, None)
