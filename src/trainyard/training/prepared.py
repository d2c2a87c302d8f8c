"""Data that is ready to train on, and `index.json`, which describes it in its folder.

The fingerprint is of the tokens themselves: the same data has it on every machine and under every path.
Making the token files is the affair of `tokens`.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.run.files import write_json_atomically
from trainyard.training.skipped import Skipped
from trainyard.training.token_files import FileState, TokenFile

INDEX_NAME = "index.json"
_SCHEMA = 1


@dataclass(frozen=True)
class PreparedData:
    """Data that is ready to train on."""

    name: str
    """What people call it."""
    fingerprint: str
    """SHA-256 over the tokens, lower-case hex."""
    train: TokenFile
    validation: TokenFile | None
    train_files: int
    validation_files: int
    skipped: tuple[Skipped, ...]
    seconds: float
    """That preparing or finding it took."""
    reused: bool
    """It was there from an earlier run."""

    def to_json(self) -> dict[str, Any]:
        """The data's part of `run.json`; what is unknown is absent."""
        facts = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "train_tokens": self.train.tokens,
            "train_files": self.train_files,
        }
        if self.validation is None:
            return facts
        return {
            **facts,
            "validation_tokens": self.validation.tokens,
            "validation_files": self.validation_files,
        }


def write_index(prepared: PreparedData, folder: Path) -> None:
    index = {
        "schema": _SCHEMA,
        "name": prepared.name,
        "train": _described(prepared.train, folder),
        "validation": None if prepared.validation is None else _described(prepared.validation, folder),
        "train_files": prepared.train_files,
        "validation_files": prepared.validation_files,
        "skipped": [[s.reason, s.count, list(s.examples)] for s in prepared.skipped],
    }
    write_json_atomically(folder / INDEX_NAME, index)


def _described(file: TokenFile, folder: Path) -> dict[str, Any]:
    name = file.path.name if file.path.parent == folder else str(file.path)
    return {
        "path": name,
        "dtype": file.dtype,
        "tokens": file.tokens,
        "sha256": file.sha256,
        "seen": file.seen,
    }


def read_prepared(directory: Path) -> PreparedData | None:
    """What is prepared in `directory`; None if there is no index, it is torn, or a file has another size."""
    try:
        index = json.loads((directory / INDEX_NAME).read_bytes())
        train = _token_file_of(index["train"], directory)
        validation = None if index["validation"] is None else _token_file_of(index["validation"], directory)
        skipped = tuple(Skipped(reason, count, tuple(names)) for reason, count, names in index["skipped"])
        counts = int(index["train_files"]), int(index["validation_files"])
        name, schema = str(index["name"]), int(index["schema"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if schema != _SCHEMA or not train.is_whole or not (validation is None or validation.is_whole):
        return None
    return PreparedData(
        name, fingerprint_of(train, validation), train, validation, *counts, skipped, seconds=0.0, reused=True
    )


def _token_file_of(value: dict[str, Any], directory: Path) -> TokenFile:
    path, dtype, tokens = directory / value["path"], str(value["dtype"]), int(value["tokens"])
    seen = FileState(*value["seen"]) if value.get("seen") else None
    return TokenFile(path, dtype, tokens, str(value["sha256"]), seen)


def fingerprint_of(train: TokenFile, validation: TokenFile | None) -> str:
    parts = [[file.dtype, file.tokens, file.sha256] if file else None for file in (train, validation)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
