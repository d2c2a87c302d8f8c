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

from trainyard.config.key_lookup import leaf_keys
from trainyard.config.problems import DEFAULT, SET, Document, Origin

ARCHITECTURE = ("model", "architecture")
_SECTION = "model.architecture."
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


def null_architecture(document: Document) -> Origin | None:
    """Drop the architecture of extended files where `architecture: null` replaces it; return its place."""
    model = document.values.get("model")
    if not isinstance(model, dict) or model.get("architecture", {}) is not None:
        return None
    model["architecture"] = {}
    null = document.places[ARCHITECTURE]
    document.places = {at: origin for at, origin in document.places.items() if at[:2] != ARCHITECTURE}
    return null


def require_weights(document: Document, null: Origin | None) -> None:
    """Note a problem, at the line of the null, if no weights can fill the null architecture."""
    if null and _path(document) is None and document.values["model"]["architecture"] == {}:
        document.problems.append((null, ".".join(PATH), NO_WEIGHTS))


def open_keys(document: Document) -> frozenset[str]:
    """Return the keys that the weights decide; none if `model.path` is not set."""
    if _path(document) is None:
        return frozenset()
    by_command = document.places.get(PATH, DEFAULT).file == SET
    described = (*(key for key in leaf_keys() if key.startswith(_SECTION)), TOKENIZER, *[NAME] * by_command)
    set_at = {key: document.places.get(tuple(key.split("."))) for key in described}
    return frozenset(
        key for key, origin in set_at.items() if origin is None or (by_command and origin.file != SET)
    )


def fill_open_keys(document: Document, read: ReadWeights) -> frozenset[str]:
    """Set the open keys of `document` from `read`; returns the keys that stay unknown."""
    path, unknown = _path(document), open_keys(document)
    declared = read(path, unknown) if path is not None else None
    if declared is None:
        return unknown
    document.values["model"]["path"] = declared.path
    for key in unknown:
        place = tuple(key.split("."))
        if key in declared.values:
            document.put(place, declared.values[key], Origin(declared.source))
        elif key.startswith(_SECTION):
            document.remove(place)
    return frozenset()


def _path(document: Document) -> str | None:
    model = document.values.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    return path if isinstance(path, str) and path else None
