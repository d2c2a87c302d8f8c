"""Apply the edits of findings to the text of a Dockerfile: single lines; nothing else changes.

A finding without an edit stays, because its fix is a decision for a person.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from trainyard.image.conflict.conflict_rule import ERROR
from trainyard.plan.finding import Edit, Finding

_MOST_EDITS = 50


def fix(text: str, judge: Callable[[str], Sequence[Finding]], *, file: str) -> str:
    """Return the text after all edits that help; `judge` returns the findings of a text.

    Only errors are edited. An edit is kept if it leaves fewer errors, and none of another rule.
    """
    for _ in range(_MOST_EDITS):
        found = judge(text)
        edits = [f.edit for f in found if f.severity == ERROR and f.edit is not None and f.file == file]
        tried = (_apply_edit(text.split("\n"), edit) for edit in edits)
        texts = ("\n".join(lines) for lines in tried if lines)
        after = next((one for one in texts if _errors(judge(one)) < _errors(found)), None)
        if after is None:
            break
        text = after
    return text


def _errors(found: Sequence[Finding]) -> Counter[str]:
    return Counter(finding.rule for finding in found if finding.severity == ERROR)


def _apply_edit(lines: Sequence[str], edit: Edit) -> list[str] | None:
    """Return the lines after one edit; None if its text is not in the instruction that begins at its line."""
    start = edit.line - 1
    end = start
    while end < len(lines) - 1 and (lines[end].rstrip().endswith("\\") or lines[end].lstrip()[:1] == "#"):
        end += 1
    for place in range(start, end + 1):
        if lines[place].lstrip().startswith("#"):
            continue
        if found := re.search(rf"(?<![\w.+-]){re.escape(edit.old)}(?![\w.+-])", lines[place]):
            line = lines[place][: found.start()] + edit.new + lines[place][found.end() :]
            return [*lines[:place], line, *lines[place + 1 :]]
    return None
