"""Push an image that was built here, read its digest back, scan it, and only then set its tags.

An immutable tag is never moved: a version names one image permanently. SBOM and provenance of BuildKit are
pushed with the image. Each of several --region and --repository gets the same digest. ECR scans what it gets;
for another registry nothing is scanned.

Reads:      --image, from docker or buildah here, with oras; git, or --commit and --version; AWS_*;
            ECR_REPOSITORY
Writes:     the image and its tags into ECR, or into --registry; --output; in GitHub Actions the outputs
            `image` and `digest`
Exit codes: 0 pushed, and the digest read back is equal; 1 it differs, a tag is taken, or the scan found a
            fault of --fail-on or above; 2 wrong usage, no such image, repository or program; 4 AWS or the
            registry refused or failed
Example:    trainyard image push --image fsdp:latest --repository fsdp --tags auto --region us-west-2
"""

import argparse
import logging
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output, signals
from trainyard.command.parser import CommandParser, add_option, script_parser
from trainyard.errors import CheckFailedError, ConfigError, ExitCode
from trainyard.gateways.git import git_facts, tags_at_head
from trainyard.gateways.github import set_outputs
from trainyard.gateways.images.ecr import EcrRepository
from trainyard.gateways.images.local_builder import Login, find_builder
from trainyard.gateways.images.registry import Registry
from trainyard.image.building.build_request import COMMIT_LABEL, CONTENT_LABEL
from trainyard.image.context.build_context import content_tag
from trainyard.image.context.image_names import require_repository, require_tag
from trainyard.image.release.release_order import ReleasePlace, judge_scan, release
from trainyard.image.release.tag_strategy import (
    Tag,
    check_tags,
    facts_of_own_build,
    find_image_source,
    tags_for,
)
from trainyard.run.atomic_files import write_json_atomically

if TYPE_CHECKING:
    from trainyard.gateways.images.local_builder import ImageFacts, LocalBuilder

_logger = logging.getLogger("trainyard.push_image")
# Time limit of ECR's scan.
_SCAN_SECONDS = 600.0


def make_parser() -> CommandParser:
    parser = script_parser(__doc__, dry_run="print what would be pushed; change nothing", json="the result")
    add_option(parser, "--image", "NAME", "name:tag, in docker or buildah here", required=True)
    repository = "repository to push to; may be repeated; default: those of $ECR_REPOSITORY"
    add_option(parser, "--repository", "NAME", repository, action="append", default=None)
    tags = ("auto", "semantic", "git-sha", "latest")
    parser.add_argument("--tags", choices=tags, default="auto", help="default: auto")
    further = "a further tag, which moves to this image if it is mutable; may be repeated"
    add_option(parser, "--tag", "TAG", further, action="append", default=[])
    add_option(parser, "--region", "REGION", "region of ECR; may be repeated", action="append", default=[])
    add_option(parser, "--registry", "HOST", "a registry other than ECR, such as 127.0.0.1:5000", default="")
    parser.add_argument("--program", choices=("docker", "buildah"), default="", help="default: what runs")
    add_option(parser, "--commit", "SHA", "commit, if the image names none", default="")
    add_option(parser, "--version", "X.Y.Z", "default: a tag of git on the commit", default="")
    passed = "level of trainyard image check that the image passed; recorded as a tag"
    parser.add_argument("--checked", choices=("quick", "standard", "full"), default="", help=passed)
    levels = ("critical", "high", "medium", "low", "none")
    parser.add_argument("--fail-on", choices=levels, default="critical", help="lowest severity that fails")
    add_option(parser, "--output", "FILE", "write the result as JSON", type=arguments.path)
    parser.check = check_options
    return parser


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return make_parser().parse_args(argv)


def check_options(parser: CommandParser, args: argparse.Namespace) -> None:
    """Refuse options that contradict each other, and complete those that are open."""
    if args.registry and args.region:
        parser.error("--region is for ECR; omit it with --registry")
    own = os.environ.get("ECR_REPOSITORY", "").split()
    args.repository = list(dict.fromkeys(args.repository or own))
    if not args.repository:
        parser.error("name the repository: --repository NAME")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    signals.end_at_signals()
    data, _ = answer(args)
    if args.json:
        output.print_json(data)
    elif args.dry_run:
        print("\n".join(f"  {key}: {value}" for key, value in data.items()))
    else:
        print("\n".join(result_lines(data["places"])))
    return ExitCode.DONE


def answer(args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Push the image that the options name; return its record, for a dry run the plan, and the exit code."""
    for tag in args.tag:
        require_tag(tag)
    for repository in args.repository:
        require_repository(repository)
    builder = find_builder(args.program)
    facts = facts_of_own_build(args.image, builder, builder.inspect(args.image))
    tags = tags_of(args, facts)
    if args.dry_run:
        plan: dict[str, Any] = {"image": args.image, "repositories": args.repository}
        plan |= {"places": [args.registry] if args.registry else args.region}
        plan |= {"tags": [tag.name for tag in tags]}
        return plan, ExitCode.DONE
    # Look up every repository in every region, before anything is pushed anywhere.
    named = [""] if args.registry else list(dict.fromkeys(args.region)) or [os.environ.get("AWS_REGION", "")]
    pairs = [(repository, region) for repository in args.repository for region in named]
    places = [open_release_place(args, repository, region, builder) for repository, region in pairs]
    content = facts.labels.get(CONTENT_LABEL, "")
    found = release(
        places,
        temporary=f"build-{facts.image_id[:12]}-{time.time_ns():x}",
        tags=lambda digest: [*tags, *check_tags(args.checked, content, digest)],
    )
    return report(args, [one.record() for one in found]), ExitCode.DONE


def tags_of(args: argparse.Namespace, facts: "ImageFacts") -> list[Tag]:
    content, labelled = facts.labels.get(CONTENT_LABEL, ""), facts.labels.get(COMMIT_LABEL, "")
    if args.commit and labelled not in ("", args.commit):
        raise ConfigError(f"--commit {args.commit}: {args.image} was built from commit {labelled}. Omit it.")
    commit, dirty, versions = find_image_source(
        content=content,
        labelled=labelled,
        commit=args.commit,
        version=args.version,
        git=git_facts(Path()),
        at_head=partial(tags_at_head, Path()),
    )
    found = tags_for(
        args.tags,
        commit=commit,
        dirty=dirty,
        versions=versions,
        content=content_tag(content) if content else "",
        image_id=facts.image_id,
    )
    # Tags that the user names move where the repository lets them.
    own_names = dict.fromkeys(name for name in args.tag if name not in {tag.name for tag in found})
    return [*(Tag(name, moves=True, needed=True) for name in own_names), *found]


def open_release_place(
    args: argparse.Namespace, repository: str, region: str, builder: "LocalBuilder"
) -> ReleasePlace:
    """Look up the repository and log in."""
    ecr = None if args.registry else EcrRepository(repository, region)
    fixed = ecr.fixed_tags() if ecr else lambda _tag: False
    login = ecr.login() if ecr else Login(args.registry, "", "")

    def push(target: str) -> str:
        digest = builder.push(args.image, target, login)
        _logger.info("%s@%s pushed", target, digest)
        return digest

    scan = partial(scan_result, args, ecr) if ecr else lambda _digest: "the registry does not scan"
    return ReleasePlace(Registry(login), repository, f"{login.host}/{repository}", fixed, push, scan)


def scan_result(args: argparse.Namespace, ecr: EcrRepository, digest: str) -> str:
    """Return the result of the scan. Raises CheckFailedError for a finding of --fail-on or above."""
    seconds = 0.0 if args.fail_on == "none" else _SCAN_SECONDS
    is_good, text = judge_scan(ecr.scan(digest, seconds=seconds), args.fail_on)
    if not is_good:
        raise CheckFailedError(f"{ecr.name}@{digest} in {ecr.region}: {text}.")
    return text


def report(args: argparse.Namespace, results: list[dict[str, Any]]) -> dict[str, Any]:
    first = results[0]
    data = {"image": first["uri"], "digest": first["digest"], "places": results}
    if args.output:
        write_json_atomically(args.output, data)
    set_outputs({"image": first["uri"], "digest": first["digest"]})
    return data


def result_lines(results: list[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        yield f"  {result['uri']}"
        for step in result["tags"]:
            yield f"    {step['tag']:<34} {step['action']}" + (f": {step['why']}" if step["why"] else "")
        yield f"    {result['scan']}"
