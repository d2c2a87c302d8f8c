#!/usr/bin/env python3
"""Set up AWS once for building images with CodeBuild: registry, project, buckets, log group, roles.

It leaves correct resources alone, changes those that differ, and reports each change, so it can be run again
at any time. infrastructure/setup-codebuild.sh calls it. infrastructure/cloudformation.yaml and the module in
infrastructure/terraform make the same resources from the same list.

Reads:      its flags; the resources of the account; AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL)
Writes:     the resources in AWS, unless --dry-run; a line for each on stdout, with --json as data. --delete
            removes them, except buckets and repositories that hold something, and the OIDC provider
Exit codes: 0 the account agrees with the list; 1 with --dry-run: changes are needed; 2 wrong usage;
            4 AWS refused or could not be reached
Example:    scripts/setup_codebuild.py --project-name lab --region us-west-2 --github OWNER/REPO --dry-run
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser

if TYPE_CHECKING:
    from trainyard.gateways.aws_setup.listed_resources import ResourceChange
    from trainyard.infrastructure.agreement import ResourceFinding


PROJECT = "trainyard"
"""The project in CodeBuild that builds are started in where none is named."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--project-name", default=PROJECT, metavar="NAME", help="default: trainyard")
    parser.add_argument("--region", default="", help="default: AWS's own setting")
    parser.add_argument("--ecr-repository", default="trainyard", metavar="NAME", help="default: trainyard")
    mutable = "MUTABLE: a tag such as latest may move; default: IMMUTABLE"
    parser.add_argument(
        "--tag-mutability", choices=("IMMUTABLE", "MUTABLE"), default="IMMUTABLE", help=mutable
    )
    size = "size of the build machine; default: BUILD_GENERAL1_LARGE"
    parser.add_argument("--compute-type", default="BUILD_GENERAL1_LARGE", metavar="TYPE", help=size)
    limit = "time limit of a build, 5 to 2160; default: 120"
    parser.add_argument("--timeout-minutes", type=arguments.positive, default=120, metavar="N", help=limit)
    parser.add_argument("--log-days", type=arguments.positive, default=30, metavar="N", help="default: 30")
    github = "repository whose jobs may start builds; without it GitHub gets no role"
    parser.add_argument("--github", default="", metavar="OWNER/REPO", help=github)
    environment = "environment of those jobs; may be repeated; default: images, and with --cluster eks too"
    parser.add_argument("--environment", action="append", metavar="NAME", help=environment)
    form = "for a repository created after 15 July 2026"
    parser.add_argument("--owner-id", type=arguments.positive, metavar="N", help=form)
    parser.add_argument("--repository-id", type=arguments.positive, metavar="N", help=form)
    parser.add_argument("--no-provider", action="store_true", help="do not make GitHub's OIDC provider")
    cluster = "the EKS cluster in which these jobs start training"
    parser.add_argument("--cluster", default="", metavar="NAME", help=cluster)
    webhook = "build pushes to its main branch by themselves"
    parser.add_argument("--webhook-repository", default="", metavar="OWNER/REPO", help=webhook)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--delete", action="store_true", help="remove the resources, except those that hold data"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the changes, make none")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    chosen = chosen_by(args)
    from trainyard.gateways.aws_setup.account import AwsAccount
    from trainyard.gateways.aws_setup.listed_resources import Application
    from trainyard.infrastructure.agreement import compare_settings, exit_code_of_findings
    from trainyard.infrastructure.settings import Account, settings_for, wanted_resources

    aws = AwsAccount(args.region)
    # Report wrong choices before the first request to AWS.
    settings_for(chosen, Account("0" * 12, aws.region))
    number, partition = aws.identity()
    settings = settings_for(chosen, Account(number, aws.region, partition))
    application = Application(aws, compare_settings, account=number, partition=partition)
    work = application.remove if args.delete else application.apply
    if not args.json:
        mode = "dry run" if args.dry_run else "delete" if args.delete else "set-up"
        print(f"account {number} · {aws.region} · {mode}\n")
    findings = []
    for finding in told(work(wanted_resources(settings), dry_run=args.dry_run), delete=args.delete):
        findings.append(finding)
        if not args.json:
            print(finding.row(), flush=True)
    if args.json:
        records = [finding.record() for finding in findings]
        output.print_json({"account": number, "region": aws.region, "resources": records})
    elif not args.delete and exit_code_of_findings(findings) == 0:
        print(next_steps(args, number, aws.region, partition))
    return exit_code_of_findings(findings)


def chosen_by(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the flags for the choices in the list of resources."""
    from trainyard.repository.trust_policy import Form, Subject

    subjects = []
    if args.github:
        ids = {"owner_id": args.owner_id, "repository_id": args.repository_id}
        form = Form.NAMES if None in ids.values() else Form.IMMUTABLE
        environments = args.environment or ["images", *(["eks"] if args.cluster else [])]
        subjects = [text for each in environments for text in Subject(args.github, each, **ids).texts(form)]
    elif args.delete:
        subjects = ["repo:any/any:environment:any"]  # roles are looked up by name
    return {
        "Project": args.project_name,
        "Repository": args.ecr_repository,
        "TagMutability": args.tag_mutability,
        "ComputeType": args.compute_type,
        "TimeoutMinutes": args.timeout_minutes,
        "LogDays": args.log_days,
        "Subjects": subjects,
        "CreateProvider": not args.no_provider,
        "Cluster": args.cluster,
        "WebhookRepository": args.webhook_repository,
    }


def told(changes: "Iterator[ResourceChange]", *, delete: bool) -> "Iterator[ResourceFinding]":
    """Return the finding for one resource: its state, and whether a change was kept."""
    from trainyard.infrastructure.agreement import ResourceFinding, Standing

    for change in changes:
        standing, text = Standing.AGREES, ""
        if change.refused or change.remaining:
            standing = Standing.REFUSED
            text = change.refused or f"AWS did not keep the change: {', '.join(change.remaining)}"
        elif delete and change.kept:
            standing, text = Standing.KEPT, change.kept
        elif delete and change.before is None:
            standing = Standing.ABSENT
        elif delete:
            standing = Standing.REMOVED if change.done else Standing.WOULD_REMOVE
        elif change.before is None:
            standing = Standing.MADE if change.done else Standing.WOULD_MAKE
        elif change.differences:
            standing = Standing.CHANGED if change.done else Standing.WOULD_CHANGE
        yield ResourceFinding(change.resource, change.name, standing, text, change.differences)  # type: ignore[arg-type]


def next_steps(args: argparse.Namespace, account: str, region: str, partition: str) -> str:
    """Return the commands that use what was made: those of GitHub's variables, and that of a build."""
    lines = ["", "The account agrees with the list."]
    if args.github:
        role = f"arn:{partition}:iam::{account}:role/{args.project_name}-github"
        variables = {"TRAINYARD_IMAGE_REPOSITORY": args.ecr_repository, "TRAINYARD_AWS_REGION": region}
        if args.project_name != PROJECT:
            variables["TRAINYARD_IMAGE_PROJECT"] = args.project_name
        variables["TRAINYARD_IMAGE_ROLE"] = role  # last: from then on a push builds
        lines += [
            f"gh variable set {key} --repo {args.github} --body {text}" for key, text in variables.items()
        ]
    project = "" if args.project_name == PROJECT else f" --project {args.project_name}"
    lines.append(f"Images go to {account}.dkr.ecr.{region}.amazonaws.com/{args.ecr_repository}; build one by")
    build = "scripts/build_image.py --dockerfile docker/fsdp/Dockerfile"
    return "\n".join([*lines, f"{build} --image {args.ecr_repository} --region {region}{project}"])


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
