#!/usr/bin/env python3
"""Write the files that are generated from the configuration's schema: JSON Schema, reference of all keys.

Reads:  src/trainyard/config/schema.py (as imported).
Writes: configs/training_configuration.schema.json and docs/configuration.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: a file is not current; 2 bad usage.

Example: tools/write_config_schema.py --check
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import handler, output
from trainyard.command.parser import generator_parser
from trainyard.errors import ExitCode

SCHEMA = Path("configs/training_configuration.schema.json")
REFERENCE = Path("docs/configuration.md")
_ROOT = Path(__file__).resolve().parent.parent


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return generator_parser(__doc__, _ROOT).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.repository.generated_files import update_generated

    script = f"tools/{Path(__file__).name}"
    stale = update_generated(generated(), args.root, script=script, check=args.check, dry_run=args.dry_run)
    for path in stale:
        output.announce("generated", f"{path}{' would be written' if args.dry_run else ' written'}")
    if not stale:
        output.announce("generated", "everything is current", "ok")
    return ExitCode.DONE


def generated() -> dict[Path, str]:
    """Return the content of every generated file, by its path relative to the root."""
    from trainyard.config.json_schema import configuration_schema
    from trainyard.config.reference import render_config_reference

    return {SCHEMA: json.dumps(configuration_schema(), indent=2) + "\n", REFERENCE: render_config_reference()}


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
