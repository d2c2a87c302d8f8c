"""Draw a terminal's screen as SVG, from the bytes that a program wrote to it.

It runs no program. pyte emulates the screen and rich draws it; the frame is our own, because rich's frame
loads its font from the network.
"""

import io
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_ROWS = 200
"""Rows of the emulated screen; empty rows at its end are not drawn."""
_FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre;
}}
.{unique_id}-title {{ font-family: system-ui, sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def terminal_svg(output: bytes, *, columns: int, title: str) -> str:
    """Draw the screen that `output`, with its escape sequences, leaves on a terminal of `columns` cells."""
    from rich.console import Console

    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in screen_lines(output, columns=columns):
        console.print(line, no_wrap=True, crop=False, highlight=False)
    svg = console.export_svg(title=title, code_format=_FRAME, unique_id="terminal")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def screen_lines(output: bytes, *, columns: int) -> list["Text"]:
    """The lines of that screen with their colours, without the empty lines at its end."""
    import pyte
    from rich.style import Style
    from rich.text import Text

    screen = pyte.Screen(columns, _ROWS)
    pyte.ByteStream(screen).feed(output)
    lines = []
    for row in range(_ROWS):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(columns)]
        for (colour, bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            line.append("".join(cell.data for cell in run), Style(color=_colour(colour), bold=bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def _colour(name: str) -> str | None:
    """rich's name of a colour that pyte names: a word, or six hexadecimal digits after a `#`."""
    if name == "default":
        return None
    names = {"brown": "yellow"} | {f"bright{base}": f"bright_{base}" for base in ("red", "green", "blue")}
    digits = len(name) == 6 and all(digit in "0123456789abcdefABCDEF" for digit in name)
    return f"#{name}" if digits else names.get(name, name)
