"""Merge a configuration file over the files it extends: one document, each value with its origin.

A later base wins over an earlier one, and the file wins over its bases. Mappings merge; everything else is
replaced, also by null. This module does not know which keys exist.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.config.problems import Origin, Problem, shorten
from trainyard.config.yaml.sources import Fault
from trainyard.config.yaml.yaml_document import Document, read_document

EXTENDS = "extends"
MAX_CHAIN = 32


@dataclass
class LayerReader:
    """Reads files with their bases, each file once."""

    files: list[str] = field(default_factory=list)
    """The files read; a base is before the files that extend it."""
    _read: dict[str, Document] = field(default_factory=dict)

    def read(self, path: Path) -> Document:
        """The document of `path` and all that it extends."""
        shown = os.path.normpath(path)
        return self._read_layers(path, (shown,), Origin(shown), "")

    def _read_layers(self, path: Path, chain: tuple[str, ...], named_at: Origin, key: str) -> Document:
        shown, real = chain[-1], os.path.realpath(path)
        if real in self._read:
            return self._read[real]
        own = read_document(path, shown)
        if isinstance(own, Fault):
            message = f"{shorten(shown)}: {own.message}" if key else own.message
            return Document(problems=[Problem(named_at, key, message)], is_complete=False)
        result = Document()
        for base in self._bases(path, own):
            overlay(result, self._base(base, chain, own.places[EXTENDS,]))
        overlay(result, own)
        self.files.append(shown)
        self._read[real] = result
        return result

    def _base(self, path: Path, chain: tuple[str, ...], named_at: Origin) -> Document:
        shown = os.path.normpath(path)
        real = os.path.realpath(path)
        if any(os.path.realpath(above) == real for above in chain):
            message = f"a cycle: {' → '.join([*chain, shown])}"
        elif len(chain) >= MAX_CHAIN:
            message = f"more than {MAX_CHAIN} files, each extending the next"
        else:
            return self._read_layers(Path(shown), (*chain, shown), named_at, EXTENDS)
        return Document(problems=[Problem(named_at, EXTENDS, message)], is_complete=False)

    def _bases(self, path: Path, own: Document) -> list[Path]:
        """Remove `extends` from `own` and return the paths it names, relative to the file that names them."""
        named: Any = own.values.pop(EXTENDS, None)
        if named is None:
            return []
        names = named if isinstance(named, list) else [named]
        if all(isinstance(name, str) and name and "\0" not in name for name in names):
            return [path.parent / name for name in reversed(dict.fromkeys(reversed(names)))]
        message = "expected the path of a file, or a list of paths"
        own.problems.append(Problem(own.places[EXTENDS,], EXTENDS, message))
        own.is_complete = False
        return []


def overlay(below: Document, above: Document) -> None:
    """Merge `above` over `below`, in place; `above` is not changed."""
    _merge(below.values, above.values)
    below.places.update(above.places)
    below.problems = list(dict.fromkeys([*below.problems, *above.problems]))
    below.is_complete = below.is_complete and above.is_complete


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            _merge(into[key], value)
        else:
            into[key] = value
