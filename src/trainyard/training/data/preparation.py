"""Plan the preparation of token files: the source files and the target folder. Reads and writes no data.

A change of data or configuration leads to another folder, and so to a new preparation. The token files are
made by `tokenize_corpus`.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.training.data.corpus import (
    CorpusFile,
    SkipCount,
    SkipTally,
    corpus_at,
    hold_out,
    standard_library,
)
from trainyard.training.data.vocabulary import Vocabulary, load_vocabulary

_SCHEMA = 2
# Held-out files of fewer bytes for each token of a sequence may have fewer tokens than one sequence.
_LEAST_BYTES_PER_TOKEN = 8


@dataclass(frozen=True)
class Preparation:
    """A plan: the files to prepare and the target folder."""

    name: str
    train: tuple[CorpusFile, ...]
    validation: tuple[CorpusFile, ...]
    split: str | None
    """How validation data is held out: complete `files`, or the end of the tokens (`within`); None: not."""
    skipped: tuple[SkipCount, ...]
    """Skipped among the training files, including those held out for validation."""
    validation_skipped: tuple[SkipCount, ...]
    """Skipped in data.validation_path."""
    data: DataConfig
    vocab_size: int
    vocabulary: Vocabulary

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.train + self.validation)

    @cached_property
    def directory(self) -> Path:
        """The target folder; its name is a digest of everything that determines the tokens.

        A file with unchanged size and time is unchanged.
        """
        files = [
            [(str(file.path.absolute()), file.relative, file.size, file.modified_ns) for file in part]
            for part in (self.train, self.validation)
        ]
        data = self.data
        facts = [_SCHEMA, self.vocabulary.digest, self.vocab_size, data.text_field, data.bin_dtype, files]
        if data.packing == "separate":
            facts.append(data.packing)
        if self.split == "within":
            facts.append([self.split, data.validation_fraction])
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        return Path(data.prepared_directory).expanduser() / key

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
    """Find the files and decide what is held out. Reads only the tokenizer and writes nothing.

    Raises DataError when a path is missing or has nothing to read, ConfigError when the tokenizer is
    unusable.
    """
    skips, validation_skips, path = SkipTally(), SkipTally(), data.validation_path
    prepared = Path(data.prepared_directory).expanduser()
    without = [prepared] if path is None else [prepared, Path(path).expanduser()]
    if data.train_path is None:
        corpus = standard_library()
    else:
        source = Path(data.train_path).expanduser()
        corpus = corpus_at("data.train_path", source, without=without, skips=skips, bin_dtype=data.bin_dtype)
    train, validation, split = corpus.files, tuple[CorpusFile, ...](), None
    if path is not None:
        validation = corpus_at(
            "data.validation_path",
            Path(path).expanduser(),
            without=[prepared],
            skips=validation_skips,
            bin_dtype=data.bin_dtype,
        ).files
    elif data.validation_fraction:
        split = "files"
        train, validation = hold_out(corpus.files, data.validation_fraction)
        if sum(file.size for file in validation) < _LEAST_BYTES_PER_TOKEN * data.sequence_length:
            train, validation, split = corpus.files, (), "within"
    return Preparation(
        name=corpus.name,
        train=train,
        validation=validation,
        split=split,
        skipped=skips.summary(),
        validation_skipped=validation_skips.summary(),
        data=data,
        vocab_size=model.architecture.vocab_size,
        vocabulary=load_vocabulary(model),
    )
