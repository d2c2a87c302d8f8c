#!/usr/bin/env python3
"""Renew the tables of image lint from public sources, and name the families of rows that are old.

torch: which CUDA and NCCL the newest release of each minor requires and its Pythons, by uv from the metadata
of the package index; its builds from PyTorch's RELEASE.md. containers and cuda: NGC's monthly images and the
driver of each toolkit, from the matrix of Triton Inference Server. published_files: keys of Python's own
tests, from CPython. EFA installers and pairs that fail are in no such source: --check and --report name a
family of theirs that is old.

Reads:      the package index; the pages of PAGES, or the files of --pages; src/trainyard/image/facts/*.yaml
Writes:     src/trainyard/image/facts/*.yaml; --report FILE: Markdown; in GitHub Actions the output `changed`
Exit codes: 0 written, or nothing changes; 1 with --check: a table is old; 4 a source cannot be read
Example:    tools/write_image_facts.py --uv .uv/bin/uv
"""

import argparse
import datetime
import difflib
import hashlib
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, handler
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode, ServiceError

FACTS = Path(__file__).resolve().parent.parent / "src" / "trainyard" / "image" / "facts"
FIRST, PYTHONS = 4, range(9, 17)
SOURCE = "metadata of the wheel on PyPI"
RAW = "https://raw.githubusercontent.com"
PAGES = {
    "RELEASE.md": f"{RAW}/pytorch/pytorch/main/RELEASE.md",
    "compatibility.md": f"{RAW}/triton-inference-server/server/main/docs/introduction/compatibility.md",
}
KEYS = f"{RAW}/python/cpython/{{}}/Lib/test/certdata/"
BRANCHES = ("3.11", "3.12", "3.13", "3.14", "3.15", "main")
MATRIX = "the support matrix of triton-inference-server/server (vllm-python-py3, of the same release)"
# A release of the matrix: tag, Python, vLLM, CUDA, driver. Its torch is named by the month of its container.
RELEASE = re.compile(
    r"^\| (\d\d\.\d\d) \|[^|]*-vllm-python-py3 \| Python (\d+\.\d+)[^|]*\|[^|]*"
    r"\| ?(\d+\.\d+)(\.\d+)?[\d.]* \| ([\d.]+) \|",
    re.MULTILINE,
)
TORCH_OF_MONTH = re.compile(r"\| (\d+\.\d+)\.\d+a0\S*\.nv(\d\d)\.(\d+) ")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--uv", type=uv_file, default="uv", metavar="FILE", help="default: uv of the path")
    parser.add_argument("--index", default="", metavar="INDEX", help="URL or folder of wheels; default: PyPI")
    parser.add_argument("--check", action="store_true", help="only name the tables that are old")
    pages = "a folder with the pages, by name, instead of the network; keys of CPython are left as they are"
    parser.add_argument("--pages", type=arguments.path, metavar="FOLDER", help=pages)
    facts = "folder of the tables; default: those of image lint"
    parser.add_argument("--facts", type=arguments.path, default=FACTS, metavar="FOLDER", help=facts)
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
    from trainyard.image.version_facts import old_tables
    from trainyard.run.atomic_files import write_bytes_atomically

    today = datetime.datetime.now(datetime.UTC).date()
    if args.check:
        old = old_tables(today)
        print(f"old tables: {', '.join(old)}" if old else "no table is old")
        return ExitCode.NO if old else ExitCode.DONE
    names = ("torch", "containers", "cuda", "published_files")
    before = {name: (args.facts / f"{name}.yaml").read_text(encoding="utf-8") for name in names}
    after, minor = dict(before), FIRST
    while facts := read_facts(args, f"2.{minor}"):
        after["torch"] = renew(after["torch"], f"2.{minor}", facts, today)
        minor += 1
    if minor == FIRST:
        raise ServiceError("the package index cannot be reached, or has no torch")
    matrix = read_page(args, "compatibility.md")
    after["torch"] = add_builds(after["torch"], read_page(args, "RELEASE.md"))
    after["containers"] = add_containers(after["containers"], matrix, today)
    after["cuda"] = add_toolkits(after["cuda"], matrix, today)
    if not args.pages:
        after["published_files"] = add_keys(after["published_files"])
    changed = [name for name in names if after[name] != before[name]]
    for name in changed:
        write_bytes_atomically(args.facts / f"{name}.yaml", after[name].encode())
    if args.report:
        write_report(args.report, before, after, old_tables(today))
    print(f"renewed: {', '.join(changed) or 'nothing, every table is up to date'}")
    return ExitCode.DONE


def write_report(file: Path, before: dict[str, str], after: dict[str, str], old: Sequence[str]) -> None:
    """Write the changed rows and the old tables, and say to the workflow whether a table changed."""
    from trainyard.gateways.github import set_output
    from trainyard.run.atomic_files import write_bytes_atomically

    lines = [
        line
        for name, text in after.items()
        for line in difflib.unified_diff(
            before[name].splitlines(), text.splitlines(), name, name, n=0, lineterm=""
        )
    ]
    text = ["The facts of image lint, from their public sources:", "", "```diff", *lines, "```"]
    text += ["", f"Old, to be renewed by hand from their sources: {', '.join(old)}."] if old else []
    write_bytes_atomically(file, ("\n".join(text) + "\n").encode())
    set_output("changed", "true" if lines else "false")


def read_page(args: argparse.Namespace, name: str) -> str:
    """Return a page of PAGES. Raises ServiceError if it cannot be read."""
    return (args.pages / name).read_text(encoding="utf-8") if args.pages else read_url(PAGES[name]).decode()


def read_url(url: str) -> bytes:
    """Return the content of a page; empty if there is none. Raises ServiceError if it cannot be read."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - an address of this file
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return b""
        raise ServiceError(f"{url} cannot be read: {error}") from None
    except OSError as error:
        raise ServiceError(f"{url} cannot be read: {error}") from None


def add_builds(text: str, page: str) -> str:
    """Return the table of torch with the CUDA builds of releases that had none, from RELEASE.md."""
    rows = re.findall(r"^\| (2\.\d+) \|(.*)$", page, re.MULTILINE)
    if not rows:
        raise ServiceError(f"{PAGES['RELEASE.md']} has no matrix of releases any more")
    for minor, rest in rows:
        builds = ", ".join(f'"{cuda}"' for cuda in sorted(set(re.findall(r"CUDA (\d+\.\d)", rest))))
        head = f'- torch: "{minor}"\n'
        if builds and f"{head}  pypi_cuda" in text:  # a row that has its builds begins with them
            text = text.replace(head, f"{head}  cuda: [{builds}]\n")
    return text


def add_containers(text: str, page: str, today: datetime.date) -> str:
    """Return the table of containers with NGC's images that it lacked."""
    torches = {f"{year}.{int(month):02}": torch for torch, year, month in TORCH_OF_MONTH.findall(page)}
    found = RELEASE.findall(page)
    if not found:
        raise ServiceError(f"{PAGES['compatibility.md']} has no matrix of releases any more")
    rows = ""
    for tag, python, cuda, _, _ in sorted(found):
        torch = f'  torch: "{torches[tag]}"\n' if tag in torches else ""
        head = f'- image: nvcr.io/nvidia/pytorch\n  tag: "{tag}"\n'
        if head not in text and tag >= "24.10":  # rows of older images were left out when the table was made
            rows += (
                f'{head}{torch}  cuda: "{cuda}"\n  python: "{python}"\n  source: {MATRIX}\n  date: {today}\n'
            )
        elif torch:
            text = text.replace(f"{head}  cuda:", f"{head}{torch}  cuda:")
    place = text.index("- image: ubuntu")
    return text[:place] + rows + text[place:]


def add_toolkits(text: str, page: str, today: datetime.date) -> str:
    """Return the table of CUDA with the toolkits that it lacked, each with its newest release and driver."""
    newest = {
        cuda: (f"{cuda}{patch or '.0'}", driver)
        for _, _, cuda, patch, driver in sorted(RELEASE.findall(page))
    }
    for cuda, (release, driver) in newest.items():
        if f'- toolkit: "{cuda}"\n' not in text:
            facts = f'  release: "{release}"\n  bundled_driver: "{driver}"\n'
            text += f'- toolkit: "{cuda}"\n{facts}  source: {MATRIX}\n  date: {today}\n'
    return text


def add_keys(text: str) -> str:
    """Return the table of published files with the keys of CPython's branches that it lacked."""
    for key in re.findall(r"^- key: (\S+)$", text, re.MULTILINE):
        contents = [read_url(f"{KEYS.format(branch)}{key}") for branch in BRANCHES]
        for digest in sorted({hashlib.sha256(one).hexdigest() for one in contents if one}):
            if digest not in text:
                text = text.replace(f"- key: {key}\n  sha256:\n", f"- key: {key}\n  sha256:\n  - {digest}\n")
    return text


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
    from trainyard.image.conflict.resolution import ResolverRequest

    flags = ("--python-platform", "x86_64-manylinux_2_40", "--python-version", python)
    request = ResolverRequest((requirement,), flags=flags)
    code, chosen, _ = compile_requirements(args.uv, request, index=args.index)
    return chosen if code == 0 else ""


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
