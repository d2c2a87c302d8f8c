"""Find faults of an image before a 20-minute build does: version conflicts, EFA, user, secrets.

The versions of torch, CUDA, Python, drivers, GPUs, flash-attn, Transformer Engine, vLLM, NCCL and EFA must
fit together. They come from the Dockerfile, the name of its base image, and the files of requirements that
it copies and installs from. What these do not state is unknown and is not judged. --fix corrects errors in
single lines of the Dockerfile that have only one correct value, and shows the difference.

Reads:      --dockerfile, and what it installs from in --context; --lock
Writes:     with --fix the Dockerfile, unless --dry-run; in GitHub Actions an annotation for each finding
Exit codes: 0 no fault; 1 a fault was found (with --fix: could not be fixed); 2 wrong usage or Dockerfile
Example:    scripts/lint_image.py --dockerfile docker/fsdp/Dockerfile --instance-type p5.48xlarge
"""

import argparse
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from trainyard.image.conflict.declared_versions import DeclaredVersions
    from trainyard.image.conflict.finding import ImageFinding, TargetMachine


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--dockerfile", type=arguments.path, required=True, metavar="FILE")
    context = "the folder that it is built from; default: its own, or one above it in the same project"
    parser.add_argument("--context", type=arguments.path, metavar="FOLDER", help=context)
    lock = "a lock that it installs; may be repeated; default: the files that it copies and installs from"
    parser.add_argument("--lock", type=arguments.path, action="append", metavar="FILE", help=lock)
    parser.add_argument(
        "--instance-type", default="", metavar="TYPE", help="the instance type that it will run on"
    )
    parser.add_argument(
        "--driver", type=driver, metavar="VERSION", help="version of the NVIDIA driver on the machine"
    )
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    parser.add_argument(
        "--fix", action="store_true", help="correct the lines that have only one correct value"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --fix: only show the difference")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args(argv)


def driver(text: str) -> str:
    """Parse the version of a driver, in the form that nvidia-smi shows."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", text):
        raise arguments.refusal(text, "is not a driver version such as 570.86 or 580.65.06")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.image.conflict.conflict_fix import diff_of, fix
    from trainyard.image.conflict.conflicts import judge_versions
    from trainyard.run.atomic_files import write_bytes_atomically
    from trainyard.run.untrusted_files import read_named_text

    name, machine = str(args.dockerfile), machine_of(args)
    before = read_named_text(args.dockerfile, "name the Dockerfile with --dockerfile FILE")
    if args.context and not args.context.is_dir():
        raise ConfigError(f"--context {args.context}: there is no such folder")
    locked = named_packages(args.lock or ())
    after = before
    if args.fix:
        after = fix(
            before, lambda text: judge_versions(read_declared(args, text, locked), machine), file=name
        )
    difference = diff_of(before, after, name)
    if difference and not args.dry_run:
        write_bytes_atomically(args.dockerfile, after.encode())
    declared = read_declared(args, after, locked)
    return report(args, declared, judge_versions(declared, machine), difference)


def named_packages(locks: Sequence[Path]) -> dict[str, tuple[str, int, str]]:
    """Return the packages of the locks that were named, each with its version, line and lock."""
    from trainyard.image.conflict.stated_packages import locked_packages
    from trainyard.run.untrusted_files import read_named_text

    return {
        package: (version, line, str(lock))
        for lock in locks
        for package, (version, line) in locked_packages(
            read_named_text(lock, "name a lock with --lock FILE")
        ).items()
    }


def read_declared(
    args: argparse.Namespace, text: str, locked: "dict[str, tuple[str, int, str]]"
) -> "DeclaredVersions":
    from trainyard.image.building.build_request import parse_build_args
    from trainyard.image.conflict.declared_versions import declare
    from trainyard.image.context.dockerfile import parse_dockerfile

    name = str(args.dockerfile)
    given = parse_build_args(args.build_arg, parse_dockerfile(text, name).arguments)
    return declare(parse_dockerfile(text, name, given), name, locked, partial(context_file, args))


def context_file(args: argparse.Namespace, paths: tuple[str, ...]) -> tuple[str, str] | None:
    """Return name and text of the first of these files that the build context has.

    None if there is none, or if folders that may be the context have different ones.
    """
    from trainyard.image.context.ignore_rules import is_ignored, parse_ignore_file
    from trainyard.run.untrusted_files import read_text

    folders = [args.context] if args.context else folders_of(args.dockerfile)
    for path in paths:
        found = {}
        for folder in folders:
            file = folder / path
            ignores = (
                args.dockerfile.with_name(f"{args.dockerfile.name}.dockerignore"),
                folder / ".dockerignore",
            )
            ignore = next((one for one in ignores if one.is_file()), None)
            rules = parse_ignore_file(read_text(ignore), str(ignore)) if ignore else ()
            inside = file.resolve().is_relative_to(folder.resolve())
            if inside and file.is_file() and not is_ignored(path, rules):
                found[read_text(file)] = str(file)
        if found:
            return next(((name, text) for text, name in found.items()), None) if len(found) == 1 else None
    return None


def folders_of(dockerfile: Path) -> list[Path]:
    """Return the folders that may be the context: the Dockerfile's own, and those above it in its project.

    The project is the git repository, or else the working directory if the Dockerfile is below it.
    """
    own = dockerfile.resolve().parent
    above = [own, *own.parents]
    here = Path.cwd().resolve()
    top = next((folder for folder in above if (folder / ".git").exists()), here if here in above else own)
    return above[: above.index(top) + 1]


def machine_of(args: argparse.Namespace) -> "TargetMachine":
    from trainyard.image.conflict.finding import TargetMachine
    from trainyard.image.conflict.version_facts import version
    from trainyard.plan.instances import find_instance

    driver = version(args.driver or "")
    if not args.instance_type:
        return TargetMachine(driver=driver)
    found = find_instance(args.instance_type)
    return TargetMachine(
        architecture=found.architecture,
        efa=found.efa > 0,
        rdma=found.rdma,
        family=found.name.removeprefix("ml.").partition(".")[0],
        driver=driver,
    )


def report(
    args: argparse.Namespace,
    declared: "DeclaredVersions",
    findings: "Sequence[ImageFinding]",
    difference: str,
) -> int:
    from trainyard.gateways.github import Level, annotate
    from trainyard.image.conflict.base_choice import choose_base
    from trainyard.image.conflict.lint_text import declared_record, lint_lines

    choice = choose_base(declared, efa=bool(machine_of(args).efa))
    failed = any(finding.severity == "error" for finding in findings)
    data = {
        "ok": not failed,
        "declared": declared_record(declared),
        "unknown": list(declared.unknown),
        "findings": [finding.record() for finding in findings],
        "base": {"found": declared.base.image, "proposed": choice.image, "reason": choice.reason},
        "difference": difference,
    }
    output.print_json(data) if args.json else print("\n".join(lint_lines(data)))
    for finding in findings:
        level = Level.ERROR if finding.severity == "error" else Level.WARNING
        annotate(level, f"{finding.what}: {finding.why}", title=finding.remedy)
    return ExitCode.NO if failed else ExitCode.DONE
