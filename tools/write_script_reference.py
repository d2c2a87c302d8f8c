#!/usr/bin/env python3
"""Write the reference of all commands, docs/scripts.md, from their docstrings and their --help.

Reads:  src/trainyard/commands: docstrings and the help of each command.
Writes: docs/scripts.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: it is not current, or a script gives no help;
        2 wrong usage.

Example: tools/write_script_reference.py --check
"""

import argparse
import inspect
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import handler, output
from trainyard.command.parser import generator_parser
from trainyard.errors import CheckFailedError, ExitCode

if TYPE_CHECKING:
    from trainyard.github.script_reference import Script

REFERENCE = Path("docs/scripts.md")
_ROOT = Path(__file__).resolve().parent.parent


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return generator_parser(__doc__, _ROOT).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.github.generated_files import update_generated
    from trainyard.github.script_reference import render_script_reference

    modules = sorted((_ROOT / "src" / "trainyard" / "commands").glob("[!_]*.py"))
    text = render_script_reference([describe(path) for path in modules])
    script = f"tools/{Path(__file__).name}"
    if update_generated({REFERENCE: text}, args.root, script=script, check=args.check, dry_run=args.dry_run):
        output.announce("generated", f"{REFERENCE}{' would be written' if args.dry_run else ' written'}")
    else:
        output.announce("generated", f"{REFERENCE} is current", "ok")
    return ExitCode.DONE


def describe(path: Path) -> "Script":
    """Return the docstring and the help of the command in the module `path`."""
    from trainyard.commands import COMMANDS
    from trainyard.github.script_reference import Script

    module = import_module(f"trainyard.commands.{path.stem}")
    os.environ.update(COLUMNS="1000", PYTHON_COLORS="0")  # no line breaks inside a text
    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        module.main(["--help"])
    if module.__doc__ is None or not text.getvalue():
        raise CheckFailedError(f"{path}: gives no help.")
    has_file = (_ROOT / "scripts" / path.name).exists()
    words = next((words for words, command in COMMANDS.items() if command == path.stem), "")
    return Script(
        path.stem, inspect.cleandoc(module.__doc__), text.getvalue(), words=words, has_file=has_file
    )


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
