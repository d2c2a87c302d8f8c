"""Plan the preparation of token files: the source files and the target folder. Reads and writes no data.

The name of the target folder is a digest of everything that determines the tokens, so a change of data or
configuration leads to a new preparation. `tokenize_corpus` makes the token files.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.training.data.corpus import (
    Corpus,
    CorpusFile,
    SkipCount,
    SkipTally,
    corpus_at,
    hold_out,
    standard_library,
    unusable_message,
)
from trainyard.training.data.vocabulary import Vocabulary, load_vocabulary

_SCHEMA = 2


@dataclass(frozen=True)
class Preparation:
    """A plan: the files to prepare and the target folder."""

    name: str
    train: tuple[CorpusFile, ...]
    validation: tuple[CorpusFile, ...]
    skipped: tuple[SkipCount, ...]
    """Skipped among the training files, including those held out for validation."""
    directory: Path
    data: DataConfig
    vocab_size: int
    vocabulary: Vocabulary
    validation_skipped: tuple[SkipCount, ...] = ()
    """Skipped in data.validation_path."""
    split: str | None = None
    """How validation data is held out: complete `files`, or the end of the tokens (`within`); None: not."""

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.train + self.validation)

    def to_json(self) -> dict[str, Any]:
        """The plan as shown by `--dry-run`."""
        return {
            "name": self.name,
            "train_files": len(self.train),
            "validation_files": len(self.validation),
            "bytes": self.size,
            "directory": str(self.directory),
            **({} if self.split is None else {"validation_split": self.split}),
        }


def plan_preparation(data: DataConfig, model: ModelConfig) -> Preparation:
    """The first of `plans`, which is used unless its validation part turns out to be too short."""
    return next(plans(data, model))


def plans(data: DataConfig, model: ModelConfig) -> Iterator[Preparation]:
    """Find the files and decide what is held out. Reads only the tokenizer and writes nothing.

    Without data.validation_path it yields several plans, because held-out files may have too few tokens for
    validation, and their number of tokens is only known after preparation. Raises DataError when a path is
    missing or has nothing to read, ConfigError when the tokenizer is unusable.
    """
    vocabulary = load_vocabulary(model)
    skips, validation_skips = SkipTally(), SkipTally()
    prepared, validation = Path(data.prepared_directory).expanduser(), data.validation_path
    without = [prepared] if validation is None else [prepared, Path(validation).expanduser()]
    if data.train_path is None:
        corpus = standard_library()
    else:
        corpus = _corpus("data.train_path", data.train_path, data, without=without, skips=skips)
    held_out: tuple[CorpusFile, ...] = ()
    if validation is not None:
        held_out = _corpus(
            "data.validation_path", validation, data, without=[prepared], skips=validation_skips
        ).files

    def build_plan(
        split: str | None, train: tuple[CorpusFile, ...], validation: tuple[CorpusFile, ...]
    ) -> Preparation:
        vocab_size = model.architecture.vocab_size
        key = _key(data, vocabulary, vocab_size=vocab_size, parts=(train, validation), split=split)
        return Preparation(
            name=corpus.name,
            train=train,
            validation=validation,
            skipped=skips.summary(),
            directory=prepared / key,
            data=data,
            vocab_size=vocab_size,
            vocabulary=vocabulary,
            validation_skipped=validation_skips.summary(),
            split=split,
        )

    if validation is not None or data.validation_fraction == 0:
        yield build_plan(None, corpus.files, held_out)
    else:
        by_files = build_plan("files", *hold_out(corpus.files, data.validation_fraction))
        if by_files.validation:
            yield by_files
        yield build_plan("within", corpus.files, ())
        yield by_files  # a text that is too short to split is used completely for training


def _corpus(key: str, path: str, data: DataConfig, *, without: Sequence[Path], skips: SkipTally) -> Corpus:
    """The corpus at `path`, without `.bin` files that cannot hold tokens of `data.bin_dtype`."""
    corpus = corpus_at(key, Path(path).expanduser(), without=without, skips=skips)
    width = np.dtype(data.bin_dtype).itemsize
    files = []
    for file in corpus.files:
        if file.suffix == ".bin" and file.size % width:
            skips.add(f".bin files that are not a multiple of {data.bin_dtype} in size", file.relative)
        else:
            files.append(file)
    if not files:
        raise DataError(unusable_message(key, path, skips))
    return replace(corpus, files=tuple(files))


def _key(
    data: DataConfig,
    vocabulary: Vocabulary,
    *,
    vocab_size: int,
    parts: tuple[tuple[CorpusFile, ...], tuple[CorpusFile, ...]],
    split: str | None,
) -> str:
    """A digest of everything that determines the tokens. A file with unchanged size and time is unchanged."""
    files = [[_state(file) for file in part] for part in parts]
    facts = [_SCHEMA, vocabulary.digest, vocab_size, data.text_field, data.bin_dtype, files]
    if data.packing == "separate":
        facts.append(data.packing)
    if split == "within":
        facts.append([split, data.validation_fraction])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _state(file: CorpusFile) -> tuple[str | int, ...]:
    """Values that change when somebody writes to a file."""
    return (str(file.path.absolute()), file.relative, file.size, file.modified_ns)
