#!/usr/bin/env python3
"""Write the list of all commands, docs/scripts.md, from the first sentences of their docstrings.

Everything else is left to `--help`: options, what a command reads and writes, its exit codes and an example.

Reads:  src/trainyard/commands: the docstring of each command.
Writes: docs/scripts.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: it is not current; 2 wrong usage.

Example: tools/write_script_reference.py --check
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import generator

from trainyard.command import handler
from trainyard.commands import COMMANDS, GROUPS, INTERNAL, module_name
from trainyard.errors import ExitCode

REFERENCE = Path("docs/scripts.md")
_LINE_CHARACTERS = 110
_WORD = re.compile(r"(?:<[^<>]*>|\S)+")  # a placeholder such as `<run id>` may hold a space
_CODE = re.compile(r"--\w|[/_*<|=$]|[A-Za-z]\.[a-z]")  # flags, paths, variables and keys
_ROOT = Path(__file__).resolve().parent.parent
_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.NO: "the training, a check or a verification failed",
    ExitCode.USAGE: "the configuration, the data or the command line is wrong; nothing was started",
    ExitCode.BUG: "a bug; the traceback is shown",
    ExitCode.REFUSED: "an outside service refused, and retries did not help",
    ExitCode.TIMED_OUT: "something did not happen in time",
    ExitCode.NOT_PROVEN: "a pod trained and is not proven, or TCP joins machines that have EFA; not repeated",
    ExitCode.STOPPED: "stopped early with a good checkpoint: repeat the command to continue",
    ExitCode.INTERRUPTED: "interrupted",
}
_INTRODUCTION = """\
# Commands

<!-- Written by tools/write_script_reference.py from the commands themselves; edits here are lost. -->

`--help` of each has its options with defaults, what it reads and writes, and an example. Messages go to
stderr, data to stdout; with `--json` a failure is `{"error": …, "exit_code": …}`. Every command that trains,
stores, sends or sets up has `--dry-run`.

| exit code | meaning |
|---|---|
"""
_INTERNAL_TITLE = """
## Internal commands

Workflows, pods and the project itself call these:

"""
_FILES_TITLE = """
## Files in scripts/

Each has the flags and exit codes of its command; `install_environment.sh` is what `make install` calls.

"""


def main(argv: Sequence[str] | None = None) -> int:
    return generator.run_generator(__doc__, __file__, generated, argv)


def generated() -> dict[Path, str]:
    """Return the content of the reference, by its path relative to the root."""
    codes = "\n".join(f"| {int(code)} | {_MEANINGS[code]} |" for code in ExitCode)
    groups = ["\n".join(_group(title, list(names))) for title, names in GROUPS.items()]
    internal = ", ".join(f"`trainyard {words}`" for words in INTERNAL)
    files = _FILES_TITLE + _wrap_markdown(f"{', '.join(list_files())}.")
    parts = [
        _INTRODUCTION + codes,
        *groups,
        _INTERNAL_TITLE + _wrap_markdown(f"{internal}."),
        files,
        "",
    ]
    return {REFERENCE: "\n".join(parts)}


def _group(title: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a heading, and a list of the commands with what each does."""
    yield f"\n## {title}\n"
    for words in names:
        yield _wrap_markdown(f"- `trainyard {words}`: {_mark_code(purpose_of(words))}")


def purpose_of(words: str) -> str:
    """Return the first paragraph of the docstring of the command `trainyard WORDS`."""
    text = inspect.cleandoc(import_module(f"trainyard.commands.{module_name(words)}").__doc__ or "")
    return " ".join(text.split("\n\n")[0].split())


def list_files() -> Iterator[str]:
    """Yield each script: its file, and the command whose module it imports."""
    for path in sorted((_ROOT / "scripts").glob("*.py")):
        module = re.search(r"trainyard\.commands\.(\w+)", path.read_text(encoding="utf-8"))
        words = next(words for words in COMMANDS if module and module_name(words) == module[1])
        yield f"`{path.name}` (`trainyard {words}`)"


def _mark_code(text: str) -> str:
    """Return the text on one line, with backticks around words that look like code."""
    return " ".join(_as_code(word) for word in _WORD.findall(text))


def _as_code(word: str) -> str:
    match = re.fullmatch(r"([(\"']*)(.*?)([)\"',.:;]*)", word)
    if match is None or "`" in word or not _CODE.search(match[2]):
        return word
    before, code, after = match.groups()
    if code.count("(") > code.count(")") and ")" in after:  # a call: its bracket is code
        inside, _, after = after.partition(")")
        code = f"{code}{inside})"
    elif code.count('"') % 2 and after.startswith('"'):
        code, after = f'{code}"', after[1:]
    return f"{before}`{code}`{after}"


def _wrap_markdown(text: str) -> str:
    """Return a paragraph or a list item in lines that fit a screen."""
    return textwrap.fill(
        text,
        _LINE_CHARACTERS,
        subsequent_indent="  " if text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
