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

from trainyard.command import handler, output
from trainyard.command.parser import generator_parser
from trainyard.errors import ExitCode

_ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("infrastructure")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return generator_parser(__doc__, _ROOT).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.infrastructure import cloudformation, terraform
    from trainyard.repository.generated_files import update_generated

    texts = {
        FOLDER / "cloudformation.yaml": cloudformation.template_yaml(),
        FOLDER / "terraform" / "main.tf": terraform.render_module(),
    }
    script = Path(__file__).name
    stale = update_generated(texts, args.root, script=script, check=args.check, dry_run=args.dry_run)
    names, done = ", ".join(map(str, stale)), "would be written" if args.dry_run else "written"
    output.announce("generated", f"{names} {done}" if stale else f"{len(texts)} files are current", "ok")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
