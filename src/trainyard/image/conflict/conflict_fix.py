"""Apply the edits of findings to the text of a Dockerfile: single lines; nothing else changes.

A finding without an edit stays, because its remedy is a decision for a person.
"""

import difflib
import re
from collections.abc import Callable, Sequence

from trainyard.image.conflict.finding import Edit, ImageFinding

_MOST_EDITS = 50


def fix(text: str, judge: Callable[[str], Sequence[ImageFinding]], *, file: str) -> str:
    """Return the text after all edits that help; `judge` returns the findings of a text.

    The text is judged again after each edit, because an edit may change the subject of the next one.
    """
    for _ in range(_MOST_EDITS):
        edits = [f.edit for f in judge(text) if f.edit is not None and f.file == file]
        lines = next((done for edit in edits if (done := _changed(text.split("\n"), edit))), None)
        if lines is None or "\n".join(lines) == text:
            break
        text = "\n".join(lines)
    return text


def diff_of(before: str, after: str, name: str) -> str:
    """The change as a unified diff; empty if nothing changed."""
    words = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    return "".join(difflib.unified_diff(*words, fromfile=name, tofile=name))


def _changed(lines: Sequence[str], edit: Edit) -> list[str] | None:
    """The lines after one edit; None if its text is not in the instruction that begins at its line."""
    start = edit.line - 1
    end = start
    while end < len(lines) - 1 and lines[end].rstrip().endswith("\\"):
        end += 1
    for place in range(start, end + 1):
        if edit.new:
            if edit.old in lines[place]:
                return [*lines[:place], lines[place].replace(edit.old, edit.new, 1), *lines[place + 1 :]]
        elif re.search(rf"(?<![\w]){re.escape(edit.old)}\b", lines[place]):
            return _without_variable(list(lines), place, edit.old, (start, end))
    return None


def _without_variable(lines: list[str], place: int, name: str, span: tuple[int, int]) -> list[str]:
    """The lines without `NAME=value` of an ENV; an ENV that sets nothing else is removed."""
    start, end = span
    pattern = rf"(?<![\w]){re.escape(name)}(?:=(?:\"[^\"]*\"|'[^']*'|\S*)|\s+\S.*)"
    left = re.sub(pattern, "", lines[place], count=1)
    rest = " ".join([*lines[start:place], left, *lines[place + 1 : end + 1]]).replace("\\", " ")
    if rest.split() in (["ENV"], ["env"], []):
        return [*lines[:start], *lines[end + 1 :]]
    if left.replace("\\", "").strip():
        left = re.sub(r"(?<=\S) {2,}(?=\S)", " ", left)
        return [*lines[:place], left, *lines[place + 1 :]]
    kept = [*lines[:place], *lines[place + 1 :]]
    if place == end and place > start:  # the line before must not go on any more
        kept[place - 1] = kept[place - 1].rstrip().removesuffix("\\").rstrip()
    return kept
