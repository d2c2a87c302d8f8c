"""Convert text to tokens and back, as bytes or with a Hugging Face tokenizer file.

It encodes pieces of documents and ends each document with a separator. It reads no corpus and writes no file.
"""

import hashlib
import json
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.config.schema import ModelConfig
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.untrusted_files import read_json_object
from trainyard.training.data.document_reader import Piece
from trainyard.training.weights.pretrained import tokenizer_file

TokenArray = npt.NDArray[np.integer[Any]]
_BATCH_BYTES = 4 << 20
_logger = logging.getLogger(__name__)
# The names of the end-of-document token in published tokenizers (Llama 2, GPT-2, Llama 3, Gemma, …).
_EOS_NAMES = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "<|im_end|>", "[SEP]")


class ByteVocabulary:
    """Every byte of UTF-8 text is a token; 0x00, which text does not contain, ends a document."""

    size = 256
    """Token ids are below this."""
    eos: int | None = 0
    """The token that ends a document; None when the tokenizer has none."""
    dtype = "uint8"
    """The smallest of uint8, uint16, uint32 that holds every id."""
    digest = "bytes"
    """Two vocabularies with equal digests give equal tokens."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Decode to text. Ids above 255, which a larger model can produce, and broken UTF-8 become U+FFFD."""
        return bytes(token if token < self.size else 0xFF for token in tokens).decode("utf-8", "replace")

    def text_bytes(self, tokens: npt.NDArray[np.integer[Any]]) -> int:
        """The number of UTF-8 bytes that `tokens` (any shape) decode to: separators count nothing.

        0 if it is not known, because an id is above 255.
        """
        return int(np.count_nonzero(tokens)) if tokens.size and int(tokens.max()) < self.size else 0

    def token_arrays(self, pieces: Iterator[Piece]) -> Iterator[TokenArray]:
        """Yield the tokens of a stream of pieces; `eos` ends each document."""
        separator = np.zeros(1, np.uint8)
        for piece in pieces:
            yield separator if piece is None else np.frombuffer(piece, np.uint8)


class TokenizerVocabulary:
    """A `tokenizer.json` of Hugging Face's tokenizers library."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        if not path.is_file():
            raise ConfigError(
                f"model.tokenizer: {path} does not exist. Put the model's tokenizer.json there, or set "
                "model.tokenizer to null (and model.architecture.vocab_size to 256) to train on bytes."
            )
        with _TokenizerErrors(path):
            self._tokenizer = Tokenizer.from_file(str(path))
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        # Ids may have gaps, so the number of tokens would be too small.
        self.size = max(vocabulary.values(), default=-1) + 1
        self.dtype = "uint16" if self.size <= 1 << 16 else "uint32"
        self.digest = _digest(path)
        # As tokenizer_config.json beside the file says, else the first usual name in use.
        names = (_configured_eos(path.with_name("tokenizer_config.json")), *_EOS_NAMES)
        self.eos: int | None = next((vocabulary[name] for name in names if name in vocabulary), None)
        if self.eos is None:
            _logger.warning("%s has no end-of-document token: documents follow each other unmarked", path)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def text_bytes(self, tokens: npt.NDArray[np.integer[Any]]) -> int:
        rows = tokens.reshape(-1, tokens.shape[-1]).tolist()
        return sum(len(text.encode()) for text in self._tokenizer.decode_batch(rows))

    def token_arrays(self, pieces: Iterator[Piece]) -> Iterator[TokenArray]:
        """Yield the tokens. A text that is longer than one piece is encoded piece by piece."""
        separator = [] if self.eos is None else [self.eos]
        for batch in _batches(pieces):
            texts = [piece.decode("utf-8", "replace") for piece in batch if piece is not None]
            encodings = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
            for piece in batch:
                ids = separator if piece is None else next(encodings).ids
                yield np.array(ids, dtype=self.dtype)


Vocabulary = ByteVocabulary | TokenizerVocabulary  # text to token ids and back


def load_vocabulary(model: ModelConfig) -> Vocabulary:
    """Load the vocabulary of `model.tokenizer`, or bytes.

    Raises ConfigError when the tokenizer is unusable or too large.
    """
    if model.tokenizer is None:
        return ByteVocabulary()
    vocabulary = TokenizerVocabulary(tokenizer_file(model.tokenizer))
    if vocabulary.size > model.architecture.vocab_size:
        raise ConfigError(
            f"model.tokenizer: {model.tokenizer} has {vocabulary.size:,} tokens, more than "
            f"model.architecture.vocab_size, {model.architecture.vocab_size:,}. "
            "Name the tokenizer of the weights, or for random weights set model.architecture.vocab_size to "
            f"{vocabulary.size}. Nothing was started."
        )
    return vocabulary


def encode_pieces(vocabulary: Vocabulary, pieces: Iterator[Piece]) -> Iterator[tuple[TokenArray, bool]]:
    """Yield the tokens of each piece, and whether a document begins with them.

    There is one array of tokens per piece, but the vocabulary may read pieces ahead of the arrays it yields.
    """
    begins: deque[bool] = deque()

    def note_starts() -> Iterator[Piece]:
        is_new = True
        for piece in pieces:
            begins.append(is_new)
            is_new = piece is None
            yield piece

    for tokens in vocabulary.token_arrays(note_starts()):
        yield tokens, begins.popleft()


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Group pieces into batches that keep the tokenizer's threads busy."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece or b"")
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _TokenizerErrors(AbstractContextManager[None]):
    """Converts the plain Exception of the tokenizers library, its only class, to a ConfigError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is Exception:
            raise ConfigError(
                f"model.tokenizer: {self._path} is not a Hugging Face tokenizer.json ({error})"
            ) from None


def _configured_eos(path: Path) -> str | None:
    try:
        token = read_json_object(path).get("eos_token")
    except (OSError, DamagedFileError):
        return None
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _digest(path: Path) -> str:
    import tokenizers

    eos = _configured_eos(path.with_name("tokenizer_config.json"))
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps([content, eos, tokenizers.__version__]).encode()).hexdigest()
