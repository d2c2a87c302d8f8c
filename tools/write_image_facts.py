#!/usr/bin/env python3
"""Renew the table of torch that image lint uses, from the metadata of the package index.

uv resolves the newest release of each minor release of torch: which CUDA and NCCL its wheel requires, and for
a new one which Pythons have wheels. The builds on PyTorch's own index (`cuda`) are in no metadata: those of a
new release are not judged until somebody adds them from RELEASE.md. The other tables are in no index; --check
names those that are old, and so does --report.

Reads:      the package index; src/trainyard/image/facts/*.yaml
Writes:     src/trainyard/image/facts/torch.yaml; --report FILE: Markdown; in GitHub Actions the output
            `changed`
Exit codes: 0 written, or nothing changes; 1 with --check: a table is old; 4 the index cannot be reached
Example:    tools/write_image_facts.py --uv .uv/bin/uv
"""

import argparse
import datetime
import difflib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode, ServiceError

TABLE = Path(__file__).resolve().parent.parent / "src" / "trainyard" / "image" / "facts" / "torch.yaml"
FIRST, PYTHONS = 4, range(9, 17)
SOURCE = "metadata of the wheel on PyPI"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--uv", type=uv_file, default="uv", metavar="FILE", help="default: uv of the path")
    parser.add_argument("--index", default="", metavar="INDEX", help="URL or folder of wheels; default: PyPI")
    parser.add_argument("--check", action="store_true", help="only name the tables that are old")
    report = "write what changed, and which tables are old, as Markdown"
    parser.add_argument("--report", type=arguments.path, metavar="FILE", help=report)
    return parser.parse_args(argv)


def uv_file(text: str) -> Path:
    found = shutil.which(text)
    if not found:
        raise arguments.refusal(text, "is not a program that can be started")
    return Path(found).absolute()


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.image.conflict.version_facts import old_tables
    from trainyard.run.atomic_files import write_bytes_atomically

    today = datetime.datetime.now(datetime.UTC).date()
    if args.check:
        old = old_tables(today)
        print(f"old tables: {', '.join(old)}" if old else "no table is old")
        return ExitCode.NO if old else ExitCode.DONE
    before = after = TABLE.read_text(encoding="utf-8")
    minor = FIRST
    while facts := read_facts(args, f"2.{minor}"):
        after = renew(after, f"2.{minor}", facts, today)
        minor += 1
    if minor == FIRST:
        raise ServiceError("the package index cannot be reached, or has no torch")
    if after != before:
        write_bytes_atomically(TABLE, after.encode())
    if args.report:
        write_report(args.report, before, after, old_tables(today))
    print("torch.yaml is renewed" if after != before else "torch.yaml is up to date")
    return ExitCode.DONE


def write_report(file: Path, before: str, after: str, old: Sequence[str]) -> None:
    """Write the changed rows and the old tables, and say to the workflow whether the table changed."""
    from trainyard.gateways.github import set_output
    from trainyard.run.atomic_files import write_bytes_atomically

    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=0, lineterm="")
    text = ["The table of torch, from the metadata of the package index:", "", "```diff", *lines, "```"]
    text += ["", f"Old, to be renewed by hand from their sources: {', '.join(old)}."] if old else []
    write_bytes_atomically(file, ("\n".join(text) + "\n").encode())
    set_output("changed", "true" if after != before else "false")


def read_facts(args: argparse.Namespace, minor: str) -> dict[str, str]:
    """Return cuda, nccl, oldest and newest Python of a minor release; empty if there is none."""
    chosen = {f"3.{number}": resolve(args, f"torch=={minor}.*", f"3.{number}") for number in PYTHONS}
    pythons = [python for python, text in chosen.items() if text]
    if not pythons:
        return {}
    text = chosen[pythons[0]]
    cuda = re.search(r"^(?:nvidia-cuda-runtime[\w-]*|cuda-toolkit)==(\d+\.\d+)", text, re.MULTILINE)
    nccl = re.search(r"^nvidia-nccl-cu\d+==([\d.]+)", text, re.MULTILINE)
    found = {"oldest": pythons[0], "newest": pythons[-1]}
    found |= {"cuda": cuda[1]} if cuda else {}
    return found | ({"nccl": nccl[1]} if nccl else {})


def resolve(args: argparse.Namespace, requirement: str, python: str) -> str:
    """Return the versions that uv chooses; empty if it cannot."""
    from trainyard.gateways.package_resolver import compile_requirements

    flags = ("--python-platform", "x86_64-manylinux_2_40", "--python-version", python)
    done, chosen = compile_requirements(args.uv, [requirement], preferred={}, flags=flags, index=args.index)
    return chosen if done.ok else ""


def renew(text: str, minor: str, facts: dict[str, str], today: datetime.date) -> str:
    """Return the table with the facts of a release; a row that agrees stays as it is."""
    if not {"cuda", "nccl"} <= facts.keys():
        return text
    match = re.search(rf'^- torch: "{re.escape(minor)}"\n(?:  .*\n)+', text, re.MULTILINE)
    if not match:
        row = (
            f'- torch: "{minor}"\n  pypi_cuda: "{facts["cuda"]}"\n'
            f'  python: ["{facts["oldest"]}", "{facts["newest"]}"]\n  nccl: "{facts["nccl"]}"\n'
            f"  source: {SOURCE}\n  date: {today}\n"
        )
        place = text.index("# Builds that may exist")
        return text[:place] + row + text[place:]
    row = match[0]
    for key, value in (("pypi_cuda", facts["cuda"]), ("nccl", facts["nccl"])):
        row = re.sub(rf'^  {key}: ".*"$', f'  {key}: "{value}"', row, flags=re.MULTILINE)
    if row == match[0]:
        return text
    row = re.sub(r"^  date: .*$", f"  date: {today}", row, flags=re.MULTILINE)
    return text[: match.start()] + row + text[match.end() :]


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
