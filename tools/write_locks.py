#!/usr/bin/env python3
"""Resolve every lock from its .in file, for all platforms at once; or check that the locks still fit.

Versions that still fit are kept; --upgrade takes the newest. The first line of a lock has the SHA-256 of its
input (of both .in files if the training lock constrains it), so that a changed input is noticed offline.
--report says in words what the new locks change, and which known vulnerabilities `uv audit` finds in them.

Reads:      requirements-*.in, pyproject.toml, the present locks; without --check uv's package index; with
            --report the vulnerabilities of osv.dev
Writes:     requirements-NAME.txt for uv, training, core, development, and the images megatron and verl;
            --report FILE: Markdown; in GitHub Actions the job summary and the output `changed`
Exit codes: 0 written, or all fit; 1 a lock does not fit; 2 not the pinned uv; 4 uv could not resolve
Example:    tools/write_locks.py --check
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError, ServiceError

if TYPE_CHECKING:
    from trainyard.machine.package_lock import Pin

ROOT = Path(__file__).resolve().parent.parent
PYTHON, IMAGE_PYTHON = "3.11", "3.12"
"""The oldest Python that a lock supports, and the Python of the images' base."""
RESOLVE_SECONDS = 900
DIGEST = re.compile(r"# input-sha256: ([0-9a-f]{64})\n")


@dataclass(frozen=True)
class Lock:
    """A lock and its inputs."""

    name: str
    also: tuple[str, ...] = ()
    """Names of the locks that constrain it."""
    python: str = PYTHON
    """The oldest Python that it supports."""
    extras: tuple[str, ...] = ()
    """The extras of pyproject.toml that it has besides the core; without extras it has no core either."""

    def inputs(self, root: Path) -> bytes:
        names = [f"requirements-{name}.in" for name in (self.name, *self.also)]
        texts = [text_of(root / name) for name in names]
        if self.extras or any(lock.extras for lock in LOCKS if lock.name in self.also):
            project = tomllib.loads(text_of(root / "pyproject.toml"))["project"]
            texts.append(json.dumps([project["dependencies"], project["optional-dependencies"]]))
        return "".join(texts).encode()

    def path(self, root: Path) -> Path:
        return root / f"requirements-{self.name}.txt"


def text_of(path: Path) -> str:
    from trainyard.run.untrusted_files import read_named_text

    return read_named_text(path, "--root names the folder of the locks and of their .in files")


LOCKS = (
    Lock("uv"),
    Lock("training", extras=("train", "cluster", "sign", "images")),
    Lock("core", also=("training",), extras=("cluster", "sign", "images")),
    Lock("development", also=("training",)),
    Lock("megatron", also=("training",), python=IMAGE_PYTHON),
    Lock("verl", python=IMAGE_PYTHON),
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only check that the locks fit, without an index"
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    report = "write what the locks change, and their known vulnerabilities, as Markdown"
    parser.add_argument("--report", type=arguments.path, metavar="FILE", help=report)
    parser.add_argument("--dry-run", action="store_true", help="print the commands, write nothing")
    parser.add_argument(
        "--root", type=arguments.path, default=ROOT, metavar="DIR", help="the folder of the files"
    )
    parser.add_argument(
        "--uv", default=os.environ.get("UV", "uv"), metavar="PROGRAM", help="default: $UV, or uv"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.check:
        return check(args.root)
    if not args.dry_run:
        refuse_other_uv(args.uv, args.root)
    old = {lock.name: pins_of(lock, args.root) for lock in LOCKS} if args.report else {}
    for lock in LOCKS:
        line = resolve_command(args.uv, lock, upgrade=args.upgrade)
        if args.dry_run:
            print(" ".join(line))
        else:
            write(lock, line, args.root)
    if args.report and not args.dry_run:
        report(args.report, old, uv=args.uv, root=args.root)
    return 0


def check(root: Path) -> int:
    stale = [lock for lock in LOCKS if not fits_inputs(text_of(lock.path(root)), lock.inputs(root))]
    if stale:
        names = ", ".join(lock.path(root).name for lock in stale)
        raise CheckFailedError(
            f"{names}: resolved from other inputs than the present .in files; run: make lock"
        )
    output.announce("locks", f"{len(LOCKS)} locks fit their inputs", "ok")
    return 0


def refuse_other_uv(uv: str, root: Path) -> None:
    """Raise ConfigError for another uv than the pinned one, because it may write another format."""
    from trainyard.gateways.process import run_program

    pinned = text_of(root / "requirements-uv.in").strip().partition("==")[2]
    found = run_program([uv, "--version"], seconds=20).stdout.split()[1:2]
    if found != [pinned]:
        raise ConfigError(
            f"{uv}: version {' '.join(found) or 'unknown'}, pinned is {pinned}; run: make install"
        )


def resolve_command(uv: str, lock: Lock, *, upgrade: bool) -> list[str]:
    flags = ["--universal", "--python-version", lock.python, "--generate-hashes", "--no-header", "--quiet"]
    project = ["pyproject.toml", *(f"--extra={extra}" for extra in lock.extras)] if lock.extras else []
    files = [f"requirements-{lock.name}.in", *project, "--output-file", f"requirements-{lock.name}.txt"]
    return [uv, "pip", "compile", *flags, *(["--upgrade"] if upgrade else []), *files]


def write(lock: Lock, line: list[str], root: Path) -> None:
    from trainyard.gateways.process import run_program
    from trainyard.run.atomic_files import write_bytes_atomically

    done = run_program(line, seconds=RESOLVE_SECONDS, cwd=root)
    if not done.ok:
        raise ServiceError(f"uv could not resolve requirements-{lock.name}.in:\n{done.stderr.strip()}")
    path = lock.path(root)
    write_bytes_atomically(path, with_input_digest(text_of(path), lock.inputs(root)).encode())
    output.announce("lock", f"{path.name} written", "ok")


def pins_of(lock: Lock, root: Path) -> "tuple[Pin, ...]":
    from trainyard.machine.package_lock import read_pins

    return read_pins(text_of(lock.path(root)))


def report(file: Path, old: "Mapping[str, tuple[Pin, ...]]", *, uv: str, root: Path) -> None:
    """Write what changed since `old` (name of a lock -> its pins), and what is known to be vulnerable."""
    from trainyard.gateways.github import append_summary, set_output
    from trainyard.run.atomic_files import write_bytes_atomically

    changes: dict[str, list[str]] = {}
    known: dict[str, list[str]] = {}
    for lock in LOCKS:
        pins = pins_of(lock, root)
        for change in lock_changes(old[lock.name], pins):
            changes.setdefault(change, []).append(lock.name)
        for line in vulnerabilities(uv, lock, pins):
            known.setdefault(line, []).append(lock.name)
    text = "\n".join(
        [
            *("### Changes", "", *(f"- {line} ({', '.join(names)})" for line, names in changes.items())),
            *([] if changes else ["none: every lock has the newest versions that fit"]),
            *(
                "",
                "### Known vulnerabilities",
                "",
                *(f"- {line} ({', '.join(n)})" for line, n in known.items()),
            ),
            *([] if known else ["none in osv.dev"]),
            "",
        ]
    )
    write_bytes_atomically(file, text.encode())
    append_summary(text)
    set_output("changed", "true" if changes else "false")
    output.announce("locks", f"{len(changes)} changes, {len(known)} known vulnerabilities", "ok")


def vulnerabilities(uv: str, lock: Lock, pins: "tuple[Pin, ...]") -> list[str]:
    """Return the known vulnerabilities of the pins, a line each; one line if that could not be found out."""
    from trainyard.gateways.process import run_program

    flags = ["--preview-features", "audit-command,json-output", "--output-format", "json", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, f"{lock.name}.py")
        script.write_text(script_of_pins(pins, python=lock.python), encoding="utf-8")
        done = run_program([uv, "audit", "--script", str(script), *flags], seconds=RESOLVE_SECONDS)
    try:
        return [vulnerability_line(each) for each in json.loads(done.stdout)["vulnerabilities"]]
    except (ValueError, KeyError, TypeError):
        cause = " ".join((done.stderr.strip() or "no answer").split())[:200]
        return [f"{lock.path(Path()).name} could not be audited: {cause}"]


def lock_changes(old: "tuple[Pin, ...]", new: "tuple[Pin, ...]") -> tuple[str, ...]:
    """Return the changes of a new lock, one package a line: `torch 2.13.0 → 2.14.0`, `pip 26.0 is new`."""
    before, after = _versions(old), _versions(new)
    changes = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, ""), after.get(name, "")
        if was == now:
            continue
        if not was or not now:
            changes.append(f"{name} {now} is new" if now else f"{name} {was} is no longer needed")
        else:
            major = ", a new major version" if was.split(".")[0] != now.split(".")[0] else ""
            changes.append(f"{name} {was} → {now}{major}")
    return tuple(changes)


def _versions(pins: "tuple[Pin, ...]") -> dict[str, str]:
    """Name -> version; several versions of one package, for different platforms, in one text."""
    found: dict[str, list[str]] = {}
    for pin in pins:
        found.setdefault(pin.name, []).append(pin.version)
    return {name: " and ".join(dict.fromkeys(versions)) for name, versions in found.items()}


def script_of_pins(pins: "tuple[Pin, ...]", *, python: str) -> str:
    """The text of a script that needs exactly these pins (PEP 723): `uv audit` reads scripts, not locks."""
    markers = (f" ; {pin.marker}" if pin.marker else "" for pin in pins)
    needed = [f'#   "{pin.name}=={pin.version}{marker}",' for pin, marker in zip(pins, markers, strict=True)]
    head = ["# /// script", f'# requires-python = ">={python}"', "# dependencies = ["]
    return "\n".join([*head, *needed, "# ]", "# ///", ""])


def with_input_digest(text: str, inputs: bytes) -> str:
    """The lock's text with the digest of its inputs on the first line."""
    return f"# input-sha256: {hashlib.sha256(inputs).hexdigest()}\n{DIGEST.sub('', text)}"


def fits_inputs(text: str, inputs: bytes) -> bool:
    """Return whether the lock was resolved from exactly these inputs (the bytes of its .in files, joined)."""
    recorded = DIGEST.match(text)
    return recorded is not None and recorded[1] == hashlib.sha256(inputs).hexdigest()


def vulnerability_line(found: Mapping[str, Any]) -> str:
    package, fixes = found["dependency"], found["fix_versions"]
    fix = f"fixed in {', '.join(fixes)}" if fixes else "no fix yet"
    link = f"[{found['display_id']}]({found['link']})"
    return f"{package['name']} {package['version']}: {link} {found['summary'] or ''}; {fix}"


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
