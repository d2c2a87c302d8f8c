"""Check an image before it is deployed: its packages match its lock, import, and compute correctly.

quick checks versions, imports, torch, user, entry point and size; standard adds CUDA, NCCL, the EFA plugin, a
model's configuration and secrets in layers; full adds a forward and backward pass and a sum over two
processes. A check without an answer counts as failed. The lock is the one that --lock names, or that the
image was built with. Without one the versions are unknown, and what the image installed by name must import.
An image without torch fails, unless --no-torch. Root is a warning. A file that was published with its package
is no secret of yours: the index is asked for its digests.

Reads:      --image, from docker or buildah here (codebuild: from its registry, in AWS); --lock
Writes:     --output; with --builder codebuild a build and its source in S3; in GitHub Actions the
            job summary
Exit codes: 0 no check fails; 1 one does; 2 wrong usage, or there is no such image; 4 AWS or the
            registry refused or failed; 5 it took too long; 130 interrupted
Example:    trainyard image check --image fsdp:latest --level standard --builder local
"""

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output, signals
from trainyard.command.checkout import REPOSITORY_ROOT, SHIPPED_FILES
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.commands.image_build import (
    add_aws_options,
    add_check_options,
    build_poll,
    check_flags,
    send_tools,
)
from trainyard.commands.image_lint import find_uv, is_offline
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.images.codebuild import CodeBuild
from trainyard.gateways.images.ecr import login_to
from trainyard.gateways.images.image_layers import read_layers
from trainyard.gateways.images.local_builder import find_builder
from trainyard.gateways.package_resolver import published_digests
from trainyard.image.building.aws_build import check_variables, exported_answers
from trainyard.image.context.context_secrets import secret_in
from trainyard.image.context.image_names import parse_reference
from trainyard.image.release.check_levels import (
    LEVELS,
    check_lines,
    demanded_packages,
    find_locks,
    judge_declared,
    probe_answers,
    probe_request,
    processor_of,
)
from trainyard.image.release.published_files import judge_layers, parse_allowed
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.untrusted_files import read_named_text

if TYPE_CHECKING:
    from trainyard.gateways.images.local_builder import ImageFacts, LocalBuilder
    from trainyard.image.release.check_levels import Answer

MOST_GB, PYTHON = 25, "python"
GPU_MACHINE = {
    "environmentTypeOverride": "LINUX_GPU_CONTAINER",
    "computeTypeOverride": "BUILD_GENERAL1_LARGE",
}
"""A build with a GPU. https://docs.aws.amazon.com/codebuild/latest/userguide/build-env-ref-compute-types.html"""
PROBE = SHIPPED_FILES / "docker" / "probe" / "container_probe.py"
_logger = logging.getLogger("trainyard.check_image")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print which checks would be made", json="the result")
    add_option(parser, "--image", "URI", "name:tag, or a reference in a registry", required=True)
    levels = ("quick", "standard", "full")
    parser.add_argument("--level", choices=levels, default="standard", help="default: standard")
    builders = "default: codebuild, which takes no --lock"
    parser.add_argument("--builder", choices=("codebuild", "local"), default="codebuild", help=builders)
    program = "program of --builder local"
    parser.add_argument("--program", choices=("docker", "buildah"), default="", help=program)
    lock = "a lock that the image must hold; may be repeated; default: the locks that it was built with"
    add_option(parser, "--lock", "FILE", lock, type=arguments.path, action="append")
    add_check_options(parser)
    gpus = (
        "give the container the machine's GPUs, and fail without one; in AWS, on a GPU machine of CodeBuild"
    )
    add_flag(parser, "--gpus", gpus)
    add_aws_options(parser, time_limit=1800.0)
    add_option(parser, "--output", "FILE", "write the result as JSON", type=arguments.path)
    args = parser.parse_args(argv)
    if args.lock and args.builder == "codebuild":
        parser.error("--lock: only with --builder local; a check in AWS takes the lock that was built with")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    parse_reference(args.image)
    signals.end_at_signals()
    if args.dry_run:
        checks = LEVELS[args.level]
        plan = {"image": args.image, "level": args.level, "checks": list(checks)}
        output.print_json(plan) if args.json else print("\n".join(f"  {one}" for one in checks))
        return ExitCode.DONE
    return check_in_aws(args) if args.builder == "codebuild" else report(args, check_here(args))


def check_here(args: argparse.Namespace) -> "list[Answer]":
    allowed = parse_allowed(args.allow)
    builder = find_builder(args.program)
    reference = parse_reference(args.image)
    # A tag in a registry may have moved since it was pulled. buildah calls its own images localhost/NAME.
    moves = reference.host not in ("", "localhost") and not reference.digest
    if moves or not builder.has(args.image):
        builder.pull(args.image, login_to(reference.host))
    facts = builder.inspect(args.image)
    answers = judge_declared(facts, most_bytes=(args.max_size or MOST_GB) * 1000**3)
    if "secrets" in LEVELS[args.level]:
        with tempfile.TemporaryDirectory(prefix="trainyard-layers-") as folder:
            archive = Path(folder) / "image.tar"
            builder.save(args.image, archive)
            read = read_layers(archive, secret_in)
        uv = None if is_offline() else find_uv()
        processor = processor_of(facts.architecture)

        def digests_of(name: str, version: str, python: str) -> Mapping[str, str] | str:
            if not uv:
                return "no index is asked: uv is missing, or UV_OFFLINE is set"
            return published_digests(uv, name, version, python, processor=processor)

        answers.append(judge_layers(read, digests_of, allowed))
    return [*answers, *probe(args, builder, facts)]


def probe(args: argparse.Namespace, builder: "LocalBuilder", facts: "ImageFacts") -> "list[Answer]":
    """Return the answers of the checks that run in a container."""
    packages = packages_of(args, facts)
    request = probe_request(
        args.level, packages, cpu=args.cpu, efa=args.efa, gpus=args.gpus, no_torch=args.no_torch
    )
    source = PROBE.read_text(encoding="utf-8")
    command = [args.python or PYTHON, "-", json.dumps(request)]
    started = time.monotonic()
    done = builder.run(args.image, command, stdin=source, seconds=args.time_limit, gpus=args.gpus)
    _logger.info("the probe ended with %s after %.0f s", done.exit_code, time.monotonic() - started)
    words = " ".join(done.stderr.split())[-400:]
    how = "it did not end in time"
    if done.exit_code is not None:
        how = f"the container ended with {done.exit_code}"
    return probe_answers(request["checks"], done.stdout, f"{how}: {words}" if words else how)


def packages_of(args: argparse.Namespace, facts: "ImageFacts") -> dict[str, dict[str, str]] | None:
    """Return the packages that the image's locks pin; None if no lock is known or its text is not here."""
    processor = processor_of(facts.architecture)
    if args.lock:
        texts = [read_named_text(path, "Name a lock with --lock FILE.") for path in args.lock]
        packages = demanded_packages(texts, processor)
        if not any(packages.values()):
            named = ", ".join(str(path) for path in args.lock)
            raise ConfigError(
                f"--lock {named}: no package is pinned to one version, so nothing can be compared"
            )
        return packages
    found, missing = find_locks(facts.labels, (Path.cwd(), REPOSITORY_ROOT))
    for name in missing:
        _logger.warning(
            "%s was built with %s, and no file here is that lock; name it with --lock", args.image, name
        )
    return demanded_packages(list(found.values()), processor) if found and not missing else None


def check_in_aws(args: argparse.Namespace) -> int:
    """Start the buildspec's task `check`, which runs this command in AWS with --builder local."""
    account = AwsAccount(args.region)
    aws = CodeBuild(account)
    source, _ = send_tools(aws, args, account, {})
    variables = check_variables(args.image, args.level, check_flags(args))
    machine = GPU_MACHINE if args.gpus else {}
    token = f"check-{time.time_ns():x}"

    def start(attempt: int) -> str:
        return aws.start(
            args.project, source=source | machine, variables=variables, token=f"{token}-{attempt}"
        )

    ended = build_poll(aws, args).follow("check", start)
    buildspec = (SHIPPED_FILES / "buildspec.yml").read_bytes()
    answers = exported_answers(ended, args.image, args.level, buildspec)
    unknown = [name for name, ok in answers.items() if ok is None]
    says = f"no check fails; not known: {', '.join(unknown)}" if unknown else "every check holds"
    more = {"ok": True, "build_id": ended.build_id, "answers": answers}
    return show(args, more, [f"  {args.image}: {args.level}: {says}"])


def report(args: argparse.Namespace, answers: "list[Answer]") -> int:
    ok = all(answer.ok is not False for answer in answers)
    checks = [dict(vars(answer)) for answer in answers]
    return show(args, {"ok": ok, "checks": checks}, check_lines(args.image, args.level, answers))


def show(args: argparse.Namespace, facts: dict[str, Any], lines: list[str]) -> int:
    data = {"image": args.image, "level": args.level, **facts}
    if args.output:
        write_json_atomically(args.output, data)
    output.print_json(data) if args.json else print("\n".join(lines))
    return ExitCode.DONE if data["ok"] else ExitCode.NO
