#!/usr/bin/env python3
"""Write the files that are generated from the configuration's schema: JSON Schema, reference of all keys.

Reads:  src/trainyard/config/schema.py (as imported).
Writes: configs/training_configuration.schema.json and docs/configuration.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: a file is not current; 2 bad usage.

Example: scripts/write_config_schema.py --check
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ExitCode

SCHEMA = Path("configs/training_configuration.schema.json")
REFERENCE = Path("docs/configuration.md")
_ROOT = Path(__file__).resolve().parent.parent


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--root", type=arguments.path, default=_ROOT, metavar="DIR", help="default: this checkout"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="write nothing, exit 1 if a file is not current")
    choice.add_argument("--dry-run", action="store_true", help="write nothing, print the paths")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    stale = {path: text for path, text in generated().items() if content_of(args.root / path) != text}
    if args.check and stale:
        from trainyard.run.commands import script_command

        names = ", ".join(str(path) for path in stale)
        raise CheckFailedError(
            f"Not current: {names}. Run {script_command('write_config_schema.py')} and commit the result."
        )
    for path, text in stale.items():
        if not args.dry_run:
            write(args.root / path, text)
        output.announce("generated", f"{path}{' would be written' if args.dry_run else ' written'}")
    if not stale:
        output.announce("generated", "everything is current", "ok")
    return ExitCode.DONE


def generated() -> dict[Path, str]:
    """Return the content of every generated file, by its path relative to the root."""
    from trainyard.config.json_schema import configuration_schema
    from trainyard.config.reference import render_config_reference

    return {SCHEMA: json.dumps(configuration_schema(), indent=2) + "\n", REFERENCE: render_config_reference()}


def content_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def write(path: Path, text: str) -> None:
    from trainyard.run.atomic_files import make_folder, write_bytes_atomically

    make_folder(path.parent)
    write_bytes_atomically(path, text.encode())


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
