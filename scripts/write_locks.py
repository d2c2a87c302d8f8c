#!/usr/bin/env python3
"""Resolve every lock from its .in file, for every platform at once; or check that the locks still fit.

Versions that still fit are kept; --upgrade takes the newest. A lock's first line holds the SHA-256 of what it
was resolved from (of both .in files where the training lock constrains it), so that a
changed input is noticed without asking an index.

Reads:      requirements-*.in, the present locks; without --check the package index that uv is set to
Writes:     requirements-NAME.txt for uv, training, development, and the images megatron and verl
Exit codes: 0 written, or all fit; 1 a lock does not fit; 2 not the pinned uv; 4 uv could not resolve
Example:    scripts/write_locks.py --check
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError, ServiceError

ROOT = Path(__file__).resolve().parent.parent
PYTHON, IMAGE_PYTHON = "3.11", "3.12"
"""The oldest Python of a lock, and the one of the images' base."""
RESOLVE_SECONDS = 900


@dataclass(frozen=True)
class Lock:
    """A lock and what it is resolved from."""

    name: str
    also: tuple[str, ...] = ()
    """Names of the locks that constrain it."""
    python: str = PYTHON
    """The oldest Python it is for."""

    def inputs(self, root: Path) -> bytes:
        names = (f"requirements-{name}.in" for name in (self.name, *self.also))
        return "".join(text_of(root / name) for name in names).encode()

    def path(self, root: Path) -> Path:
        return root / f"requirements-{self.name}.txt"


def text_of(path: Path) -> str:
    from trainyard.run.untrusted_files import read_named_text

    return read_named_text(path, "--root names the folder of the locks and of their .in files")


LOCKS = (
    Lock("uv"),
    Lock("training"),
    Lock("development", also=("training",)),
    Lock("megatron", also=("training",), python=IMAGE_PYTHON),
    Lock("verl", python=IMAGE_PYTHON),
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the locks fit; asks no index")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and write nothing")
    parser.add_argument(
        "--root", type=arguments.path, default=ROOT, metavar="DIR", help="where the files are"
    )
    parser.add_argument(
        "--uv", default=os.environ.get("UV", "uv"), metavar="PROGRAM", help="default: $UV, or uv"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    if args.check:
        return check(args.root)
    if not args.dry_run:
        refuse_other_uv(args.uv, args.root)
    for lock in LOCKS:
        line = resolve_command(args.uv, lock, upgrade=args.upgrade)
        if args.dry_run:
            print(" ".join(line))
        else:
            write(lock, line, args.root)
    return 0


def check(root: Path) -> int:
    from trainyard.machine.package_lock import fits_inputs

    stale = [lock for lock in LOCKS if not fits_inputs(text_of(lock.path(root)), lock.inputs(root))]
    if stale:
        names = ", ".join(lock.path(root).name for lock in stale)
        raise CheckFailedError(
            f"{names}: resolved from other inputs than the present .in files; run: make lock"
        )
    output.announce("locks", f"{len(LOCKS)} locks fit their inputs", "ok")
    return 0


def refuse_other_uv(uv: str, root: Path) -> None:
    """Another uv may write another form; the pinned one is part of the lock."""
    from trainyard.gateways.process import run_program

    pinned = text_of(root / "requirements-uv.in").strip().partition("==")[2]
    found = run_program([uv, "--version"], seconds=20).stdout.split()[1:2]
    if found != [pinned]:
        raise ConfigError(
            f"{uv}: version {' '.join(found) or 'unknown'}, pinned is {pinned}; run: make install"
        )


def resolve_command(uv: str, lock: Lock, *, upgrade: bool) -> list[str]:
    flags = ["--universal", "--python-version", lock.python, "--generate-hashes", "--no-header", "--quiet"]
    files = [f"requirements-{lock.name}.in", "--output-file", f"requirements-{lock.name}.txt"]
    return [uv, "pip", "compile", *flags, *(["--upgrade"] if upgrade else []), *files]


def write(lock: Lock, line: list[str], root: Path) -> None:
    from trainyard.gateways.process import run_program
    from trainyard.machine.package_lock import with_input_digest
    from trainyard.run.whole_files import write_bytes_atomically

    done = run_program(line, seconds=RESOLVE_SECONDS, cwd=root)
    if not done.ok:
        raise ServiceError(f"uv could not resolve requirements-{lock.name}.in:\n{done.stderr.strip()}")
    path = lock.path(root)
    write_bytes_atomically(path, with_input_digest(text_of(path), lock.inputs(root)).encode())
    output.announce("lock", f"{path.name} written", "ok")


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
