#!/usr/bin/env python3
"""Write the reference of all scripts, docs/scripts.md, from their docstrings and their --help.

Reads:  scripts/*.py beside this one; each is asked for its --help.
Writes: docs/scripts.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: it is not current, or a script gives no help;
        2 wrong usage.

Example: tools/write_script_reference.py --check
"""

import argparse
import ast
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import handler, output
from trainyard.command.parser import generator_parser
from trainyard.errors import CheckFailedError, ExitCode

if TYPE_CHECKING:
    from trainyard.repository.script_reference import Script

REFERENCE = Path("docs/scripts.md")
HELP_SECONDS = 60
_ROOT = Path(__file__).resolve().parent.parent


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return generator_parser(__doc__, _ROOT).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.repository.generated_files import update_generated
    from trainyard.repository.script_reference import render_script_reference

    with ThreadPoolExecutor() as pool:
        text = render_script_reference(list(pool.map(described, sorted((_ROOT / "scripts").glob("*.py")))))
    script = Path(__file__).name
    if update_generated({REFERENCE: text}, args.root, script=script, check=args.check, dry_run=args.dry_run):
        output.announce("generated", f"{REFERENCE}{' would be written' if args.dry_run else ' written'}")
    else:
        output.announce("generated", f"{REFERENCE} is current", "ok")
    return ExitCode.DONE


def described(path: Path) -> "Script":
    """Return the docstring of a script's command and its help, without line breaks inside a text."""
    from trainyard.gateways.process import run_program
    from trainyard.repository.script_reference import Script

    line = ["env", "COLUMNS=1000", "PYTHON_COLORS=0", sys.executable, str(path), "--help"]
    done = run_program(line, seconds=HELP_SECONDS)
    command = _ROOT / "src" / "trainyard" / "commands" / path.name
    docstring = ast.get_docstring(ast.parse(command.read_text(encoding="utf-8")))
    if not done.ok or docstring is None:
        raise CheckFailedError(f"{path}: gives no help. {done.stderr.strip()}".strip())
    return Script(path.stem, docstring, done.stdout)


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
