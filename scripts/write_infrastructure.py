#!/usr/bin/env python3
"""Write the CloudFormation template and the Terraform module from the list of AWS resources.

Reads:  src/trainyard/infrastructure/resources.py, the list
Writes: infrastructure/cloudformation.yaml and infrastructure/terraform/main.tf, below --root
Exit codes: 0 written, or current already; 1 with --check: one is not current; 2 wrong usage

Example: scripts/write_infrastructure.py --check
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ExitCode

_ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("infrastructure")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--root", type=arguments.path, default=_ROOT, metavar="DIR", help="default: this checkout"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="write nothing, exit 1 if one is not current")
    choice.add_argument("--dry-run", action="store_true", help="write nothing, print the paths")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.infrastructure import cloudformation, terraform
    from trainyard.run.atomic_files import make_folder, write_bytes_atomically
    from trainyard.run.commands import script_command

    texts = {
        FOLDER / "cloudformation.yaml": cloudformation.template_yaml(),
        FOLDER / "terraform" / "main.tf": terraform.render_module(),
    }
    stale = {path: text for path, text in texts.items() if content_of(args.root / path) != text}
    names = ", ".join(map(str, stale))
    if stale and args.check:
        command_line = script_command("write_infrastructure.py")
        raise CheckFailedError(f"Not current: {names}. Run {command_line} and commit the result.")
    for path, text in stale.items() if not args.dry_run else ():
        make_folder((args.root / path).parent)
        write_bytes_atomically(args.root / path, text.encode())
    done = "would be written" if args.dry_run else "written"
    output.announce("generated", f"{names} {done}" if stale else f"{len(texts)} files are current", "ok")
    return ExitCode.DONE


def content_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
