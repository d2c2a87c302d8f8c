"""Open a Hugging Face dataset that is streamed during training, as tokens of the model's vocabulary.

Opening resolves the commit and reads the first texts, so that problems are reported before anything starts.
`stream_batches` reads the rest.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainyard.config.schema import Config, DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.training.data.batches import first_windows, plain_ids
from trainyard.training.data.config_of_run import with_revision
from trainyard.training.data.hugging_face import DatasetOrigin, TextStream, find_origin
from trainyard.training.data.stream_batches import StreamBatches
from trainyard.training.data.token_stream import Tokens, TokenStream
from trainyard.training.data.vocabulary import load_vocabulary


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
