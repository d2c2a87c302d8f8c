"""Build training images in AWS, or on this machine, and only where their content is new.

The content is what git tracks and .dockerignore allows, the Dockerfile and the arguments. Its digest is a tag
in ECR; if that tag exists, nothing is built. Several --dockerfile are built in parallel. CodeBuild checks and
pushes the image that it built, so its result is a tested digest; --builder local only builds.

Reads:      the context; git; AWS_*; TRAINYARD_IMAGE_PROJECT and TRAINYARD_SOURCE_BUCKET for two options
Writes:     the source into S3 and the image into ECR (codebuild), or the image into docker or buildah
            (local); --output; in GitHub Actions the outputs `image`, `digest`, `built` or `reason`, and the
            job summary
Exit codes: 0 the image is there; 1 the build failed, or its content is not what was expected; 2 wrong usage,
            context or Dockerfile; 4 AWS refused or failed; 5 it took too long; 130 interrupted and stopped
Example:    scripts/build_image.py --context . --dockerfile docker/fsdp/Dockerfile --region us-west-2
"""

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output, signals
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode, TrainyardError

if TYPE_CHECKING:
    from trainyard.image.building.build_request import BuildRequest

PROJECT = "trainyard"
_logger = logging.getLogger("trainyard.build_image")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    what, where = parser.add_argument_group("the image"), parser.add_argument_group("where to build it")
    what.add_argument("--context", type=arguments.path, default=Path(), metavar="DIR", help="default: .")
    what.add_argument(
        "--dockerfile", type=arguments.path, action="append", metavar="FILE", help="may be repeated"
    )
    what.add_argument("--image", metavar="NAME", help="default: the folder of the Dockerfile")
    what.add_argument("--target", default="", metavar="STAGE", help="default: the last one")
    what.add_argument("--platform", default="linux/amd64", metavar="OS/ARCH", help="default: linux/amd64")
    what.add_argument(
        "--build-arg", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    what.add_argument(
        "--max-context", type=arguments.positive, default=500, metavar="MB", help="default: 500"
    )
    what.add_argument("--commit", default="", metavar="SHA", help="the commit, if git does not know it")
    what.add_argument("--expect-content", metavar="DIGEST", help="refuse to build anything else")
    where.add_argument(
        "--builder", choices=("codebuild", "local"), default="codebuild", help="default: codebuild"
    )
    where.add_argument("--program", choices=("docker", "buildah"), default="", help="for --builder local")
    where.add_argument("--cache", default="", metavar="REFERENCE", help="layer cache in a registry")
    where.add_argument("--source", choices=("s3", "github"), default="s3", help="for CodeBuild; default: s3")
    project = os.environ.get("TRAINYARD_IMAGE_PROJECT") or PROJECT
    where.add_argument("--project", default=project, metavar="NAME", help="in CodeBuild; default: trainyard")
    bucket = os.environ.get("TRAINYARD_SOURCE_BUCKET", "")
    where.add_argument(
        "--source-bucket", default=bucket, metavar="NAME", help="default: PROJECT-source-ACCOUNT"
    )
    where.add_argument("--region", default="", help="AWS region; default: from the environment")
    where.add_argument(
        "--level", choices=("quick", "standard", "full"), default="standard", help="level of the check"
    )
    tags = ("auto", "semantic", "git-sha", "latest")
    where.add_argument("--tags", choices=tags, default="auto", help="tags of the pushed image; default: auto")
    version = "the version that the image gets as a tag; default: a tag of git on the commit"
    where.add_argument("--version", default="", metavar="X.Y.Z", help=version)
    where.add_argument("--rebuild", action="store_true", help="build even if this content is in the registry")
    where.add_argument(
        "--time-limit", type=arguments.duration, default=7200.0, metavar="DURATION", help="default: 2h"
    )
    attempts = "starts of a build in AWS, after faults of CodeBuild itself; default: 3"
    where.add_argument("--max-attempts", type=arguments.positive, default=3, metavar="N", help=attempts)
    where.add_argument(
        "--poll", type=arguments.seconds, default=5.0, metavar="S", help="seconds between polls"
    )
    parser.add_argument("--output", type=arguments.path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, request and change nothing")
    args = parser.parse_args(argv)
    if args.image and args.dockerfile and len(args.dockerfile) > 1:
        parser.error("--image names one image; omit it where several Dockerfiles are built")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways.git import git_facts
    from trainyard.gateways.github import refusal_in_summary
    from trainyard.gateways.images import context_files
    from trainyard.image.building.build_record import plan_lines, require_different_names
    from trainyard.image.building.planning import BuildOptions, plan_build, require_content

    signals.end_at_signals()
    options = BuildOptions(
        args.image or "", args.platform, args.target, args.build_arg, args.max_context * 1000**2
    )
    git = git_facts(args.context)
    if args.commit and git.get("commit") not in (None, args.commit):
        raise ConfigError(f"--commit {args.commit}: {args.context} is at commit {git['commit']}. Omit it.")
    git = git or ({"commit": args.commit, "dirty": False} if args.commit else {})
    requests = [
        plan_build(args.context, file, options, files=context_files, git=git)
        for file in args.dockerfile or [args.context / "Dockerfile"]
    ]
    require_different_names([request.image for request in requests])
    require_content(requests, args.expect_content)
    for request in requests if args.version else ():
        version_tags(args.version, request)
    if args.dry_run:
        plan = [request.record() for request in requests]
        output.print_json({"builds": plan}) if args.json else print("\n".join(plan_lines(plan)))
        return ExitCode.DONE
    with refusal_in_summary("Image not built"):
        build = build_here if args.builder == "local" else build_in_aws
        return report(args, build(args, requests))


def build_here(args: argparse.Namespace, requests: "Sequence[BuildRequest]") -> list[dict[str, Any]]:
    """Build one after the other, because they share the machine."""
    from trainyard.gateways.images.context_files import copy_files
    from trainyard.gateways.images.ecr import login_to
    from trainyard.gateways.images.local_builder import find_builder
    from trainyard.image.context.image_names import parse_reference

    builder, results = find_builder(args.program), []
    if args.cache:
        builder.log_in(login_to(parse_reference(args.cache).host))
    for request in requests:
        name, started = f"{request.image}:{request.tag}", time.monotonic()
        built = args.rebuild or bool(request.unpinned) or not builder.has(name)
        if built:
            with tempfile.TemporaryDirectory(prefix="trainyard-context-") as folder:
                copy_files({one: args.context / one for one in request.names}, Path(folder))
                builder.build(
                    request,
                    context=Path(folder),
                    dockerfile=args.context / request.dockerfile,
                    cache=args.cache,
                    on_line=partial(_logger.info, "%s | %s", request.image),
                )
        else:
            builder.tag(name, f"{request.image}:latest")  # the tag may name another content by now
        for tag in version_tags(args.version, request) if args.version else ():
            builder.tag(name, f"{request.image}:{tag}")
        facts = {"uri": name, "digest": "", "built": built, "seconds": round(time.monotonic() - started, 1)}
        results.append(request.record() | facts)
    return results


def build_in_aws(args: argparse.Namespace, requests: "Sequence[BuildRequest]") -> list[dict[str, Any]]:
    """Build in parallel; raise the first failure when all have ended."""
    from trainyard.gateways.aws_refusals import AwsAccount
    from trainyard.gateways.git import origin_address, tags_at_head
    from trainyard.gateways.images.codebuild import CodeBuild
    from trainyard.gateways.images.context_files import tool_files, write_archive
    from trainyard.gateways.images.ecr import find_digest
    from trainyard.image.building.aws_build import AwsBuilder, AwsOptions
    from trainyard.image.building.build_poll import BuildPoll

    # A tag of git at HEAD is the version of that commit only: not of a changed tree, nor of another --commit.
    is_head = not args.commit and not any(request.dirty for request in requests)
    version = args.version or (next(iter(tags_at_head(args.context)), "") if is_head else "")
    options = AwsOptions(
        args.project,
        args.source_bucket,
        args.source,
        level=args.level,
        tags=args.tags,
        version=version,
        cache=args.cache,
        rebuild=args.rebuild,
    )
    account = AwsAccount(args.region)
    aws = CodeBuild(account)
    builder = AwsBuilder(
        aws,
        BuildPoll(
            aws,
            lambda image, text: _logger.info("%s | %s", image, text),
            time.monotonic,
            time.sleep,
            seconds=args.time_limit,
            poll_seconds=args.poll,
            most_attempts=args.max_attempts,
        ),
        tool_files,
        write_archive,
        partial(find_digest, aws=account, needs_repository=True),
        partial(needed_tags, args.tags, version),
        account=account.identity()[0],
        options=options,
        root=REPOSITORY_ROOT,
        origin=origin_address(args.context),
        token=f"{time.time_ns():x}",
    )
    results = builder.build(requests)
    failed = [result for result in results if isinstance(result, TrainyardError)]
    for error in failed[1:]:
        _logger.error("%s", error)
    if failed:
        raise failed[0]
    return [result for result in results if isinstance(result, dict)]


def version_tags(version: str, request: "BuildRequest") -> list[str]:
    """Return the tags of a version. Raises ConfigError if it is none, or the tree has changes."""
    from trainyard.image.release.tag_strategy import is_version, tags_for

    if not is_version(version):
        raise ConfigError(
            f"--version {version[:60]}: this is no version such as 1.2.3. Every other tag is made from the "
            "content or the commit: see --tags."
        )
    if request.dirty:
        raise ConfigError(f"--version {version}: {request.context} has changes that are not committed.")
    tags = tags_for("semantic", commit="", dirty=False, versions=[version], content="")
    return [tag.name for tag in tags]


def needed_tags(strategy: str, version: str, request: "BuildRequest") -> list[str]:
    """The tags that an image must have to count as the requested one."""
    from trainyard.image.release.tag_strategy import tags_for

    versions = [version] if version else []
    tags = tags_for(
        strategy, commit=request.commit, dirty=request.dirty, versions=versions, content=request.tag
    )
    return [tag.name for tag in tags if tag.needed]


def report(args: argparse.Namespace, results: list[dict[str, Any]]) -> int:
    from trainyard.gateways.github import append_summary, set_outputs
    from trainyard.image.building.build_record import result_lines, result_markdown
    from trainyard.run.atomic_files import write_json_atomically

    first = results[0]
    data = {"image": first["uri"], "digest": first["digest"], "built": first["built"], "builds": results}
    if args.output:
        write_json_atomically(args.output, data)
    if args.builder == "codebuild":
        set_outputs({"image": first["uri"], "digest": first["digest"], "built": str(first["built"]).lower()})
        append_summary(result_markdown(results))
    output.print_json(data) if args.json else print("\n".join(result_lines(results)))
    return ExitCode.DONE
