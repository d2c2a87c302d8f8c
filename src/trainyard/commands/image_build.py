"""Build training images, in AWS or here, where their content is new.

The content is what git tracks and .dockerignore allows, the Dockerfile and the arguments. Its digest is a tag
in ECR; if that tag exists, nothing is built. Several --dockerfile are built one after the other. CodeBuild
checks and pushes the image that it built, so its result is a tested digest; --builder local only builds.

Reads:      the context; git; AWS_*; TRAINYARD_IMAGE_PROJECT and TRAINYARD_SOURCE_BUCKET for two options
Writes:     the source into S3 and the image into ECR (codebuild), or the image into docker or buildah
            (local); --output; in GitHub Actions the outputs `image`, `digest`, `built` or `reason`, and the
            job summary
Exit codes: 0 the image is there; 1 the build failed, or its content is not what was expected; 2 wrong usage,
            context or Dockerfile; 4 AWS refused or failed; 5 it took too long; 130 interrupted and stopped
Example:    trainyard image build --context . --dockerfile docker/fsdp/Dockerfile --region us-west-2
"""

import argparse
import contextlib
import logging
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output, signals
from trainyard.command.checkout import SHIPPED_FILES
from trainyard.command.parser import CommandParser, add_flag, add_option, script_parser
from trainyard.commands.image_lint import LintRequest, lint_dockerfile
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.git import git_facts, tags_at_head
from trainyard.gateways.github import append_summary, refusal_in_summary, set_outputs
from trainyard.gateways.images import context_files
from trainyard.gateways.images.codebuild import CodeBuild
from trainyard.gateways.images.context_files import copy_files, find_dockerfile, tool_files
from trainyard.gateways.images.ecr import EcrRepository, find_digest, login_to, registry_host
from trainyard.gateways.images.local_builder import Login, find_builder
from trainyard.image.building.aws_build import AwsBuilder, source_files
from trainyard.image.building.build_poll import BuildPoll
from trainyard.image.building.build_record import (
    plan_lines,
    require_different_names,
    result_lines,
    result_markdown,
)
from trainyard.image.building.build_secrets import build_variables_of_secrets, parse_secret, require_readable
from trainyard.image.building.planning import plan_build, require_content
from trainyard.image.context.image_names import parse_reference, require_tag
from trainyard.image.release.published_files import parse_allowed
from trainyard.image.release.tag_strategy import is_version, tags_for
from trainyard.run.atomic_files import write_json_atomically

if TYPE_CHECKING:
    from trainyard.image.building.build_request import BuildRequest

PROJECT, PACKAGE = "trainyard", Path(__file__).resolve().parents[1]
_logger = logging.getLogger("trainyard.build_image")


def make_parser() -> CommandParser:
    parser = script_parser(__doc__, dry_run="lint, print the plan, and change nothing", json="the result")
    what, where = parser.add_argument_group("the image"), parser.add_argument_group("where to build it")
    add_option(what, "--context", "DIR", "default: .", type=arguments.path, default=Path())
    add_option(what, "--dockerfile", "FILE", "may be repeated", type=arguments.path, action="append")
    image_name = "default: the folder of the Dockerfile"
    what.add_argument("--image-name", "--image", metavar="NAME", dest="image", help=image_name)
    own = "a tag of yours, or a version such as v1.2.3; may be repeated"
    what.add_argument("--image-tag", "--tag", action="append", default=[], metavar="TAG", help=own)
    base = "base image of the last stage, whose FROM must name an argument"
    add_option(what, "--base-image", "REFERENCE", base, default="")
    add_option(what, "--target", "STAGE", "default: the last one", default="")
    add_option(what, "--platform", "OS/ARCH", "default: linux/amd64", default="linux/amd64")
    add_option(what, "--build-arg", "NAME=VALUE", "an ARG; may be repeated", action="append", default=[])
    mounted = "id=ID,src=FILE, id=ID,env=VARIABLE or id=ID,secretsmanager=NAME; may be repeated"
    add_option(what, "--secret", "SECRET", mounted, action="append", default=[])
    add_flag(what, "--auto-fix", "first correct lines of the Dockerfile, as `image lint --fix` does")
    add_option(what, "--max-context", "MB", "default: 500", type=arguments.positive, default=500)
    add_option(what, "--commit", "SHA", "commit, if the context is in no git", default="")
    add_option(what, "--expect-content", "DIGEST", "refuse other content than this")
    builder = "default: codebuild"
    where.add_argument("--builder", choices=("codebuild", "local"), default="codebuild", help=builder)
    where.add_argument("--program", choices=("docker", "buildah"), default="", help="for --builder local")
    cache = "layer cache in a registry, or none; default: in AWS the repository IMAGE-cache if there is one"
    add_option(where, "--cache", "REFERENCE", cache, default="")
    level = "level of the check"
    where.add_argument("--level", choices=("quick", "standard", "full"), default="standard", help=level)
    add_check_options(where)
    tags = ("auto", "semantic", "git-sha", "latest")
    where.add_argument("--tags", choices=tags, default="auto", help="tags of the pushed image; default: auto")
    version = "the version that becomes a tag of the image; default: a git tag of the commit"
    add_option(where, "--version", "X.Y.Z", version, default="")
    add_flag(where, "--rebuild", "build even if this content is in the registry")
    add_aws_options(where, time_limit=7200.0)
    attempts = "most starts of a build in AWS when CodeBuild itself fails; default: 3"
    add_option(where, "--max-attempts", "N", attempts, type=arguments.positive, default=3)
    add_option(parser, "--output", "FILE", "write the result as JSON", type=arguments.path)
    parser.set_defaults(secrets=())  # --secret, once it is parsed
    parser.check = check_options
    return parser


def add_aws_options(parser: argparse._ActionsContainer, *, time_limit: float) -> None:
    """Add the options of a build or a check in CodeBuild; `time_limit` in seconds is the default."""
    project = os.environ.get("TRAINYARD_IMAGE_PROJECT") or PROJECT
    add_option(parser, "--project", "NAME", "in CodeBuild; default: trainyard", default=project)
    bucket = os.environ.get("TRAINYARD_SOURCE_BUCKET", "")
    add_option(parser, "--source-bucket", "NAME", "default: PROJECT-source-ACCOUNT-REGION", default=bucket)
    add_option(parser, "--region", "REGION", "AWS region; default: from the environment", default="")
    limit = f"default: {time_limit / 60:.0f}m"
    add_option(parser, "--time-limit", "DURATION", limit, type=arguments.duration, default=time_limit)
    add_option(parser, "--every", "DURATION", "time between two polls", type=arguments.duration, default=5.0)


def send_tools(
    aws: CodeBuild, args: argparse.Namespace, account: AwsAccount, files: Mapping[str, Path]
) -> tuple[dict[str, str], bool]:
    """Send `files` and those of this repository that a build needs; return what `send_source` does."""
    bucket = args.source_bucket or f"{args.project}-source-{account.identity()[0]}-{aws.region}"
    sent = {**tool_files(SHIPPED_FILES, PACKAGE), **files}
    return aws.send_source(sent, project=args.project, bucket=bucket)


def add_check_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of `image check` that a build in AWS passes on to it."""
    add_option(parser, "--python", "COMMAND", "Python in the image; default: python")
    add_flag(parser, "--cpu", "the image is for CPU: torch may lack CUDA")
    add_flag(parser, "--no-torch", "the image is not to train: it may lack torch")
    add_flag(parser, "--efa", "the image must have the EFA plugin of NCCL")
    add_option(parser, "--max-size", "GB", "default: 25", type=arguments.positive)
    allow = "a file that is no secret, * for any characters, and why; may be repeated"
    add_option(parser, "--allow", "PATH=REASON", allow, action="append", default=[])


def check_flags(args: argparse.Namespace) -> str:
    """Return the options of the check as words, quoted as `xargs` reads them."""
    names = ("cpu", "no_torch", "efa", "gpus")
    words = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name, False)]
    words += [f"--python={args.python}"] if args.python else []
    words += [f"--max-size={args.max_size}"] if args.max_size else []
    return shlex.join([*words, *(f"--allow={one}" for one in args.allow)])


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return make_parser().parse_args(argv)


def check_options(parser: CommandParser, args: argparse.Namespace) -> None:
    if args.image and args.dockerfile and len(args.dockerfile) > 1:
        parser.error("--image names one image; omit it where several Dockerfiles are built")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    signals.end_at_signals()
    data, code = answer(args)
    lines = plan_lines if args.dry_run else result_lines
    output.print_json(data) if args.json else print("\n".join(lines(data["builds"])))
    return code


def answer(args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Build the images of the options; return their record, or the plan of a dry run, and the code."""
    take_image_tags(args)
    parse_allowed(args.allow)
    args.secrets = tuple(map(parse_secret, args.secret))
    if args.auto_fix:
        for file in args.dockerfile or [args.context / "Dockerfile"]:
            given = {name: value for name, _, value in (word.partition("=") for word in args.build_arg)}
            lint(args, file, build_args=given, fixes=True)
    git = git_facts(args.context)
    if args.commit and git.get("commit") not in (None, args.commit):
        raise ConfigError(f"--commit {args.commit}: {args.context} is at commit {git['commit']}. Omit it.")
    git = git or ({"commit": args.commit, "dirty": False} if args.commit else {})
    known = {"build_args": args.build_arg, "most_bytes": args.max_context * 1000**2, "git": git}
    known |= {name: getattr(args, name) for name in ("platform", "target", "base_image")}
    requests = [
        plan_build(args.context, file, files=context_files, image=args.image or "", **known)
        for file in args.dockerfile or [args.context / "Dockerfile"]
    ]
    require_different_names([request.image for request in requests])
    require_content(requests, args.expect_content)
    for request in requests if args.version else ():
        version_tags(args.version, request)
    if args.dry_run:
        faults = [lint(args, Path(one.dockerfile), build_args=one.build_args) for one in requests]
        if args.builder == "codebuild":
            require_sendable(args, requests)
        plan = [request.record() | {"tags": args.image_tag} for request in requests]
        return {"builds": plan}, max(faults, default=ExitCode.DONE)
    with refusal_in_summary("Image not built"):
        build = build_here if args.builder == "local" else build_in_aws
        return report(args, build(args, requests)), ExitCode.DONE


def take_image_tags(args: argparse.Namespace) -> None:
    """Move a version among the values of --image-tag to --version. Raises ConfigError for an invalid tag."""
    versions = [tag for tag in args.image_tag if is_version(tag)]
    if len({*versions, *filter(None, [args.version])}) > 1:
        raise ConfigError(f"--image-tag {' and '.join(versions)}: an image has one version")
    args.version = args.version or next(iter(versions), "")
    args.image_tag = [require_tag(tag) for tag in args.image_tag if tag not in versions]


def lint(
    args: argparse.Namespace, dockerfile: Path, *, build_args: Mapping[str, str], fixes: bool = False
) -> int:
    """Lint a Dockerfile as the build in AWS does, and return the exit code; what it prints goes to stderr."""
    name, _, _ = find_dockerfile(args.context, dockerfile)
    words = [f"{name}={value}" for name, value in build_args.items()]
    given = LintRequest(args.context / name, context=args.context, target=args.target, build_args=words)
    with contextlib.redirect_stdout(sys.stderr):
        return lint_dockerfile(given, fixes=fixes, dry_run=args.dry_run)


def require_sendable(args: argparse.Namespace, requests: "Sequence[BuildRequest]") -> None:
    """Raise ConfigError for anything that a build in AWS would refuse after its source was sent."""
    build_variables_of_secrets(args.secrets, project=args.project)
    for request in requests:
        source_files(request)


def build_here(args: argparse.Namespace, requests: "Sequence[BuildRequest]") -> list[dict[str, Any]]:
    """Build one after the other, because they share the machine."""
    require_readable(args.secrets, os.environ)
    builder, results = find_builder(args.program), []
    cache = "" if args.cache == "none" else args.cache
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
                    cache=cache,
                    on_line=partial(_logger.info, "%s | %s", request.image),
                    secrets=args.secrets,
                    logins=logins_for(request, cache),
                )
        else:
            builder.tag(name, f"{request.image}:latest")  # `latest` may be another image by now
        versions = version_tags(args.version, request) if args.version else []
        for tag in (*versions, *args.image_tag):
            builder.tag(name, f"{request.image}:{tag}")
        facts = {"uri": name, "digest": "", "built": built, "seconds": round(time.monotonic() - started, 1)}
        results.append(request.record() | facts | {"tags": [*versions, *args.image_tag]})
    return results


def build_in_aws(args: argparse.Namespace, requests: "Sequence[BuildRequest]") -> list[dict[str, Any]]:
    """Build one after the other; a failure ends the command."""
    require_sendable(args, requests)
    # A git tag at HEAD is the version of that commit only, not of a changed tree or of another --commit.
    is_head = not args.commit and not any(request.dirty for request in requests)
    version = args.version or (next(iter(tags_at_head(args.context)), "") if is_head else "")
    account = AwsAccount(args.region)
    aws, number = CodeBuild(account), account.identity()[0]
    plain, secrets = build_variables_of_secrets(args.secrets, project=args.project)
    variables = {"TAGS": args.tags, "VERSION": version, **plain}
    variables |= {"CHECK_FLAGS": flags} if (flags := check_flags(args)) else {}
    variables |= {"IMAGE_TAGS": " ".join(args.image_tag)} if args.image_tag else {}
    builder = AwsBuilder(
        aws,
        build_poll(aws, args, most_attempts=args.max_attempts),
        partial(send_tools, aws, args, account),
        partial(find_digest, aws=account, account=number, region=aws.region, needs_repository=True),
        lambda request: EcrRepository(request.image, args.region).fixed_tags(),
        lambda request: [*needed_tags(args.tags, version, request), *args.image_tag],
        partial(cache_of, account, args.cache),
        host=registry_host(number, aws.region),
        project=args.project,
        level=args.level,
        variables=variables,
        secrets=secrets,
        buildspec=(SHIPPED_FILES / "buildspec.yml").read_bytes(),
        token=f"{time.time_ns():x}",
        rebuild=args.rebuild,
    )
    return builder.build(requests)


def build_poll(aws: CodeBuild, args: argparse.Namespace, *, most_attempts: int = 3) -> BuildPoll:
    return BuildPoll(
        aws,
        lambda image, text: _logger.info("%s | %s", image, text),
        time.monotonic,
        seconds=args.time_limit,
        poll_seconds=args.every,
        most_attempts=most_attempts,
    )


def cache_of(account: AwsAccount, named: str, request: "BuildRequest") -> str:
    """Return the named layer cache, else the repository IMAGE-cache if there is one; empty for none."""
    if named:
        return "" if named == "none" else named
    repository = f"{request.image}-cache"
    what, absent = f"find the layer cache {repository}", ("RepositoryNotFoundException",)
    call = partial(account.call, "ecr", "describe_repositories", what=what, absent=absent)
    answer = call(repositoryNames=[repository])
    found = (answer or {}).get("repositories") or ()
    return f"{found[0]['repositoryUri']}:latest" if found else ""


def logins_for(request: "BuildRequest", cache: str) -> list[Login]:
    """Return logins to the ECR registries of the bases and the cache."""
    names = [*(base for base in request.bases if base != "scratch"), *([cache] if cache else [])]
    found = [login_to(host) for host in sorted({parse_reference(name).host for name in names})]
    return [login for login in found if login is not None]


def version_tags(version: str, request: "BuildRequest") -> list[str]:
    """Return the tags of a version. Raises ConfigError if it is not a version or the tree has changes."""
    if not is_version(version):
        raise ConfigError(
            f"--version {version[:60]}: not a version such as 1.2.3. Name any other tag with --image-tag."
        )
    if request.dirty:
        raise ConfigError(f"--version {version}: {request.context} has changes. Commit them first.")
    tags = tags_for("semantic", commit="", dirty=False, versions=[version], content="")
    return [tag.name for tag in tags]


def needed_tags(strategy: str, version: str, request: "BuildRequest") -> list[str]:
    """The tags that an image must have to count as the requested one."""
    versions = [version] if version else []
    tags = tags_for(
        strategy, commit=request.commit, dirty=request.dirty, versions=versions, content=request.tag
    )
    return [tag.name for tag in tags if tag.needed]


def report(args: argparse.Namespace, results: list[dict[str, Any]]) -> dict[str, Any]:
    first = results[0]
    data = {"image": first["uri"], "digest": first["digest"], "built": first["built"], "builds": results}
    if args.output:
        write_json_atomically(args.output, data)
    if args.builder == "codebuild":
        set_outputs({"image": first["uri"], "digest": first["digest"], "built": str(first["built"]).lower()})
        append_summary(result_markdown(results))
    return data
