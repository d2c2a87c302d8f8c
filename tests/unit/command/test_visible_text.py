"""Text from outside is shown, and neither a terminal nor a workflow obeys it."""

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.command.visible_text import escape_controls, visible_json, visible_line

PARTS = st.sampled_from(
    ["::", ":", "##[", "##", "[", "\n", " ", "\t", "\x1b[2J", "\r", "\x9b", "\u202e", "a"]
)
TEXTS = st.lists(PARTS | st.text(max_size=3)).map("".join)


@given(TEXTS)
@example("x\n::set-output name=proven::true")
@example("\u00a0::error::x")
@example("##[##[error]")
def test_nothing_is_obeyed(text: str) -> None:
    shown = escape_controls(text)
    assert not any(unicodedata.category(each) == "Cc" and each not in "\t\n" for each in shown)
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())
    assert "##[" not in shown
    assert shown.count("\n") == text.count("\n")
    assert "\n" not in visible_line(text)


@given(TEXTS)
def test_json_keeps_its_value(text: str) -> None:
    shown = visible_json(json.dumps({text: [text]}))
    assert "##[" not in shown
    assert json.loads(shown) == {text: [text]}


@pytest.mark.parametrize(
    "text", ["", "é ü 漢字 🙂", "a: b::c", "key: ## title", "two\n  lines\tand a tab", "[::1]:80"]
)
def test_what_people_write_is_left_as_it_is(text: str) -> None:
    assert escape_controls(text) == text
