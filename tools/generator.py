"""The command line of the generators in tools/: write files from the source, or check that they are current.

The generators make the texts. A file that is current is not written again.
"""

import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ExitCode

_LINE_CHARACTERS = 110
_WORD = re.compile(r"(?:<[^<>]*>|\S)+")
"""A placeholder such as `<run id>` may hold a space."""
_CODE = re.compile(r"--\w|[/_*<|=$]|[A-Za-z]\.[a-z]")
"""Matches flags, paths, variables and keys."""


def run_generator(
    doc: str | None, file: str, texts: Callable[[], Mapping[Path, str]], argv: Sequence[str] | None
) -> ExitCode:
    """Write each text whose file below --root differs. `texts` maps paths to contents.

    With --check, raises CheckFailedError that names the files and the generator `file`; with --dry-run,
    nothing is written.
    """
    here = Path(file).resolve()
    parser = script_parser(doc)
    root = "default: this checkout"
    parser.add_argument("--root", type=arguments.path, default=here.parents[1], metavar="DIR", help=root)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="write nothing, exit 1 if a file is not current")
    choice.add_argument("--dry-run", action="store_true", help="write nothing, print the paths")
    args = parser.parse_args(argv)
    contents = {args.root / path: text for path, text in texts().items()}
    stale = [path for path, text in contents.items() if not path.is_file() or path.read_text("utf-8") != text]
    names = {path: path.relative_to(args.root).as_posix() for path in stale}
    if args.check and stale:
        command = shlex.join([sys.executable, f"{here.parent.name}/{here.name}"])
        raise CheckFailedError(
            f"Not current: {', '.join(names.values())}. Run {command} and commit the result."
        )
    for path, name in names.items():
        if not args.dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents[path], "utf-8")
        output.announce("generated", f"{name}{' would be written' if args.dry_run else ' written'}")
    if not stale:
        output.announce("generated", "everything is current", "ok")
    return ExitCode.DONE


def mark_code(text: str) -> str:
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


def wrap_markdown(text: str) -> str:
    """Return a paragraph or a list item in lines that fit a screen."""
    return textwrap.fill(
        text,
        _LINE_CHARACTERS,
        subsequent_indent="  " if text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
