"""Files of tokens."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import DataError
from trainyard.training.data import token_files
from trainyard.training.data.token_files import TokenFile, TokenWriter, cut_end, read_token_file


def write(path: Path, *parts: list[int], dtype: str = "uint16") -> TokenFile:
    with TokenWriter(path, dtype) as writer:
        for part in parts:
            writer.write(np.array(part, dtype=dtype))
        return writer.finish()


@given(st.lists(st.lists(st.integers(0, 65_535))), st.sampled_from(["uint16", "uint32"]))
def test_written_tokens_are_read(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], dtype: str
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "a.bin"
    file = write(path, *parts, dtype=dtype)
    expected = [token for part in parts for token in part]
    assert file.tokens == len(expected)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    if expected:
        assert file.open().tolist() == expected


def test_tokens_are_stored_little_endian_and_mapped_so_that_they_cannot_be_changed(tmp_path: Path) -> None:
    tokens = write(tmp_path / "a.bin", [1, 258]).open()
    assert (tmp_path / "a.bin").read_bytes() == b"\x01\x00\x02\x01"
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 5


@pytest.mark.parametrize("content", [None, b"\0\0\0", b"\0" * 10])
def test_a_file_that_changed_is_not_opened(tmp_path: Path, content: bytes | None) -> None:
    file = write(tmp_path / "a.bin", [1, 2, 3])
    if content is None:
        file.path.unlink()
    else:
        file.path.write_bytes(content)
    assert not file.is_complete
    with pytest.raises(DataError, match=r"a\.bin: missing, or no longer 3 uint16 tokens.*trainyard prepare"):
        file.open()


def test_a_pretokenised_file_is_read_in_parts_and_a_token_beyond_the_vocabulary_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "_CHUNK_TOKENS", 2)
    path = write(tmp_path / "a.bin", [1, 2, 3, 100, 200]).path
    parts = read_token_file(path, dtype="uint16", vocab_size=201)
    assert [part.tolist() for part in parts] == [[1, 2], [3, 100], [200]]
    with pytest.raises(
        DataError, match=r"a\.bin: token 100 at position 3, .*vocab_size, 100\. .*data\.bin_dtype"
    ):
        list(read_token_file(path, dtype="uint16", vocab_size=100))


def test_the_end_of_the_tokens_is_moved_with_the_starts_of_its_documents(tmp_path: Path) -> None:
    starts = write(tmp_path / "a.documents", [0, 5, 8], dtype="int64")
    file = replace(write(tmp_path / "a.bin", list(range(10))), documents=starts)
    kept, end = cut_end(file, 0.4, tmp_path / "b.bin")
    assert end is not None
    assert kept.open().tolist() == [0, 1, 2, 3, 4, 5]
    assert end.open().tolist() == [6, 7, 8, 9]
    found = [part.documents.open().tolist() for part in (kept, end) if part.documents]
    assert found == [[0, 5], [0, 2]]
    assert all(part.verify() for part in (kept, end))
    assert cut_end(kept, 0.1, tmp_path / "c.bin") == (kept, None)
