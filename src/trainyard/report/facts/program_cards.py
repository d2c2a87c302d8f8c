"""The pictures, texts and tables that a program put into `$TRAINYARD_OUTPUT/report/`, as cards of the page.

    report/*.png *.md *.csv --bounded, checked--> cards, in the order of their names

They come from outside: Markdown is rendered without HTML, without pictures and without links that run code;
a picture must have the form of PNG, and is part of the page. What cannot be shown is named, with the reason.
"""

import base64
import csv
import io
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import DamagedFileError
from trainyard.run.directory import RunDirectory
from trainyard.run.untrusted_files import read_bytes

_MOST_CARDS, _MOST_BYTES = 20, 2_000_000
_MOST_ROWS, _MOST_COLUMNS = 200, 20
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class ProgramCard:
    """One file of the program; of `picture`, `html` and `rows` one is given, else `problem`."""

    name: str
    picture: str = ""
    """As a `data:` address."""
    html: str = ""
    """Markup that is safe to show."""
    rows: tuple[tuple[str, ...], ...] = ()
    """The first row has the heads; all rows have its length."""
    problem: str = ""


def program_cards(directory: Path) -> list[ProgramCard]:
    """Return the first 20 cards of a run."""
    folder = RunDirectory(directory).output / "report"
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in (".png", ".md", ".csv"))
    return [_card(path) for path in files[:_MOST_CARDS]]


def _card(path: Path) -> ProgramCard:
    name = path.name
    try:
        content = read_bytes(path, most=_MOST_BYTES, links=False)
    except (DamagedFileError, FileNotFoundError) as error:
        return ProgramCard(name, problem=str(error))
    if path.suffix.lower() == ".png":
        if not content.startswith(_PNG):
            return ProgramCard(name, problem=f"{path}: is no PNG")
        return ProgramCard(name, picture=f"data:image/png;base64,{base64.b64encode(content).decode()}")
    text = content.decode("utf-8", errors="replace")
    if path.suffix.lower() == ".md":
        return ProgramCard(name, html=_render(text))
    try:
        rows = [row[:_MOST_COLUMNS] for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:
        return ProgramCard(name, problem=f"{path}: is no CSV ({error})")
    if not rows:
        return ProgramCard(name, problem=f"{path}: is empty")
    wide = max(map(len, rows))
    problem = f"The first {_MOST_ROWS} of {len(rows):,} rows." if len(rows) > _MOST_ROWS else ""
    kept = tuple((*row, *[""] * (wide - len(row))) for row in rows[: _MOST_ROWS + 1])
    return ProgramCard(name, rows=kept, problem=problem)


def _render(text: str) -> str:
    """Return Markdown as HTML; its headings are below those of the page."""
    from markdown_it import MarkdownIt  # only needed where a program wrote a text

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = renderer.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return str(renderer.renderer.render(tokens, renderer.options, {}))
