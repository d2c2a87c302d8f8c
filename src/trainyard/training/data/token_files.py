"""Write, check and read token files, and the `index.json` that describes those of a prepared corpus.

A token file holds little-endian integers without a header, memory-mapped for reading. The fingerprint is a
digest of the tokens themselves, so the same data has the same fingerprint on every machine and under every
path. `vocabulary` defines what the tokens mean; `batches` chooses which ones are drawn.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BeforeValidator, PlainSerializer, TypeAdapter, ValidationError, ValidationInfo

from trainyard.config.schema import Config
from trainyard.errors import DamagedFileError, DataError
from trainyard.run.atomic_files import sha256_of_file, write_json_atomically
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.suggested_commands import trainyard_command
from trainyard.run.untrusted_files import read_json_object
from trainyard.training.data.batches import Places, TokenBatches, first_windows
from trainyard.training.data.corpus import SkipCount
from trainyard.training.data.vocabulary import TokenArray

_CHUNK_TOKENS = 1 << 22
LARGE_BYTES = 1 << 30  # smaller files are hashed at every use, which takes half a second at most


class FileState(NamedTuple):
    """Values that change whenever somebody writes to a file; the change time (ctime) cannot be set back."""

    modified_ns: int
    changed_ns: int
    inode: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)


def _in_folder(name: Any, info: ValidationInfo) -> Path:
    folder: Path = info.context  # type: ignore[assignment]
    return folder / str(name)


@dataclass(frozen=True)
class TokenFile:
    """Tokens on disk. An index has the name of its file alone, and is validated with its folder."""

    path: Annotated[Path, BeforeValidator(_in_folder), PlainSerializer(lambda path: path.name)]
    dtype: str
    """An integer type, such as uint16."""
    tokens: int
    sha256: str
    """The digest of the file's bytes, lower-case hex."""
    written: FileState | None = field(default=None, compare=False)
    """The state of the file when it was complete."""
    documents: "TokenFile | None" = None
    """The positions of the first tokens of documents, ascending; None unless requested."""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.tokens * np.dtype(self.dtype).itemsize

    @property
    def is_complete(self) -> bool:
        """Return whether the file exists and has the right size. The content is not read."""
        try:
            found = self.path.stat()
        except OSError:  # another process may be replacing it
            return False
        has_size = stat.S_ISREG(found.st_mode) and found.st_size == self.size
        return has_size and (self.documents is None or self.documents.is_complete)

    def verify(self, progress: Progress = UNSEEN) -> bool:
        """Return whether the file has the content that was written, by its digest.

        A large file that was not written to since is not read.
        """
        if not self.is_complete or (self.documents and not self.documents.verify()):
            return False
        try:
            if self.size >= LARGE_BYTES and FileState.of(self.path.stat()) == self.written:
                return True
            return sha256_of_file(self.path, progress) == self.sha256
        except FileNotFoundError:  # removed meanwhile
            return False

    def open(self) -> TokenArray:
        """The tokens `[tokens]`, memory-mapped, read-only. Raises DataError when the file is incomplete."""
        if not self.is_complete:
            raise DataError(
                f"{self.path}: missing, or no longer {self.tokens:,} {self.dtype} tokens. "
                f"Run {trainyard_command('prepare')} again."
            )
        return np.memmap(self.path, dtype=_stored_type(self.dtype), mode="r")


class TokenWriter:
    """Writes a token file and hashes it while writing. The caller names and publishes the file."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path, self._dtype = path, dtype
        self._file = path.open("wb", buffering=1 << 20)
        self._digest = hashlib.sha256()
        self.tokens = 0
        """The number of tokens written."""

    def write(self, tokens: TokenArray) -> None:
        content = np.ascontiguousarray(tokens, dtype=_stored_type(self._dtype)).data
        self._file.write(content)
        self._digest.update(content)
        self.tokens += tokens.size

    def finish(self) -> TokenFile:
        """Make the file durable and describe it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        state = FileState.of(os.fstat(self._file.fileno()))
        return TokenFile(self._path, self._dtype, self.tokens, self._digest.hexdigest(), state)

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def cut_end(file: TokenFile, fraction: float, path: Path) -> tuple[TokenFile, TokenFile | None]:
    """Move the last `fraction` of the tokens of `file` to `path`. Returns both; None if that is no token.

    Recorded starts of documents are divided too.
    """
    # The fraction as it is written in decimal, so that 0.1 of 10 is exactly 1.
    held_out = int(file.tokens * Fraction(repr(fraction)))
    if not held_out:
        return file, None
    cut = file.tokens - held_out
    end = _write_part(path, file.dtype, file.open()[cut:])
    os.truncate(file.path, cut * np.dtype(file.dtype).itemsize)
    state = FileState.of(file.path.stat())
    kept = replace(file, tokens=cut, sha256=sha256_of_file(file.path), written=state)
    if file.documents is None:
        return kept, end
    beside, starts = file.documents.path, np.array(file.documents.open())
    kept_starts = _write_part(beside, "int64", starts[starts < cut])
    # The end starts with a part of a document, which is one of its own there.
    places = np.union1d([0], starts[starts >= cut] - cut)
    end_starts = _write_part(beside.with_stem(path.stem), "int64", places)
    return replace(kept, documents=kept_starts), replace(end, documents=end_starts)


def _write_part(path: Path, dtype: str, tokens: TokenArray) -> TokenFile:
    with TokenWriter(path, dtype) as writer:
        for start in range(0, tokens.size, _CHUNK_TOKENS):
            writer.write(tokens[start : start + _CHUNK_TOKENS])
        return writer.finish()


def read_token_file(
    path: Path, *, dtype: str, vocab_size: int, progress: Progress = UNSEEN
) -> Iterator[TokenArray]:
    """Yield the tokens of the pre-tokenised file at `path` in parts.

    Raises DataError naming the first token of the file that is not below `vocab_size`.
    """
    tokens = np.memmap(path, dtype=_stored_type(dtype), mode="r")
    for start in range(0, tokens.size, _CHUNK_TOKENS):
        chunk = np.asarray(tokens[start : start + _CHUNK_TOKENS])
        if int(chunk.max()) >= vocab_size:
            place = int(np.argmax(chunk >= vocab_size))
            raise DataError(
                f"{path}: token {int(chunk[place]):,} at position {start + place:,}, but ids must be below "
                f"model.architecture.vocab_size, {vocab_size:,}. Set it to the size of the vocabulary that "
                f"the file was written with, or data.bin_dtype to the type of its integers (read: {dtype})."
            )
        yield chunk
        progress.advance(chunk.nbytes)


def _stored_type(dtype: str) -> np.dtype[np.integer[Any]]:
    return np.dtype(dtype).newbyteorder("<")


INDEX_NAME = "index.json"
_SCHEMA = 4


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
    """0 if the end of the tokens is held out."""
    skipped: tuple[SkipCount, ...]
    seconds: float = 0.0
    """The time to prepare or find the data."""
    reused: bool = False
    """Whether an earlier run had prepared it."""
    validation_split: str | None = None
    """How validation data was held out: complete `files`, or the end of the tokens (`within`); None: not."""

    @property
    def files(self) -> tuple[TokenFile, ...]:
        return (self.train,) if self.validation is None else (self.train, self.validation)

    @property
    def skipped_files(self) -> int:
        """The number of files that were skipped in training and validation data."""
        return sum(skipped.count for skipped in self.skipped if "files" in skipped.reason)

    def to_json(self) -> dict[str, Any]:
        """The data's part of `run.json`; unknown values are left out."""
        facts = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "train_tokens": self.train.tokens,
            "train_files": self.train_files,
            "skipped_files": self.skipped_files,
        }
        if self.validation is not None:
            facts |= {
                "validation_tokens": self.validation.tokens,
                "validation_files": self.validation_files,
                "validation_split": self.validation_split,
            }
        return {name: value for name, value in facts.items() if value}

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
    """Write the index. It has the names alone of the files, which lie beside it."""
    value = TypeAdapter(PreparedData).dump_python(prepared, mode="json")
    write_json_atomically(folder / INDEX_NAME, {"schema": _SCHEMA, **value})


def read_prepared(directory: Path) -> PreparedData | None:
    """The data prepared in `directory`; None if the index is missing or damaged or a file size differs."""
    prepared = read_index(directory)
    return prepared if prepared is not None and all(file.is_complete for file in prepared.files) else None


def read_index(directory: Path) -> PreparedData | None:
    """Return the data that the index in `directory` describes; None without one. Files are not checked."""
    try:
        value = read_json_object(directory / INDEX_NAME)
        if value.get("schema") != _SCHEMA:
            return None
        found = TypeAdapter(PreparedData).validate_python(value, context=directory)
    except (OSError, DamagedFileError, ValidationError):
        return None
    return replace(found, fingerprint=fingerprint_of(found.train, found.validation), seconds=0.0, reused=True)


def _places(file: TokenFile) -> Places | None:
    """The starts of the documents of `file`, memory-mapped; None when they are not recorded."""
    return None if file.documents is None else file.documents.open().view(np.ndarray)


def _identity(file: TokenFile) -> list[str | int]:
    """The values that identify the tokens, and the document starts where these are recorded."""
    identity: list[str | int] = [file.dtype, file.tokens, file.sha256]
    return identity if file.documents is None else [*identity, file.documents.sha256]


def fingerprint_of(train: TokenFile, validation: TokenFile | None) -> str:
    parts = [_identity(file) if file else None for file in (train, validation)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
