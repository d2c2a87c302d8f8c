"""Prepared training data, and the `index.json` that describes it in its folder.

The fingerprint is a digest of the tokens themselves, so the same data has the same fingerprint on every
machine and under every path. `tokens` makes the token files.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.config.schema import Config
from trainyard.errors import DamagedFileError
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.untrusted_files import read_json_object
from trainyard.training.data.batches import Places, TokenBatches, first_windows
from trainyard.training.data.skipped_counts import SkipCount
from trainyard.training.data.token_files import FileState, TokenFile

INDEX_NAME = "index.json"
_SCHEMA = 1


@dataclass(frozen=True)
class PreparedData:
    """Data that is ready to train on."""

    name: str
    """The name shown to people."""
    fingerprint: str
    """SHA-256 over the tokens, lower-case hex."""
    train: TokenFile
    validation: TokenFile | None
    train_files: int
    """The number of files that the training tokens come from; skipped files do not count."""
    validation_files: int
    skipped: tuple[SkipCount, ...]
    seconds: float
    """The time to prepare or find the data."""
    reused: bool
    """Whether an earlier run had prepared it."""
    validation_split: str | None = None
    """How validation data was held out of the training files, `files` or `within`; None: it was not."""

    @property
    def files(self) -> tuple[TokenFile, ...]:
        return (self.train,) if self.validation is None else (self.train, self.validation)

    @property
    def skipped_files(self) -> int:
        """The number of files that were skipped in training and validation data."""
        return sum(skipped.count for skipped in self.skipped if skipped.is_of_files)

    def to_json(self) -> dict[str, Any]:
        """The data's part of `run.json`; unknown values are left out."""
        facts: dict[str, Any] = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "train_tokens": self.train.tokens,
            "train_files": self.train_files,
        }
        if self.skipped_files:
            facts["skipped_files"] = self.skipped_files
        if self.validation is None:
            return facts
        split = {} if self.validation_split is None else {"validation_split": self.validation_split}
        return {
            **facts,
            "validation_tokens": self.validation.tokens,
            "validation_files": self.validation_files,
            **split,
        }

    def batches(self, *, sequence_length: int, batch_size: int, seed: int) -> TokenBatches:
        """The training batches of a run. Raises DataError when there are too few tokens for one batch."""
        return TokenBatches(
            self.train.open(),
            sequence_length=sequence_length,
            batch_size=batch_size,
            seed=seed,
            documents=_places(self.train),
        )

    def validation_windows(self, *, length: int, count: int) -> np.ndarray:
        """Up to `count` windows `[window, length + 1]` from the start of the validation tokens."""
        if self.validation is None:
            return np.empty((0, length + 1), dtype=np.int64)
        documents = _places(self.validation)
        return first_windows(self.validation.open(), length=length, count=count, documents=documents)

    def prompt(self, count: int) -> list[int]:
        """The first `count` validation tokens, or training tokens when there is no validation data."""
        return [int(token) for token in (self.validation or self.train).open()[:count]]

    def pinned_config(self, config: Config) -> Config:
        """`config` itself: how validation data is held out follows from the files."""
        return config


def write_dataset_index(prepared: PreparedData, folder: Path) -> None:
    index = {
        "schema": _SCHEMA,
        "name": prepared.name,
        "train": _description(prepared.train, folder),
        "validation": None if prepared.validation is None else _description(prepared.validation, folder),
        "train_files": prepared.train_files,
        "validation_files": prepared.validation_files,
        "skipped": [[s.reason, s.count, list(s.examples)] for s in prepared.skipped],
    }
    write_json_atomically(folder / INDEX_NAME, index)


def _description(file: TokenFile, folder: Path) -> dict[str, Any]:
    name = file.path.name if file.path.parent == folder else str(file.path)
    part = {} if file.part_of is None else {"part_of": list(file.part_of)}
    return {
        "path": name,
        "dtype": file.dtype,
        "tokens": file.tokens,
        "sha256": file.sha256,
        "seen": file.seen,
        "documents": file.documents and _description(file.documents, folder),
        **part,
    }


def read_prepared(directory: Path) -> PreparedData | None:
    """The data prepared in `directory`; None if the index is missing or damaged or a file size differs."""
    prepared = read_index(directory)
    return prepared if prepared is not None and all(file.is_complete for file in prepared.files) else None


def read_index(directory: Path) -> PreparedData | None:
    """Return the data that the index in `directory` describes; None without one. Files are not checked."""
    try:
        index = read_json_object(directory / INDEX_NAME)
        train = _token_file_of(index["train"], directory)
        validation = None if index["validation"] is None else _token_file_of(index["validation"], directory)
        skipped = tuple(SkipCount(reason, count, tuple(names)) for reason, count, names in index["skipped"])
        train_files, validation_files = int(index["train_files"]), int(index["validation_files"])
        name, schema = str(index["name"]), int(index["schema"])
    except (OSError, DamagedFileError, ValueError, KeyError, TypeError):
        return None
    if schema != _SCHEMA:
        return None
    return PreparedData(
        name,
        fingerprint_of(train, validation),
        train,
        validation,
        train_files=train_files,
        validation_files=validation_files,
        skipped=skipped,
        seconds=0.0,
        reused=True,
    )


def _token_file_of(value: dict[str, Any], directory: Path) -> TokenFile:
    path, dtype, tokens = directory / value["path"], str(value["dtype"]), int(value["tokens"])
    seen = FileState(*value["seen"]) if value.get("seen") else None
    documents = _token_file_of(value["documents"], directory) if value.get("documents") else None
    first, of = value.get("part_of") or (None, None)
    part_of = None if first is None or of is None else (int(first), int(of))
    return TokenFile(path, dtype, tokens, str(value["sha256"]), seen, documents, part_of)


def _places(file: TokenFile) -> Places | None:
    """The starts of the documents of `file`, memory-mapped; None when they are not recorded."""
    return None if file.documents is None else file.documents.open().view(np.ndarray)


def _identity(file: TokenFile) -> list[str | int]:
    """The values that identify the tokens, and the document starts where these are recorded."""
    identity: list[str | int] = [file.dtype, file.tokens, file.sha256]
    if file.part_of is not None:
        identity += ["from", file.part_of[0]]
    return identity if file.documents is None else [*identity, file.documents.sha256]


def fingerprint_of(train: TokenFile, validation: TokenFile | None) -> str:
    parts = [_identity(file) if file else None for file in (train, validation)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
