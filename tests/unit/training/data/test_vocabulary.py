"""Documents that are read from files; text to tokens and back."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainyard.config.schema import ArchitectureConfig, ModelConfig
from trainyard.errors import ConfigError
from trainyard.training.data import document_reader
from trainyard.training.data import vocabulary as vocabulary_module
from trainyard.training.data.corpus import CorpusFile, SkipCount, SkipTally
from trainyard.training.data.document_reader import read_pieces
from trainyard.training.data.vocabulary import (
    ByteVocabulary,
    TokenizerVocabulary,
    Vocabulary,
    load_vocabulary,
)


def read(path: Path, skips: SkipTally | None = None, text_field: str = "text") -> list[bytes]:
    """The documents of `path`, each joined from its pieces."""
    file = CorpusFile(path, path.name, path.stat().st_size, 0)
    result, pieces = [], b""
    for piece in read_pieces(file, text_field, skips or SkipTally()):
        if piece is None:
            result.append(pieces)
            pieces = b""
        else:
            pieces += piece
    assert not pieces, "the last document was not ended"
    return result


def write_text_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def table(path: Path, **columns: object) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    content = "zwölf Boxkämpfer\r\n\n  jagen".encode()
    for suffix in ("txt", "py", "md"):
        assert read(write_text_file(tmp_path / f"a.{suffix}", content)) == [content]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GIF89a\0\xff\xff", "binary files"),
        ("utf-16".encode("utf-16"), "files in UTF-16 (save as UTF-8)"),
        ("Käse".encode("latin-1"), "files that are not UTF-8"),
        ("Käse".encode()[:2], "files that are not UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_passed_over_and_named(tmp_path: Path, content: bytes, reason: str) -> None:
    skips = SkipTally()
    assert read(write_text_file(tmp_path / "a.txt", content), skips) == []
    assert skips.summary() == (SkipCount(reason, 1, ("a.txt",)),)


def test_a_file_is_judged_to_its_end_before_any_of_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_reader, "_PIECE_BYTES", 8)
    path = write_text_file(tmp_path / "a.txt", b"fine for a long while, then: \0")
    pieces = read_pieces(CorpusFile(path, "a.txt", 30, 0), "text", SkipTally())
    assert list(pieces) == []


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")), st.integers(4, 9))
def test_pieces_are_complete_characters_and_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece_bytes: int
) -> None:
    path = write_text_file(tmp_path_factory.mktemp("pieces") / "a.txt", text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_reader, "_PIECE_BYTES", piece_bytes)
        pieces = list(read_pieces(CorpusFile(path, "a.txt", 1, 0), "text", SkipTally()))
    assert pieces.pop() is None
    assert "".join(piece.decode() for piece in pieces if piece is not None) == text
    assert all(pieces)


def test_a_piece_ends_with_a_line_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_reader, "_PIECE_BYTES", 8)
    path = write_text_file(tmp_path / "a.txt", b"one\ntwo\nthree\nfour\nfive")
    pieces = list(read_pieces(CorpusFile(path, "a.txt", 18, 0), "text", SkipTally()))
    assert pieces == [b"one\ntwo\n", b"three\n", b"four\nfive", None]


def test_a_row_of_json_lines_is_a_document(tmp_path: Path) -> None:
    rows = [{"text": "one\ntwo", "id": 1}, {"id": 2, "text": "drei €"}]
    content = "\r\n\n".join(json.dumps(row) for row in rows).encode()
    assert read(write_text_file(tmp_path / "a.jsonl", content)) == [b"one\ntwo", "drei €".encode()]
    marked = write_text_file(tmp_path / "b.jsonl", b'\xef\xbb\xbf{"content": "x", "text": "y"}')
    assert read(marked) == [b"y"], "a byte order mark does not hide the first row"
    assert read(marked, text_field="content") == [b"x"]


@each_case(
    ("line", "reason"),
    [
        (b'{"text": "\xff"}', "lines that are not UTF-8"),
        (b'{"text": "\\ud800"}', "lines that are not UTF-8"),
        (b'{"text": "cut o', "lines that are not JSON"),
        (b"[" * 100_000, "lines that are not JSON"),
        (b'{"body": "x"}', "rows without a text in 'text' (data.text_field)"),
        (b'{"text": 5}', "rows without a text in 'text' (data.text_field)"),
        (b'["text"]', "rows without a text in 'text' (data.text_field)"),
        (b'{"text": ""}', "rows with an empty text"),
    ],
)
def test_a_bad_row_is_passed_over_with_its_line_and_the_others_are_used(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    skips = SkipTally()
    path = write_text_file(tmp_path / "a.jsonl", b'{"text": "x"}\n' + line + b'\n{"text": "y"}\n')
    assert read(path, skips) == [b"x", b"y"]
    assert skips.summary() == (SkipCount(reason, 1, ("a.jsonl:2",)),)


@given(st.binary())
def test_any_bytes_as_json_lines_are_read_or_counted(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    skips = SkipTally()
    path = write_text_file(tmp_path_factory.mktemp("fuzz") / "a.jsonl", content)
    texts = read(path, skips)
    lines = [line for line in content.split(b"\n") if line.strip()]
    assert len(texts) + sum(skipped.count for skipped in skips.summary()) == len(lines)


def test_a_row_of_parquet_is_a_document(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", id=[1, 2, 3], text=["one", "zwei ü", "three"])
    assert read(path) == [b"one", "zwei ü".encode(), b"three"]


def test_rows_and_tables_of_parquet_without_text_are_counted(tmp_path: Path) -> None:
    skips = SkipTally()
    assert read(table(tmp_path / "a.parquet", text=["one", None, "", "two"]), skips) == [b"one", b"two"]
    assert read(table(tmp_path / "b.parquet", body=["one"]), skips) == []
    assert set(skips.summary()) == {
        SkipCount("rows whose text is missing or no string", 1, ("a.parquet:2",)),
        SkipCount("rows with an empty text", 1, ("a.parquet:3",)),
        SkipCount("files without the column 'text' (data.text_field)", 1, ("b.parquet",)),
    }


def test_a_torn_parquet_file_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", text=["one"] * 100)
    skips = SkipTally()
    assert read(write_text_file(tmp_path / "b.parquet", path.read_bytes()[:-20]), skips) == []
    assert skips.summary() == (SkipCount("unreadable files", 1, ("b.parquet",)),)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_file_that_vanished_is_named(tmp_path: Path, name: str) -> None:
    skips = SkipTally()
    assert list(read_pieces(CorpusFile(tmp_path / name, name, 1, 0), "text", skips)) == []
    assert skips.summary() == (SkipCount("unreadable files", 1, (name,)),)


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
