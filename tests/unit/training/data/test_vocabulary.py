"""Text to tokens and back."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainyard.config.schema import ArchitectureConfig, ModelConfig
from trainyard.errors import ConfigError
from trainyard.training.data import vocabulary as vocabulary_module
from trainyard.training.data.vocabulary import (
    ByteVocabulary,
    TokenizerVocabulary,
    Vocabulary,
    load_vocabulary,
)

TEXT = "def main() -> int:\n    return 0  # ünïcode\n"


def tokenizer_file(folder: Path, *special: str) -> Path:
    """A small byte-level BPE with the special tokens `special`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def model(tokenizer: Path | str | None, vocab_size: int = 300) -> ModelConfig:
    return ModelConfig(
        name="m",
        tokenizer=None if tokenizer is None else str(tokenizer),
        architecture=ArchitectureConfig(vocab_size=vocab_size),
    )


def tokens_of(vocabulary: Vocabulary, *pieces: bytes | None) -> list[int]:
    arrays = list(vocabulary.token_arrays(iter(pieces)))
    assert all(array.dtype == vocabulary.dtype for array in arrays)
    return [int(token) for array in arrays for token in array]


@given(st.text(st.characters(codec="utf-8")))
def test_bytes_come_back_as_the_text_they_were(text: str) -> None:
    vocabulary = ByteVocabulary()
    assert vocabulary.decode(vocabulary.encode(text)) == text


@given(st.lists(st.integers(0, 40_000)))
def test_any_ids_decode_to_some_text(tokens: list[int]) -> None:
    ByteVocabulary().decode(tokens).encode()


def test_bytes_end_each_document_with_a_zero() -> None:
    assert tokens_of(ByteVocabulary(), b"ab", b"c", None, b"d", None) == [97, 98, 99, 0, 100, 0]
    assert ByteVocabulary().text_bytes(np.array([[97, 31_000]])) == 0, "a foreign vocabulary is unknown"


def test_a_tokenizer_file_encodes_and_decodes(tmp_path: Path) -> None:
    vocabulary = load_vocabulary(model(tokenizer_file(tmp_path, "<|endoftext|>")))
    tokens = vocabulary.encode(TEXT)
    assert vocabulary.decode(tokens) == TEXT
    assert len(tokens) < len(TEXT)
    assert max(tokens) < vocabulary.size <= 300
    assert vocabulary.dtype == "uint16"
    assert vocabulary.text_bytes(np.array([tokens, tokens])) == 2 * len(TEXT.encode())


def test_a_tokenizer_ends_each_document_with_its_token(tmp_path: Path) -> None:
    vocabulary = TokenizerVocabulary(tokenizer_file(tmp_path, "<pad>", "<|endoftext|>"))
    assert vocabulary.eos == 1
    expected = [*vocabulary.encode(TEXT), 1, *vocabulary.encode("x"), 1]
    assert tokens_of(vocabulary, TEXT.encode(), None, b"x", None) == expected


def test_the_configured_end_token_goes_before_the_usual_ones(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path, "</s>", "<stop>")
    assert TokenizerVocabulary(path).eos == 0
    configuration = tmp_path / "tokenizer_config.json"
    for token in ("<stop>", {"content": "<stop>", "lstrip": False}):
        configuration.write_text(json.dumps({"eos_token": token}))
        assert TokenizerVocabulary(path).eos == 1
    for content in ('{"eos_token": "<unknown>"}', "[]", "torn"):
        configuration.write_text(content)
        assert TokenizerVocabulary(path).eos == 0


def test_a_tokenizer_without_an_end_token_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tokenizer_file(tmp_path)
    vocabulary = TokenizerVocabulary(path)
    assert vocabulary.eos is None
    assert "no end-of-document token" in caplog.text
    assert tokens_of(vocabulary, b"x", None) == vocabulary.encode("x")


def test_many_pieces_are_encoded_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_module, "_BATCH_BYTES", 10)
    vocabulary = TokenizerVocabulary(tokenizer_file(tmp_path, "</s>"))
    pieces = [f"{n}\n".encode() * 3 for n in range(50)]
    expected = [token for piece in pieces for token in [*vocabulary.encode(piece.decode()), 0]]
    stream = [part for piece in pieces for part in (piece, None)]
    assert tokens_of(vocabulary, *stream) == expected


def test_the_digest_follows_the_tokenizer(tmp_path: Path) -> None:
    digests = [TokenizerVocabulary(tokenizer_file(tmp_path, end)).digest for end in ("</s>", "</s>", "<eos>")]
    assert digests[0] == digests[1] != digests[2]


def test_a_missing_tokenizer_is_named_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"nowhere/tokenizer.json does not exist.*model.tokenizer to null"):
        load_vocabulary(model("nowhere/tokenizer.json"))


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in ("", "[]", '{"model": {"type": "Unheard"}}'):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"tokenizer.json is not a Hugging Face tokenizer.json"):
            load_vocabulary(model(path))


def test_a_tokenizer_larger_than_the_model_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path)
    with pytest.raises(ConfigError, match=r"vocab_size, 256\. .* set model.architecture.vocab_size to \d+\."):
        load_vocabulary(model(path, vocab_size=256))
