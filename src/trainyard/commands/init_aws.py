"""Set up AWS once for building images with CodeBuild: registry, project, buckets, log group, roles.

It deploys infrastructure/cloudformation.yaml as the stack PROJECT: it creates a change set, executes it, and
prints the changes and the outputs of the stack. What was changed outside of the stack is changed back. An
option that is not given keeps the value that the stack has; an empty value such as `--webhook-repository ""`
takes it away.
infrastructure/setup-codebuild.sh calls this script.

Whoever may start a build may replace its buildspec, and so has the rights of the build role: with --github
these are the jobs of the named environments. `--webhook-repository OWNER/REPO --role-starts-builds false`
makes the project that ignores overrides: only pushes to that repository build.

Reads:      its flags; infrastructure/cloudformation.yaml; the stack; AWS_* (credentials, AWS_REGION,
            AWS_ENDPOINT_URL)
Writes:     the stack and its resources, unless --dry-run; a line for each on stdout, with --json as data
Exit codes: 0 the account agrees with the template; 1 with --dry-run: changes are needed; 2 wrong usage, or
            another stack has the name; 4 AWS refused or could not be reached; 5 it did not settle in time
Example:    trainyard init aws --project-name lab --region us-west-2 --github OWNER/REPO --dry-run
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.checkout import SHIPPED_FILES
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.config.yaml_reader import parse_yaml
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.cloudformation import CloudFormationStack
from trainyard.github.trust_policy import ISSUER, Subject
from trainyard.run.suggested_commands import trainyard_command

PROJECT = "trainyard"  # the CodeBuild project of builds that name none
TEMPLATE = SHIPPED_FILES / "infrastructure" / "cloudformation.yaml"
OURS = "BaseRepositories"  # a parameter that no other template has
# Flags that are not named after their parameter of the template.
FLAGS = {"Project": "project-name", "Repository": "ecr-repository"}
FLAGS |= {"BaseRepositories": "base-repository", "Subjects": "github", "CreateProvider": "no-provider"}
Json = Mapping[str, Any]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the changes, make none", json="the changes and outputs")
    add_option(parser, "--region", "REGION", "default: from the environment", default="")
    github = "repository whose jobs may start builds; without it GitHub gets no role"
    add_option(parser, "--github", "OWNER/REPO", github)
    environment = "environment of these jobs; may be repeated; default: images, with --cluster also eks"
    add_option(parser, "--environment", "NAME", environment, action="append")
    form = "needed for a repository created after 15 July 2026"
    add_option(parser, "--owner-id", "N", form, type=arguments.positive)
    add_option(parser, "--repository-id", "N", form, type=arguments.positive)
    add_flag(parser, "--no-provider", "do not make GitHub's OIDC provider")
    bases = "ARN of a further ECR repository with base images, also of another account; may be repeated"
    add_option(parser, "--base-repository", "ARN", bases, action="append")
    for name, rule in template()["Parameters"].items():
        if f"--{flag_of(name)}" not in parser._option_string_actions:
            allowed = [str(each) for each in rule.get("AllowedValues", ())] or None
            text = f"{rule['Description']}; default: {rule['Default'] or 'none'}"
            shown = "NAME" if name in ("Project", "Repository", "Cluster") else "VALUE"
            parser.add_argument(f"--{flag_of(name)}", choices=allowed, metavar=shown, help=text)
    args = parser.parse_args(argv)
    args.project_name = args.project_name or PROJECT
    needs_github = {"--environment": args.environment, "--cluster": args.cluster, "--owner-id": args.owner_id}
    for flag, value in needs_github.items():
        if value and not args.github:
            parser.error(f"{flag} needs --github: both decide which jobs the role trusts")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    given, project = given_parameters(args), args.project_name
    aws = AwsAccount(args.region)
    number, partition = aws.identity()
    # The name of a stack must begin with a letter.
    stack = CloudFormationStack(aws, project if project[0].isalpha() else f"{PROJECT}-{project}")
    if not args.json:
        mode = "dry run" if args.dry_run else "set-up"
        print(f"account {number} · {aws.region} · stack {stack.name} · {mode}\n", flush=True)
    found = stack.find() or {}
    before = {each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", ())}
    if found and OURS not in before:
        raise ConfigError(
            f"Stack {stack.name} exists and belongs to something else. Choose another --project-name, which "
            "gives another stack name."
        )
    defaults = {name: str(rule["Default"]) for name, rule in template()["Parameters"].items()}
    values = {**defaults, **before, **given}
    if values["Subjects"] and not before.get("Subjects") and not args.no_provider:
        provider = f"arn:{partition}:iam::{number}:oidc-provider/{ISSUER}"
        absent = ("NoSuchEntity", "NoSuchEntityException")
        call = "get_open_id_connect_provider"
        existing = aws.call("iam", call, absent=absent, OpenIDConnectProviderArn=provider)
        values["CreateProvider"] = str(existing is None).lower()  # an account can have only one
    change_set, changes = stack.plan(TEMPLATE.read_text(encoding="utf-8"), values, new=not found)
    if change_set:
        stack.discard(change_set, new=not found) if args.dry_run else stack.execute(change_set)
    outputs = {each["OutputKey"]: each["OutputValue"] for each in (stack.find() or {}).get("Outputs", ())}
    rows = [row_of(each) for each in changes]
    if args.json:
        facts = {"account": number, "region": aws.region, "stack": stack.name}
        output.print_json({**facts, "resources": rows, "outputs": outputs})
    for row in () if args.json else rows:
        kind = row["type"].removeprefix("AWS::").replace("::", " ")
        print(f"{row['action']:<12} {kind:<20} {row['name']}  {row['text']}".rstrip())
    if args.dry_run and changes:
        return ExitCode.NO
    if not args.json:
        print("\n".join(["", "The account agrees with the template.", *map(": ".join, outputs.items())]))
        role = f"arn:{partition}:iam::{number}:role/{project}-github"
        print("\n".join(next_commands(args, values, role=role, region=aws.region)))
    return ExitCode.DONE


def template() -> Json:
    found: Json = parse_yaml(TEMPLATE.read_text(encoding="utf-8"), "the template")
    return found


def flag_of(parameter: str) -> str:
    return FLAGS.get(parameter) or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", parameter).lower()


def given_parameters(args: argparse.Namespace) -> dict[str, str]:
    """Return the template's parameters that the command line gives."""
    found = {name: getattr(args, flag_of(name).replace("-", "_")) for name in template()["Parameters"]}
    found["CreateProvider"] = "false" if args.no_provider else None
    if args.base_repository is not None:
        found["BaseRepositories"] = ",".join(args.base_repository)
    if args.github:
        environments = args.environment or ["images", *(["eks"] if args.cluster else [])]
        ids = (args.owner_id, args.repository_id)
        subjects = [Subject(args.github, each, *ids).text for each in environments]
        found["Subjects"] = ",".join(subjects)
    return {name: value for name, value in found.items() if value is not None}


def row_of(change: Json) -> dict[str, str]:
    """Return a resource and what a change set does to it, in CloudFormation's words."""
    targets = [each.get("Target", {}) for each in change.get("Details", ())]
    names = dict.fromkeys(str(each.get("Name") or each.get("Attribute")) for each in targets)
    action, text = change["Action"], ", ".join(names)
    if change.get("Replacement") == "True":
        action = "Replace"
    if action == "Remove" and change.get("PolicyAction") == "Retain":
        action, text = "Keep", "it may hold data or be used by others: to remove it, use its console"
    name = change["LogicalResourceId"]
    row = {"resource": name, "type": change["ResourceType"], "name": change.get("PhysicalResourceId") or name}
    return {**row, "action": action, "text": text}


def next_commands(
    args: argparse.Namespace, values: Mapping[str, str], *, role: str, region: str
) -> list[str]:
    """Return the commands that set GitHub's variables, and the command of a first build."""
    repository = values["Repository"]
    variables = {"TRAINYARD_IMAGE_REPOSITORY": repository, "TRAINYARD_AWS_REGION": region}
    if args.project_name != PROJECT:
        variables["TRAINYARD_IMAGE_PROJECT"] = args.project_name
    if values["Cluster"]:
        variables |= {"TRAINYARD_EKS_CLUSTER": values["Cluster"], "TRAINYARD_EKS_ROLE": role}
    if values["RoleStartsBuilds"] == "true":
        variables["TRAINYARD_IMAGE_ROLE"] = role  # last: once it is set, a push starts a build
    lines = [f"gh variable set {key} --repo {args.github} --body {text}" for key, text in variables.items()]
    project = "" if args.project_name == PROJECT else f" --project {args.project_name}"
    build = f"{trainyard_command('image build')} --dockerfile docker/fsdp/Dockerfile"
    first = f"{build} --image {repository} --region {region}{project}"
    return [*(lines if args.github else ()), "Build a first image with", first]
