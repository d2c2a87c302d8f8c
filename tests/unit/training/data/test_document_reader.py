"""Documents that are read from files."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.training.data import document_reader
from trainyard.training.data.corpus import CorpusFile, SkipCount, SkipTally
from trainyard.training.data.document_reader import read_pieces


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
