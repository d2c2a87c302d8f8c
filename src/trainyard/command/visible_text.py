"""Make text from outside safe to print: it can neither control a terminal nor give a workflow a command.

Names of files and objects may hold any character, and records may hold any text. Nothing is written here.
"""

import re

# C0 without tab and newline, delete, C1, line separators, and changes of the direction of writing.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# GitHub's runner searches for `::name` at the beginning of a line, and for `##[name` anywhere:
# https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_OLD_COMMAND = "##["


def escape_controls(text: str) -> str:
    """`text` with every control character of a terminal escaped; newlines and tabs stay."""
    shown = _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    return _COMMAND.sub(r"\1\\:", shown).replace(_OLD_COMMAND, "##\\[")


def visible_line(text: str) -> str:
    """`text` as one line: a newline in it is escaped, too."""
    return escape_controls(text.replace("\n", "\\n"))


def visible_json(text: str) -> str:
    """JSON in ASCII, as harmless and with the same value."""
    return text.replace(_OLD_COMMAND, "##\\u005b")
