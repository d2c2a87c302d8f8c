"""The picture of a terminal, read back as XML."""

import re
import xml.etree.ElementTree as ET

import pytest
from tools.draw_pictures import screen_lines, terminal_svg

TEXT = "{http://www.w3.org/2000/svg}text"


def text_lines(svg: str) -> list[str]:
    """The lines of text in a picture, from top to bottom."""
    lines: dict[float, str] = {}
    for node in ET.fromstring(svg).iter(TEXT):
        if "matrix" not in node.get("class", "") and node.get("clip-path"):
            y = float(node.get("y", "0"))
            lines[y] = lines.get(y, "") + (node.text or "").replace("\xa0", " ")
    return [lines[y].rstrip() for y in sorted(lines)]


def test_a_redrawn_line_shows_its_last_state() -> None:
    output = b"training 1/3\r\x1b[2Ktraining 2/3\r\x1b[2K  training   3 steps\r\nproven\r\n"
    assert [line.plain for line in screen_lines(output, columns=40)] == ["  training   3 steps", "proven"]


def test_long_lines_wrap_as_on_the_terminal() -> None:
    lines = [line.plain for line in screen_lines(b"x" * 45 + b"\r\n", columns=40)]
    assert lines == ["x" * 40, "x" * 5]


def test_empty_lines_are_kept_between_lines_and_dropped_at_the_end() -> None:
    assert [line.plain for line in screen_lines(b"a\r\n\r\nb\r\n\r\n\r\n", columns=40)] == ["a", "", "b"]


@pytest.mark.parametrize("text", ["loss 5.56 → 1.08", "<b> & 'quotes'", "Mein Yard ü", "▕████▌   ▏"])
def test_the_text_is_in_the_picture_as_it_was_written(text: str) -> None:
    assert text_lines(terminal_svg(f"{text}\r\n".encode(), columns=40, title="t")) == [text]


@pytest.mark.parametrize(
    ("code", "words"), [("32", "ok"), ("31", "failed"), ("33", "degraded"), ("92", "fine")]
)
def test_a_colour_applies_only_to_its_own_words(code: str, words: str) -> None:
    svg = terminal_svg(f"plain \x1b[{code}m{words}\x1b[0m\r\n".encode(), columns=40, title="t")
    classes = {
        node.text: node.get("class") for node in ET.fromstring(svg).iter(TEXT) if node.get("clip-path")
    }
    assert len(set(classes.values())) == 2
    fills = dict(re.findall(r"\.(terminal-r\d+) \{ fill: (#\w+)", svg))
    assert len(set(fills.values())) == 2


def test_a_picture_loads_nothing_from_elsewhere() -> None:
    svg = terminal_svg(b"text\r\n", columns=40, title="t")
    assert set(re.findall(r"\w+://[^\"')\s]+", svg)) == {"http://www.w3.org/2000/svg"}


def test_the_same_screen_is_the_same_picture() -> None:
    assert terminal_svg(b"a\r\n", columns=40, title="t") == terminal_svg(b"b\ra\r\n", columns=40, title="t")
