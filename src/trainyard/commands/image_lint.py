"""Find faults of an image before its build: version conflicts, EFA, user, secrets.

The versions of torch, CUDA, Python, drivers, GPUs, compiled packages, NCCL and EFA must fit together. They
come from the Dockerfile, the name of its base image, and the requirements, projects and locks that it copies
and installs from. uv resolves each installing command as pip would, with the metadata of a package index
(--index); without an index these commands are not checked. A version that none of them states is not judged.
--fix corrects single lines of the Dockerfile, and shows the difference: a version becomes the newest of its
major release that can be installed with the rest; torch keeps its minor release.

Reads:      --dockerfile, and what it installs from in --context; the package index; UV_OFFLINE
Writes:     with --fix the Dockerfile, unless --dry-run; in GitHub Actions an annotation for each finding
Exit codes: 0 no fault; 1 a fault was found (with --fix: one that is left); 2 wrong usage or Dockerfile
Example:    trainyard image lint --dockerfile docker/fsdp/Dockerfile --instance-type p5.48xlarge
"""

import argparse
import difflib
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.github import Level, annotate
from trainyard.gateways.images.context_files import find_dockerfile
from trainyard.gateways.package_resolver import compile_requirements
from trainyard.image.building.build_request import parse_build_args
from trainyard.image.conflict.base_choice import choose_base
from trainyard.image.conflict.conflict_fix import fix
from trainyard.image.conflict.conflict_rule import TargetMachine
from trainyard.image.conflict.container_rules import judge_versions
from trainyard.image.conflict.declared_versions import declare, unknown_facts
from trainyard.image.context.dockerfile import is_stated, parse_dockerfile
from trainyard.image.context.ignore_rules import is_ignored, parse_ignore_file
from trainyard.image.context.install_commands import installs_of
from trainyard.image.version_facts import old_tables, version, version_text
from trainyard.plan.finding import Finding, Severity, finding_lines
from trainyard.plan.instances import find_instance, plain_type
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.untrusted_files import read_named_text, read_text

if TYPE_CHECKING:
    from trainyard.image.conflict.declared_versions import DeclaredVersions
    from trainyard.image.conflict.resolution import ResolverRequest

_logger = logging.getLogger("trainyard.lint_image")
RESOLVE_SECONDS = 240.0
"""Time limit of all resolutions; what is not resolved by then is not checked."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="with --fix: only show the difference", json="the findings")
    add_option(parser, "--dockerfile", "FILE", "file to check", type=arguments.path, required=True)
    context = "the folder that it is built from; default: . if the file is below it, else its own folder"
    add_option(parser, "--context", "FOLDER", context, type=arguments.path)
    add_option(parser, "--target", "STAGE", "default: the last one", default="")
    add_option(parser, "--instance-type", "TYPE", "the instance type that it will run on", default="")
    add_option(parser, "--driver", "VERSION", "version of the NVIDIA driver on the machine", type=driver)
    add_option(parser, "--build-arg", "NAME=VALUE", "an ARG; may be repeated", action="append", default=[])
    index = "URL or folder of wheels to resolve with instead of PyPI; `none`: do not resolve"
    add_option(parser, "--index", "INDEX", index, default="")
    add_flag(parser, "--fix", "correct single lines, and show the difference")
    return parser.parse_args(argv)


def driver(text: str) -> str:
    """Parse the version of a driver, in the form that nvidia-smi shows."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", text):
        raise arguments.refusal(text, "is not a driver version such as 570.86 or 580.65.06")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    names = ("dockerfile", "context", "target", "instance_type", "index")
    known = {name: getattr(args, name) for name in names}
    request = LintRequest(**known, driver=args.driver or "", build_args=args.build_arg)
    return lint_dockerfile(request, fixes=args.fix, dry_run=args.dry_run, as_json=args.json)


@dataclass(frozen=True)
class LintRequest:
    """A Dockerfile to check, and what it is built and run with."""

    dockerfile: Path
    context: Path | None = None
    """The folder that it is built from; None: the working directory, or the Dockerfile's own folder."""
    target: str = ""
    instance_type: str = ""
    driver: str = ""
    """Version of the NVIDIA driver on the machine."""
    build_args: Sequence[str] = ()
    """`NAME=VALUE` of an ARG."""
    index: str = ""
    """URL or folder of wheels to resolve with instead of PyPI; `none`: do not resolve."""


def lint_dockerfile(
    request: LintRequest, *, fixes: bool = False, dry_run: bool = False, as_json: bool = False
) -> int:
    """Check a Dockerfile, print the findings, return the exit code; `fixes` corrects single lines first."""
    name, machine = str(request.dockerfile), machine_of(request)
    before = read_named_text(request.dockerfile, "name the Dockerfile with --dockerfile FILE")
    if request.context and not request.context.is_dir():
        raise ConfigError(f"--context {request.context}: there is no such folder")
    after, linter = before, Linter(request, machine)
    if fixes:
        after = fix(before, lambda text: linter.judge(text)[2], file=name)
    texts = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    difference = "".join(difflib.unified_diff(*texts, fromfile=name, tofile=name))
    if difference and not dry_run:
        write_bytes_atomically(request.dockerfile, after.encode())
    declared, unchecked, findings = linter.judge(after)
    data = record_of(declared, unchecked, findings, efa=machine.efa, difference=difference)
    output.print_json(data) if as_json else print("\n".join(lint_lines(data, findings)))
    for finding in findings:
        level = Level.ERROR if finding.severity is Severity.ERROR else Level.WARNING
        annotate(level, f"{finding.subject}: {finding.evidence}", title=finding.fix)
    return ExitCode.DONE if data["ok"] else ExitCode.NO


class Linter:
    """Checks texts of one Dockerfile, and keeps the answers of the resolver."""

    def __init__(self, request: LintRequest, machine: TargetMachine) -> None:
        self.request, self.machine = request, machine
        self.answers: dict[ResolverRequest, tuple[int | None, str, str]] = {}
        # The working directory if the Dockerfile is below it, else the Dockerfile's own folder.
        here, own = Path.cwd().resolve(), request.dockerfile.resolve().parent
        self.folder = request.context or (here if own.is_relative_to(here) else own)
        ignore = find_dockerfile(self.folder, request.dockerfile)[2]
        self.rules = parse_ignore_file(read_text(ignore), str(ignore)) if ignore else ()
        self.uv = find_uv()
        self.reason = ""
        self.limit = time.monotonic() + RESOLVE_SECONDS
        if not self.uv:
            self.reason = "uv is not installed; pip install uv"
        elif request.index == "none" or (not request.index and is_offline()):
            self.reason = "no package index is used"

    def judge(self, text: str) -> "tuple[DeclaredVersions, list[str], list[Finding]]":
        """Return the versions that a Dockerfile states, what was not checked, and the findings."""
        name = str(self.request.dockerfile)
        given = parse_build_args(self.request.build_args, parse_dockerfile(text, name).arguments)
        declared = declare(
            parse_dockerfile(text, name, given).until(self.request.target),
            name,
            self.read_first,
            resolver=None if self.reason else self.resolve,
            machine=self.machine.processor,
        )
        unchecked = list(declared.installed.unchecked)
        if self.reason and any(not step.install.removes for step in declared.steps):
            unchecked = [f"what pip would refuse: {self.reason}", *unchecked]
        return declared, unchecked, judge_versions(declared, self.machine)

    def read_first(self, paths: tuple[str, ...]) -> tuple[str, str] | None:
        """Return name and text of the first of these files that is in the build context; None for none."""
        for path in (path for path in paths if not is_ignored(path, self.rules)):
            file = self.folder / path
            if file.resolve().is_relative_to(self.folder.resolve()) and file.is_file():
                return str(file), read_text(file)
        return None

    def resolve(self, request: "ResolverRequest") -> tuple[int | None, str, str]:
        """Return uv's exit code, the chosen versions and its messages."""
        if request not in self.answers:
            if time.monotonic() > self.limit:
                return None, "", "error: no time was left"
            assert self.uv
            self.answers[request] = compile_requirements(self.uv, request, index=self.request.index)
        return self.answers[request]


def is_offline() -> bool:
    """Return whether uv may not use the network."""
    return os.environ.get("UV_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def find_uv() -> Path | None:
    """Return the pinned uv of this checkout, or the one beside this Python or on the PATH, if any."""
    places = (REPOSITORY_ROOT / ".uv" / "bin" / "uv", Path(sys.executable).with_name("uv"))
    found = shutil.which("uv")
    return next((one for one in places if one.is_file()), Path(found) if found else None)


def machine_of(request: LintRequest) -> TargetMachine:
    driver = version(request.driver)
    if not request.instance_type:
        return TargetMachine(driver=driver)
    found = find_instance(request.instance_type)
    return TargetMachine(
        architecture=found.architecture,
        efa=found.efa > 0,
        rdma=found.rdma,
        family=plain_type(found.name).partition(".")[0],
        driver=driver,
        instance=found,
    )


def record_of(
    declared: "DeclaredVersions",
    unchecked: Sequence[str],
    findings: Sequence[Finding],
    *,
    efa: bool | None,
    difference: str,
) -> dict[str, Any]:
    proposed, reason = choose_base(declared, efa=bool(efa))
    stages, used = declared.parsed.stages, {*declared.bases}
    runs = (one for one in declared.parsed.instructions if one.name == "RUN" and one.stage not in used)
    names = dict.fromkeys(stages[one.stage].name for one in runs if installs_of(one.filled))
    unused = ", ".join(filter(None, names))
    words = f"stages that are not checked ({unused}): --target STAGE checks one"
    for table in old_tables(date.today()):
        _logger.warning("facts about %s are old: newer releases are not judged; update Trainyard", table)
    return {
        "ok": all(finding.severity is not Severity.ERROR for finding in findings),
        "read": {"instructions": len(declared.parsed.instructions), "installs": len(declared.steps)},
        "declared": declared_record(declared),
        "unknown": unknown_facts(declared) + ([words] if unused else []),
        "not_checked": list(unchecked),
        "findings": [finding_record(finding) for finding in findings],
        "base": {"found": declared.base.image, "proposed": proposed, "reason": reason},
        "difference": difference,
    }


def finding_record(found: Finding) -> dict[str, Any]:
    place = {"rule": found.rule, "severity": found.severity.value, "file": found.file, "line": found.line}
    words = {"what": found.subject, "why": found.evidence, "fix": found.fix}
    return {**place, **words, "fixable": found.edit is not None}


def declared_record(declared: "DeclaredVersions") -> dict[str, str]:
    """Return the versions that were found; unknown ones are left out."""
    torch = declared.torch
    found = {
        "base": declared.base.image if is_stated(declared.base.image) else "",
        "python": version_text(declared.base.python),
        "torch": torch.text if torch else version_text(declared.base.torch),
        "cuda": version_text(declared.cuda or declared.base.cuda),
        "nccl": version_text(declared.nccl),
        "efa_installer": version_text(declared.efa_installer),
        "aws_ofi_nccl": version_text(declared.efa_plugin),
    }
    return {key: value for key, value in found.items() if value}


def lint_lines(data: Mapping[str, Any], findings: Sequence[Finding]) -> list[str]:
    """Return the findings for people, each with its reason and its fix."""
    known, read = data["declared"], data["read"]
    versions = ", ".join(f"{key} {known[key]}" for key in ("torch", "cuda", "python", "nccl") if key in known)
    lines = [
        f"  read          {read['instructions']} instructions, {read['installs']} install commands",
        f"  base          {known.get('base', 'unknown')}",
        f"  versions      {versions or 'none stated'}",
    ]
    lines += [f"  unknown       {one}" for one in data["unknown"]]
    lines += [f"  not checked   {one}" for one in data["not_checked"]]
    lines += data["difference"].splitlines()
    lines += [line for finding in findings for line in finding_lines(finding)]
    if "base" in known and data["base"]["proposed"] != data["base"]["found"]:
        lines.append(f"  better base   {data['base']['proposed']}: {data['base']['reason']}")
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    others = len(findings) - errors
    partly = data["unknown"] or data["not_checked"]
    if findings:
        lines.append(f"  {errors} will break{' in what is stated' * bool(partly)}, {others} to consider")
    else:
        lines.append("  no problem in what is stated" if partly else "  nothing would break")
    return lines
