"""Read the documents in a file as UTF-8. A text file is one document; so is a row of JSON lines or Parquet.

A document arrives in pieces, so that a long text file is never completely in memory. Unreadable content
(binary files, rows without text) is counted and named, never guessed. This module does not tokenise.
"""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.training.data.corpus import NOT_UTF8, CorpusFile, SkipTally


class SkippedRow(NamedTuple):
    """A row that holds no document."""

    reason: str


Piece = bytes | None  # a part of a document's text in UTF-8, cut between characters; None ends the document
_PIECE_BYTES = 1 << 20
_PARQUET_ROWS = 1024


def read_pieces(file: CorpusFile, text_field: str, skips: SkipTally) -> Iterator[Piece]:
    """Read the documents of `file` in pieces; `text_field` names the text in JSON lines and Parquet rows."""
    if file.suffix == ".jsonl":
        return _json_lines(file, text_field, skips)
    if file.suffix == ".parquet":
        return _parquet(file, text_field, skips)
    return _text(file, skips)


def _text(file: CorpusFile, skips: SkipTally) -> Iterator[Piece]:
    problem = _text_problem(file.path)
    if problem is not None:
        skips.add(problem, file.relative)
        return
    yield from _text_pieces(file.path)
    yield None


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


def _text_pieces(path: Path) -> Iterator[bytes]:
    """Yield the text of `path`, cut at line ends or between characters. A short text is one piece."""
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(_PIECE_BYTES):
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


def _json_lines(file: CorpusFile, text_field: str, skips: SkipTally) -> Iterator[Piece]:
    try:
        with file.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield from _row_pieces(_text_in_line(line, text_field), file, number, skips)
    except OSError:
        skips.add("unreadable files", file.relative)


def _text_in_line(line: bytes, text_field: str) -> str | SkippedRow:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return SkippedRow("lines that are not UTF-8")
    except (ValueError, RecursionError):
        return SkippedRow("lines that are not JSON")
    if isinstance(row, dict) and isinstance(text := row.get(text_field), str):
        return text
    return SkippedRow(f"rows without a text in {text_field!r} (data.text_field)")


def _parquet(file: CorpusFile, text_field: str, skips: SkipTally) -> Iterator[Piece]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file.path) as table:
            if text_field not in table.schema_arrow.names:
                skips.add(f"files without the column {text_field!r} (data.text_field)", file.relative)
                return
            batches = table.iter_batches(_PARQUET_ROWS, columns=[text_field])
            texts = (text for batch in batches for text in batch.column(0).to_pylist())
            for number, text in enumerate(texts, start=1):
                is_text = isinstance(text, str)
                found = text if is_text else SkippedRow("rows whose text is missing or no string")
                yield from _row_pieces(found, file, number, skips)
    except (pyarrow.ArrowException, OSError):
        skips.add("unreadable files", file.relative)


def _row_pieces(text: str | SkippedRow, file: CorpusFile, number: int, skips: SkipTally) -> Iterator[Piece]:
    """Yield the document of row `number`, or count the row as skipped."""
    try:
        encoded = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:  # JSON can escape half a surrogate pair, which is not a character
        encoded = SkippedRow("lines that are not UTF-8")
    if not encoded:
        encoded = SkippedRow("rows with an empty text")
    if isinstance(encoded, SkippedRow):
        skips.add(encoded.reason, f"{file.relative}:{number}")
        return
    yield encoded
    yield None
