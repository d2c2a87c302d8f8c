"""Splitting each file for validation: the two parts together are the file, and do not overlap."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.training.data.corpus import WHOLE, CorpusFile, Portion, SkipTally
from trainyard.training.data.document_reader import read_pieces

FRACTIONS = st.sampled_from([0.001, 0.01, 0.05, 0.1, 0.33, 0.5, 0.9, 0.99])


def sides(fraction: float) -> tuple[Portion, Portion]:
    return Portion(fraction), Portion(fraction, held_out=True)


def read(path: Path, portion: Portion) -> bytes:
    file = CorpusFile(path, path.name, path.stat().st_size, 0)
    return b"".join(piece or b"\0" for piece in read_pieces(file, "text", SkipTally(), portion))


@given(size=st.integers(0, 10**13), fraction=FRACTIONS)
def test_the_two_spans_cover_everything_and_the_share_is_exact(size: int, fraction: float) -> None:
    train, held_out = (side.span(size) for side in sides(fraction))
    assert (train[0], train[1], held_out[1]) == (0, held_out[0], size)
    assert abs((held_out[1] - held_out[0]) - size * fraction) <= max(1, size * 1e-12)


@given(rows=st.integers(2, 500), fraction=FRACTIONS)
def test_every_row_is_on_one_side_and_both_sides_have_some(rows: int, fraction: float) -> None:
    train, held_out = sides(fraction)
    assert all(train.has_row(row, rows) is not held_out.has_row(row, rows) for row in range(rows))
    count = sum(held_out.has_row(row, rows) for row in range(rows))
    assert count == max(1, math.floor(round(rows * fraction, 9)))
    assert count < rows


def test_the_only_row_is_trained_on() -> None:
    train, held_out = sides(0.9)
    assert train.has_row(0, 1)
    assert not held_out.has_row(0, 1)


def test_rows_that_are_added_at_the_end_move_none_that_was_there() -> None:
    held_out = Portion(0.05, held_out=True)
    before = [held_out.has_row(row, 100) for row in range(100)]
    assert [held_out.has_row(row, 1000) for row in range(100)] == before


@given(
    text=st.text(st.sampled_from("aä€😀 \n\r"), min_size=1, max_size=300), fraction=st.floats(0.001, 0.999)
)
def test_both_sides_of_any_text_are_text_and_together_all_of_it(
    tmp_path_factory: pytest.TempPathFactory, text: str, fraction: float
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    train, held_out = (read(path, side) for side in sides(fraction))
    assert train.removesuffix(b"\0").decode() + held_out.removesuffix(b"\0").decode() == text


def test_a_text_is_cut_where_a_line_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"".join(b"line %03d\r\n" % number for number in range(100)))
    train, held_out = (read(path, side) for side in sides(0.1))
    assert train.endswith(b"line 089\r\n\0")
    assert held_out.startswith(b"line 090\r\n")
    train, held_out = (read(path, side) for side in sides(0.105))
    assert held_out.startswith(b"line 090\r\n")


def test_a_text_larger_than_a_piece_is_split_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    content = "".join(f"Zeile {number}: ü\n" for number in range(200_000)).encode()
    path.write_bytes(content)
    train, held_out = (read(path, side).removesuffix(b"\0") for side in sides(0.4))
    assert train + held_out == content
    assert len(held_out) == pytest.approx(0.4 * len(content), rel=1e-4)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows_are_not_split(tmp_path: Path, suffix: str) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / f"a.{suffix}"
    texts = [f"row {number}" for number in range(40)]
    if suffix == "jsonl":
        path.write_text("".join(f'{{"text": "{text}"}}\n\n' for text in texts))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    train, held_out = (read(path, side).decode().split("\0")[:-1] for side in sides(0.05))
    assert held_out == ["row 19", "row 39"]
    assert train == [text for text in texts if text not in held_out]
    assert read(path, WHOLE).decode().split("\0")[:-1] == texts
