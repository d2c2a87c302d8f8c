"""Read the documents in a file as UTF-8. A text file is one document; so is a row of JSON lines or Parquet.

A document arrives in pieces, so that a long text file is never completely in memory. Unreadable content
(binary files, rows without text) is counted and named, never guessed. This module does not tokenise.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from trainyard.training.data.corpus import NOT_UTF8, WHOLE, CorpusFile, Portion, SkipTally

Skip = Callable[[str], None]
"""Counts a row that is skipped, with the reason."""
Piece = bytes | None
"""A part of a document's text in UTF-8, cut between characters; None ends the document."""
_PIECE_BYTES = 1 << 20
_PARQUET_ROWS = 1024


def read_pieces(
    file: CorpusFile, text_field: str, skips: SkipTally, portion: Portion = WHOLE
) -> Iterator[Piece]:
    """Read the documents of `file` in pieces; `text_field` names the text in JSON lines and Parquet rows.

    A `portion` restricts reading to one side of the file's split.
    """
    if file.suffix == ".jsonl":
        return _json_lines(file, text_field, skips, portion)
    if file.suffix == ".parquet":
        return _parquet(file, text_field, skips, portion)
    return _text(file, skips, portion)


def _text(file: CorpusFile, skips: SkipTally, portion: Portion) -> Iterator[Piece]:
    problem = _text_problem(file.path)
    if problem is not None:
        skips.add(problem, file.relative)
        return
    size = file.path.stat().st_size
    start, end = portion.span(size, lambda cut: _place_to_cut(file.path, cut, size))
    if start < end or portion.is_complete:
        yield from _text_pieces(file.path, start, end)
        yield None


def _place_to_cut(path: Path, cut: int, size: int) -> int:
    """Move `cut` forward to the start of a line, searched in the first half of the rest of the file.

    When there is none, move it to the start of a character.
    """
    with path.open("rb") as file:
        file.seek(cut - 1)  # the line may start at `cut` itself
        text = file.read(min((size - cut) // 2 + 1, _PIECE_BYTES))
    if line_end := text.find(b"\n") + 1:
        return cut - 1 + line_end
    return cut + next((n for n, byte in enumerate(text[1:]) if byte & 0xC0 != 0x80), size - cut)


def _text_problem(path: Path) -> str | None:
    """The reason why `path` is not text, or None.

    Reads the complete file first, so that training never includes half a file.
    """
    decoder, is_first = codecs.getincrementaldecoder("utf-8")(), True
    try:
        with path.open("rb") as file:
            while chunk := file.read(_PIECE_BYTES):
                if is_first and chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    return "files in UTF-16 (save as UTF-8)"
                is_first = False
                if b"\0" in chunk:
                    return "binary files"
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return NOT_UTF8
    except OSError:
        return "unreadable files"
    return None


def _text_pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield the text of `path` from byte `start` to `end`, cut at line ends or between characters.

    A short text is one piece.
    """
    rest, left = b"", end - start
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(min(_PIECE_BYTES, left)):
            left -= len(chunk)
            text = rest + chunk
            if len(chunk) < _PIECE_BYTES:
                rest = text
                break
            cut = text.rfind(b"\n") + 1 or _character_end(text)
            yield text[:cut]
            rest = text[cut:]
    if rest:
        yield rest


def _character_end(text: bytes) -> int:
    """The end of the last certainly complete character in UTF-8 `text`, which has at least two characters."""
    cut = len(text) - 1
    while text[cut] & 0xC0 == 0x80 and cut > len(text) - 4:
        cut -= 1
    return cut or len(text)


def _json_lines(file: CorpusFile, text_field: str, skips: SkipTally, portion: Portion) -> Iterator[Piece]:
    try:
        count, row = 0, -1
        if not portion.is_complete:
            with file.path.open("rb") as lines:
                count = sum(1 for line in lines if line.strip())
        with file.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                row += 1
                if portion.is_complete or portion.has_row(row, count):
                    yield from _json_row(line, text_field, partial(_skip_row, skips, file, number))
    except OSError:
        skips.add("unreadable files", file.relative)


def _skip_row(skips: SkipTally, file: CorpusFile, number: int, reason: str) -> None:
    skips.add(reason, f"{file.relative}:{number}")


def _json_row(line: bytes, text_field: str, skip: Skip) -> Iterator[Piece]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return skip("lines that are not UTF-8")
    except (ValueError, RecursionError):
        return skip("lines that are not JSON")
    if not isinstance(row, dict) or not isinstance(row.get(text_field), str):
        return skip(f"rows without a text in {text_field!r} (data.text_field)")
    yield from _row_pieces(row[text_field], skip)
    return None


def _row_pieces(text: str, skip: Skip) -> Iterator[Piece]:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # JSON can escape half a surrogate pair, which is not a character
        return skip("lines that are not UTF-8")
    if not encoded:
        return skip("rows with an empty text")
    yield encoded
    yield None
    return None


def _parquet(file: CorpusFile, text_field: str, skips: SkipTally, portion: Portion) -> Iterator[Piece]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file.path) as table:
            if text_field not in table.schema_arrow.names:
                skips.add(f"files without the column {text_field!r} (data.text_field)", file.relative)
                return
            count = table.metadata.num_rows
            batches = table.iter_batches(_PARQUET_ROWS, columns=[text_field])
            texts = (text for batch in batches for text in batch.column(0).to_pylist())
            for row, text in enumerate(texts):
                if portion.is_complete or portion.has_row(row, count):
                    yield from _parquet_row(text, partial(_skip_row, skips, file, row + 1))
    except (pyarrow.ArrowException, OSError):
        skips.add("unreadable files", file.relative)


def _parquet_row(text: object, skip: Skip) -> Iterator[Piece]:
    if not isinstance(text, str):
        return skip("rows whose text is missing or no string")
    yield from _row_pieces(text, skip)
    return None
