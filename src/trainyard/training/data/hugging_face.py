"""Stream the texts of a Hugging Face dataset in a fixed order, with a position to continue from.

The texts are read during training and are not stored. They come from the Hub at a recorded commit, or from
a local folder in a format that the `datasets` library reads. Opening reads the first texts, so that problems
are reported before anything starts; `stream_batches` reads and tokenises the rest.
"""

import copy
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainyard.config.schema import Config, DataConfig, HuggingFaceConfig, ModelConfig
from trainyard.errors import ConfigError, DataError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.training.data.batches import first_windows, plain_ids
from trainyard.training.data.config_of_run import with_revision
from trainyard.training.data.stream_batches import StreamBatches, StreamPosition, Tokens, TokenStream
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.weights.hub_model import first_line, hub_error

_SECONDS = 30.0
_COMMIT_DIGITS = 40
_KEY = "data.hugging_face"


@dataclass(frozen=True)
class DatasetOrigin:
    """The dataset and the revision that is read."""

    dataset: str
    """Its name on the Hub, or a local folder."""
    revision: str | None
    """The commit on the Hub; None for a local folder."""

    @cached_property
    def content(self) -> str:
        """An identifier of the data: the dataset and its commit, or a digest of each file of the folder."""
        if self.revision is not None:
            return f"{self.dataset}@{self.revision}"
        total, folder = hashlib.sha256(), Path(self.dataset)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            relative = path.relative_to(folder).as_posix()
            if not any(part.startswith(".") for part in relative.split("/")):
                total.update(b"%s %s\0" % (sha256_of_file(path).encode(), os.fsencode(relative)))
        return total.hexdigest()


def find_origin(config: HuggingFaceConfig) -> DatasetOrigin:
    """Resolve `revision`, or the newest revision, to a commit; a local folder has no commit.

    Raises ServiceError when the Hub cannot be reached, DataError when it has no such dataset or commit.
    """
    assert config.dataset is not None
    if Path(config.dataset).is_dir():
        if config.revision is not None:
            raise ConfigError(
                f"{_KEY}.revision: {config.dataset} is a local folder, which has no commits. Set it to null."
            )
        return DatasetOrigin(config.dataset, None)
    revision = config.revision
    if revision is None or len(revision) != _COMMIT_DIGITS:
        from huggingface_hub import HfApi

        with _explain_errors(config.dataset):
            revision = HfApi().dataset_info(config.dataset, revision=revision, timeout=_SECONDS).sha
    return DatasetOrigin(config.dataset, revision)


class TextStream:
    """The texts of one split, in the dataset's own order."""

    def __init__(
        self, config: HuggingFaceConfig, split: str, *, revision: str | None, text_field: str
    ) -> None:
        """Read only the list of files. Raises ServiceError and DataError."""
        import datasets

        assert config.dataset is not None
        datasets.disable_progress_bars()
        self._name, self._split, self._text_field = config.dataset, split, text_field
        with _explain_errors(self._name):
            self._rows = datasets.load_dataset(
                config.dataset, config.name, split=split, revision=revision, streaming=True
            )
        self._place: StreamPosition = None
        self._iterator = iter(self._rows)

    def part(self, number: int, of: int) -> "TextStream":
        """Every `of`-th file from `number` on, or every `of`-th row if these are not as many for each number.

        Nothing is read yet.
        """
        import datasets.distributed

        part = copy.copy(self)
        with _explain_errors(self._name):
            # Parts of one dataset would share the iterator's state, and so mix up their positions.
            rows = copy.deepcopy(self._rows)
            part._rows = datasets.distributed.split_dataset_by_node(rows, rank=number, world_size=of)
        part._place, part._iterator = None, iter(part._rows)
        return part

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        """Read the next `count` rows from `place` on: their texts in UTF-8, and the position after them.

        Rows without a text are left out, so the list may be shorter. The position is None at the end of the
        split. Raises ServiceError when the Hub cannot be reached, DataError when a row lacks the text field.
        """
        if place != self._place:
            self._rows.load_state_dict(place)
            self._iterator = iter(self._rows)
        texts: list[bytes] = []
        with _explain_errors(self._name):
            for _ in range(count):
                if (row := next(self._iterator, None)) is None:
                    self._place = None
                    self._rows.load_state_dict(None)
                    self._iterator = iter(self._rows)
                    return texts, None
                texts += self._text_of(row)
            self._place = self._rows.state_dict()
        return texts, self._place

    def _text_of(self, row: dict[str, Any]) -> list[bytes]:
        """The text of the row in a list; an empty list when the row has no text."""
        if self._text_field not in row:
            raise DataError(
                f"{self._name} ({self._split}): rows have no {self._text_field!r}, only "
                f"{', '.join(map(repr, row))}. Set data.text_field to the one that holds the text."
            )
        text = row[self._text_field]
        try:
            return [text.encode()] if isinstance(text, str) and text else []
        except UnicodeEncodeError:  # JSON can escape half a surrogate pair, which is not a character
            return []


@contextmanager
def _explain_errors(dataset: str) -> Iterator[None]:
    """Convert the errors of the libraries to errors that name the fix."""
    import datasets.exceptions
    import pyarrow
    from huggingface_hub import errors

    try:
        yield
    except (
        *(errors.RepositoryNotFoundError, errors.RevisionNotFoundError, datasets.exceptions.DatasetsError),
        *(ValueError, RuntimeError, pyarrow.ArrowException),
    ) as error:
        raise DataError(
            f"{_KEY}.dataset: {dataset} cannot be read ({first_line(error)}). Check its name, split, "
            "validation_split and revision; a dataset that is private or gated needs HF_TOKEN."
        ) from None
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]  # from its HTTP client
        instead = f"put the files into a local folder and set {_KEY}.dataset to it."
        raise hub_error(dataset, error, instead) from None


@dataclass(frozen=True)
class StreamedData:
    """An open stream."""

    name: str
    """The name shown to people."""
    origin: DatasetOrigin
    read: tuple[str | None, ...]
    """The configuration name, the splits, the text field and the digest of the vocabulary."""
    train: TokenStream
    validation: TokenStream | None
    shuffled: int
    start: Tokens
    """The first tokens of the validation split, else of the training split."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that determines the tokens: commit or content, splits, field, vocabulary.

        For a local folder, the first access reads every byte.
        """
        return hashlib.sha256(json.dumps([self.origin.content, *self.read]).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The data's part of `run.json`; the number of tokens is not known."""
        known = {"name": self.name, "fingerprint": self.fingerprint, "revision": self.origin.revision}
        return {key: value for key, value in known.items() if value is not None}

    def batches(self, *, sequence_length: int, batch_size: int, seed: int) -> StreamBatches:
        """The training batches of a run."""
        return StreamBatches(
            self.train,
            sequence_length=sequence_length,
            batch_size=batch_size,
            seed=seed,
            shuffled=self.shuffled,
        )

    def validation_windows(self, *, length: int, count: int) -> Tokens:
        """Up to `count` windows `[window, length + 1]` from the start of the validation split."""
        if self.validation is None:
            return first_windows(self.start[:0], length=length, count=count)
        tokens = self.validation.first_tokens(count * length + 1)
        return first_windows(tokens, length=length, count=count)

    def prompt(self, count: int) -> list[int]:
        """The first tokens of the validation split, else of the training split."""
        return [int(token) for token in plain_ids(self.start[:count])]

    def pinned_config(self, config: Config) -> Config:
        """`config` with the commit that is read, so that it names the same data later."""
        return with_revision(config, self.origin.revision)


def open_stream(data: DataConfig, model: ModelConfig) -> StreamedData:
    """Resolve the dataset of `data.hugging_face` and read its first tokens.

    Raises ServiceError when the Hub cannot be reached, DataError when the dataset does not exist or is too
    short, ConfigError when the tokenizer is unusable.
    """
    vocabulary, config = load_vocabulary(model), data.hugging_face
    origin = find_origin(config)
    name = f"{config.dataset} ({config.name})" if config.name else str(config.dataset)

    def open_split(split: str) -> TokenStream:
        texts = TextStream(config, split, revision=origin.revision, text_field=data.text_field)
        return TokenStream(texts, vocabulary, f"{name}, {split}", marked=data.packing == "separate")

    train = open_split(config.split)
    validation = open_split(config.validation_split) if config.validation_split else None
    start = [_start(stream, data) for stream in (train, validation) if stream is not None][-1]
    read = (config.name, config.split, config.validation_split, data.text_field, vocabulary.digest)
    return StreamedData(name, origin, read, train, validation, config.shuffled_sequences, start)


def _start(stream: TokenStream, data: DataConfig) -> Tokens:
    """The first sequence of a stream. Raises DataError when it has none."""
    tokens = stream.first_tokens(data.sequence_length + 1)
    if tokens.size <= data.sequence_length:
        raise DataError(
            f"{stream.name} has {tokens.size:,} tokens, less than one sequence (data.sequence_length "
            f"{data.sequence_length:,} and the token after it)."
        )
    return tokens
