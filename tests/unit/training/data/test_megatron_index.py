"""Megatron datasets are read as they were written, and every damage is named."""

import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.config.schema import ArchitectureConfig, DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.training.data.megatron_index import read_megatron_index
from trainyard.training.data.token_files import PreparedData
from trainyard.training.data.tokenize_corpus import prepare_data

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
HEAD = 34
"""Bytes before the lengths."""


def write(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: str = "uint16") -> Path:
    """A dataset as Megatron's IndexedDatasetBuilder writes it; documents are sequences of tokens."""
    sequences = [np.array(sequence, f"<{np.dtype(dtype).str[1:]}") for part in documents for sequence in part]
    tokens = prefix.with_name(f"{prefix.name}.bin")
    tokens.write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    offsets = np.cumsum([0, *(sequence.nbytes for sequence in sequences)])[:-1].astype("<i8")
    marks = np.cumsum([0, *map(len, documents)]).astype("<i8")
    start = b"MMIDIDX\0\0" + struct.pack("<QB", 1, CODES[dtype])
    counts = struct.pack("<QQ", len(sequences), len(marks))
    content = start + counts + lengths.tobytes() + offsets.tobytes() + marks.tobytes()
    tokens.with_suffix(".idx").write_bytes(content)
    return tokens


def prepare(folder: Path, path: Path, vocab_size: int = 256, **changes: object) -> PreparedData:
    values = {
        "train_path": str(path),
        "prepared_directory": str(folder / "prepared"),
        "sequence_length": 4,
        "validation_fraction": 0.0,
    }
    model = ModelConfig(name="m", architecture=ArchitectureConfig(vocab_size=vocab_size))
    return prepare_data(DataConfig.model_validate(values | changes), model)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 127), max_size=4), max_size=3), max_size=5),
    st.sampled_from(sorted(CODES)),
)
def test_written_tokens_are_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], dtype: str
) -> None:
    tokens = write(tmp_path_factory.mktemp("megatron") / "a_text_document", documents, dtype)
    index = read_megatron_index(tokens.with_suffix(".idx"), tokens)
    assert index.dtype == dtype
    sequences = [sequence for part in documents for sequence in part]
    assert index.lengths.tolist() == [len(sequence) for sequence in sequences]
    bounds = index.documents.tolist()
    found = [sequences[start:end] for start, end in pairwise(bounds)]
    assert found == documents


def test_a_dataset_states_where_its_documents_start(tmp_path: Path) -> None:
    tokens = write(tmp_path / "m", [[[0, 1], [2]], [[]], [[3, 4, 5, 6]]])
    documents = prepare(tmp_path, tokens, packing="separate").train.documents
    assert documents is not None and documents.open().tolist() == [0, 3]


@each_case("dtype", sorted(CODES))
@each_case("name", ["a.v1.bin", "a.v1", "a.v1.idx"])
def test_a_dataset_is_named_by_its_file_its_prefix_or_its_index(
    tmp_path: Path, name: str, dtype: str
) -> None:
    tokens = write(tmp_path / "a.v1", [[[1, 2, 3]], [[4], [5, 127]]], dtype)
    prepared = prepare(tmp_path, tmp_path / name, bin_dtype="uint32")
    assert (prepared.train.path, prepared.train.dtype) == (tokens, dtype)
    assert prepared.train.open().tolist() == [1, 2, 3, 4, 5, 127]


def test_a_folder_of_datasets_and_bare_tokens_is_joined(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    write(folder / "b", [[[4, 5]], [[6, 7]]], "int32")
    write(folder / "a", [[[1, 2, 3]]], "uint8")
    np.array([8, 9], "<u2").tofile(folder / "c.bin")
    write(tmp_path / "held", [[[6, 7, 8, 9, 1, 2]]], "int32")
    prepared = prepare(tmp_path, folder, validation_path=str(tmp_path / "held"))
    assert prepared.train.open().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert prepared.validation is not None and prepared.validation.open().tolist() == [6, 7, 8, 9, 1, 2]
    assert (prepared.train.dtype, prepared.train_files, prepared.skipped) == ("int32", 3, ())


def test_a_new_index_prepares_anew(tmp_path: Path) -> None:
    tokens = write(tmp_path / "a", [[[1, 2, 3, 4, 5]]])
    assert not prepare(tmp_path, tokens).reused
    assert prepare(tmp_path, tokens).reused
    before = tokens.stat()
    write(tmp_path / "a", [[[1, 2]], [[3, 4, 5]]])
    assert tokens.stat().st_size == before.st_size
    assert not prepare(tmp_path, tokens).reused


@pytest.mark.parametrize(("dtype", "bad"), [("int16", -1), ("int64", -(2**40)), ("int32", 256)])
def test_ids_outside_the_vocabulary_are_refused_with_their_place(
    tmp_path: Path, dtype: str, bad: int
) -> None:
    tokens = write(tmp_path / "a", [[[1, 2, bad, 3, 4, 5]]], dtype)
    with pytest.raises(DataError, match=rf"a\.bin: token {bad:,} at position 2, .*vocab_size, 256\. "):
        prepare(tmp_path, tokens)


DAMAGES = {
    "another magic": (0, b"X", r"not the index of a Megatron dataset.*move the \.idx file away"),
    "version 2": (9, b"\2", "version 2, and only 1 is known"),
    "float32": (17, b"\7", "of type float32, which holds no token ids"),
    "float64": (17, b"\6", "of type float64, which holds no token ids"),
    "an unknown type": (17, b"\x2a", "of type 42, which holds no token ids"),
    "too many sequences": (18, struct.pack("<Q", 2**60), "where its 1,152,921,504,606,846,976 sequences"),
    "a length below zero": (HEAD + 4, struct.pack("<i", -1), "sequence 1 has a length below zero"),
    "a longer sequence": (HEAD, struct.pack("<i", 9), "sequence 1 starts at byte 4, not where"),
    "an offset beyond the tokens": (HEAD + 8, struct.pack("<q", 10**15), "sequence 0 starts at byte 1,0"),
    "a last sequence beyond the tokens": (HEAD + 4, struct.pack("<i", 9), r"are 22 bytes, and a\.bin has 10"),
    "a wider type": (17, b"\4", "sequence 1 starts at byte 4, not where the one before it ends"),
    "documents that go back": (HEAD + 32, struct.pack("<q", 3), "documents are not its 2 sequences in order"),
    "a last document too early": (HEAD + 40, struct.pack("<q", 1), "documents are not its 2 sequences"),
    "a first document too late": (HEAD + 24, struct.pack("<q", 1), "documents are not its 2 sequences"),
}


@each_case("damage", DAMAGES)
def test_a_damaged_index_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    place, content, message = DAMAGES[damage]
    tokens = write(tmp_path / "a", [[[1, 2]], [[3, 4, 5]]])
    with tokens.with_suffix(".idx").open("r+b") as index:
        index.seek(place)
        index.write(content)
    with pytest.raises(DataError, match=rf"a\.idx: .*{message}"):
        prepare(tmp_path, tokens)


@pytest.mark.parametrize("kept", [0, 8, 20, HEAD, HEAD + 5, -1])
def test_an_index_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    tokens = write(tmp_path / "a", [[[1, 2]], [[3, 4, 5]]])
    index = tokens.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"a\.idx: "):
        prepare(tmp_path, tokens)


def test_tokens_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    tokens = write(tmp_path / "a", [[[1, 2]], [[3, 4, 5]]])
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"a\.idx: its sequences are 10 bytes, and a\.bin has 8"):
        prepare(tmp_path, tokens)


def test_an_index_without_its_tokens_is_a_file_like_any_other(tmp_path: Path) -> None:
    write(tmp_path / "a", [[[1, 2]]]).unlink()
    with pytest.raises(DataError, match=r"Skipped: 1 file with another suffix \(a\.idx\)"):
        prepare(tmp_path, tmp_path / "a.idx")
