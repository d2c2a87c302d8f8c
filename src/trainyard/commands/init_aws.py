"""Set up AWS once for building images with CodeBuild: registry, project, buckets, log group, roles.

It deploys infrastructure/cloudformation.yaml as the stack PROJECT: it creates a change set, executes it, and
prints the changes and the outputs of the stack. Repositories and buckets that a deleted stack left are
imported. What was changed outside of the stack is changed back. An option that is not given keeps the value
that the stack has; an empty value such as `--webhook-repository ""` takes it away.
infrastructure/setup-codebuild.sh calls this script.

Reads:      its flags; infrastructure/cloudformation.yaml; the stack; AWS_* (credentials, AWS_REGION,
            AWS_ENDPOINT_URL)
Writes:     the stack and its resources, unless --dry-run; a line for each on stdout, with --json as data; the
            progress of the stack on stderr. --delete deletes the stack, except buckets, repositories and the
            OIDC provider, which are retained
Exit codes: 0 the account agrees with the template; 1 with --dry-run: changes are needed; 2 wrong usage, or
            another stack has the name; 4 AWS refused or could not be reached; 5 it did not settle in time
Example:    trainyard init aws --project-name lab --region us-west-2 --github OWNER/REPO --dry-run
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.checkout import SHIPPED_FILES
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.cloudformation import CloudFormationStack
from trainyard.github.trust_policy import ISSUER, Form, Subject
from trainyard.image.building.stack_template import (
    check_parameters,
    more_repositories,
    read_template,
    write_template,
)
from trainyard.image.context.image_names import require_repository
from trainyard.run.suggested_commands import trainyard_command

PROJECT = "trainyard"  # the CodeBuild project of builds that name none
TEMPLATE = SHIPPED_FILES / "infrastructure" / "cloudformation.yaml"
OURS = "ImageRepository"  # a resource that no other template has
# Parameter of the template -> its flag, and what --help says; those without a text have their own code below.
PARAMETERS = {
    "Project": ("project-name", ""),
    "Repository": ("ecr-repository", "default: trainyard"),
    "TagMutability": ("tag-mutability", "IMMUTABLE, MUTABLE or the default: all but latest are immutable"),
    "ComputeType": ("compute-type", "size of the build machine; default: BUILD_GENERAL1_LARGE"),
    "TimeoutMinutes": ("timeout-minutes", "time limit of a build, 5 to 2160; default: 120"),
    "LogDays": ("log-days", "default: 30"),
    "ArtifactDays": ("artifact-days", "when reports and records of builds expire; default: 0, never"),
    "KmsKey": ("kms-key", "ARN of a key for buckets, logs and repositories; default: AWS's own keys"),
    "Vpc": ("vpc", "VPC in which builds run; needs --subnets and --security-groups"),
    "Subnets": ("subnets", "private subnets of the VPC, with commas between"),
    "SecurityGroups": ("security-groups", "security groups of builds, with commas between"),
    "Subjects": ("github", ""),
    "RoleStartsBuilds": ("role-starts-builds", "true, or false: only pushes to --webhook-repository build"),
    "CreateProvider": ("no-provider", ""),
    "Cluster": ("cluster", "the EKS cluster in which these jobs start training"),
    "BaseRepositories": ("base-repository", ""),
    "WebhookRepository": ("webhook-repository", "OWNER/REPO whose pushes to the main branch start a build"),
}
# An action of a change set -> what is printed in a dry run, and after the action.
STANDINGS = {
    "Add": ("would make", "made"),
    "Import": ("would import", "imported"),
    "Modify": ("would change", "changed"),
    "Dynamic": ("would change", "changed"),
    "Replace": ("would replace", "replaced"),
    "Remove": ("would remove", "removed"),
    "SyncWithActual": ("ok", "ok"),  # only the record of CloudFormation changes
}
KEPT = "it may hold data or be used by others: to remove it, use its console"


@dataclass(frozen=True)
class Finding:
    """One resource of the template, and the change that was or would be made."""

    resource: str
    """Its logical name in the template."""
    type: str
    name: str
    """Its name in AWS, if it exists."""
    standing: str
    text: str = ""

    def row(self) -> str:
        """The finding as a line of a table."""
        kind = self.type.removeprefix("AWS::").replace("::", " ")
        return f"{self.standing:<12} {kind:<20} {self.name}{'  ' if self.text else ''}{self.text}"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--region", metavar="REGION", default="", help="default: from the environment")
    parser.add_argument("--project-name", default=PROJECT, metavar="NAME", help="default: trainyard")
    github = "repository whose jobs may start builds; without it GitHub gets no role"
    parser.add_argument("--github", metavar="OWNER/REPO", help=github)
    environment = "environment of these jobs; may be repeated; default: images, with --cluster also eks"
    parser.add_argument("--environment", action="append", metavar="NAME", help=environment)
    form = "needed for a repository created after 15 July 2026"
    parser.add_argument("--owner-id", type=arguments.positive, metavar="N", help=form)
    parser.add_argument("--repository-id", type=arguments.positive, metavar="N", help=form)
    parser.add_argument("--no-provider", action="store_true", help="do not make GitHub's OIDC provider")
    more = "a further repository, PROJECT/NAME, with its cache; may be repeated"
    parser.add_argument("--more-repository", action="append", default=[], metavar="NAME", help=more)
    bases = "ARN of a further ECR repository with base images, also of another account; may be repeated"
    parser.add_argument("--base-repository", action="append", metavar="ARN", help=bases)
    for flag, text in PARAMETERS.values():
        if text:
            numbers = flag.endswith(("-minutes", "-days"))
            kind = {"type": arguments.natural_number, "metavar": "N"} if numbers else {"metavar": "NAME"}
            parser.add_argument(f"--{flag}", help=text, **kind)
    parser.add_argument(
        "--delete", action="store_true", help="delete the stack, except the resources that hold data"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the changes, make none")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    args = parser.parse_args(argv)
    needs_github = {"--environment": args.environment, "--cluster": args.cluster, "--owner-id": args.owner_id}
    for flag, value in needs_github.items():
        if value and not args.github and not args.delete:
            parser.error(f"{flag} needs --github: both decide which jobs the role trusts")
    for name in args.more_repository:
        require_repository(f"{args.project_name}/{name}-cache")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    template, given = read_template(TEMPLATE.read_text(encoding="utf-8")), given_parameters(args)
    check_parameters(template, given, {name: flag for name, (flag, _) in PARAMETERS.items()})
    aws = AwsAccount(args.region)
    number, partition = aws.identity()
    # The name of a stack must begin with a letter.
    project = args.project_name
    stack = CloudFormationStack(aws, project if project[0].isalpha() else f"{PROJECT}-{project}")
    if not args.json:
        mode = "dry run" if args.dry_run else "delete" if args.delete else "set-up"
        print(f"account {number} · {aws.region} · stack {stack.name} · {mode}\n", flush=True)
    found, values = own_stack(stack), given
    if args.delete:
        findings = delete(stack, found, dry_run=args.dry_run)
    else:
        values = {name: str(rule["Default"]) for name, rule in template["Parameters"].items()}
        kept = {each["ParameterKey"]: each["ParameterValue"] for each in (found or {}).get("Parameters", ())}
        values |= {name: text for name, text in kept.items() if name in values} | given
        provider = f"arn:{partition}:iam::{number}:oidc-provider/{ISSUER}"
        if not args.no_provider and values["Subjects"]:
            has_own = found is not None and "GitHubProvider" in stack.resources()
            values["CreateProvider"] = "true" if has_own or not has_provider(aws, provider) else "false"
        names = {"AWS::AccountId": number, "AWS::Region": aws.region, "AWS::Partition": partition}
        before = more_repositories(stored_template(stack)) if found else []
        body = write_template(template, {**values, **names}, dict.fromkeys([*before, *args.more_repository]))
        findings = deploy(stack, found, body, values, dry_run=args.dry_run)
    outputs = {each["OutputKey"]: each["OutputValue"] for each in (stack.find() or {}).get("Outputs", ())}
    if args.json:
        records = {"resources": [asdict(finding) for finding in findings], "outputs": outputs}
        output.print_json({"account": number, "region": aws.region, "stack": stack.name, **records})
    elif findings:
        print("\n".join(finding.row() for finding in findings))
    if args.dry_run and any(finding.standing.startswith("would ") for finding in findings):
        return ExitCode.NO
    if not args.json and not args.delete:
        print("\n".join(["", "The account agrees with the template.", *map(": ".join, outputs.items())]))
        role = f"arn:{partition}:iam::{number}:role/{project}-github"
        print("\n".join(next_commands(args, values, role=role, region=aws.region)))
    return ExitCode.DONE


def given_parameters(args: argparse.Namespace) -> dict[str, str]:
    """Return the template's parameters that the command line gives."""
    found = {name: getattr(args, flag.replace("-", "_")) for name, (flag, text) in PARAMETERS.items() if text}
    found |= {"Project": args.project_name, "Subjects": args.github}
    if args.github:
        ids = {"owner_id": args.owner_id, "repository_id": args.repository_id}
        form = Form.NAMES if None in ids.values() else Form.IMMUTABLE
        environments = args.environment or ["images", *(["eks"] if args.cluster else [])]
        subjects = [Subject(args.github, each, **ids).text(form) for each in environments]
        found["Subjects"] = ",".join(subjects)
    if args.base_repository is not None:
        found["BaseRepositories"] = ",".join(args.base_repository)
    if args.no_provider:
        found["CreateProvider"] = "false"
    return {name: str(value) for name, value in found.items() if value is not None}


def has_provider(aws: AwsAccount, arn: str) -> bool:
    """Return whether the account has GitHub's OIDC provider: there can be only one."""
    absent = ("NoSuchEntity", "NoSuchEntityException")
    call = "get_open_id_connect_provider"
    return aws.call("iam", call, absent=absent, OpenIDConnectProviderArn=arn) is not None


def own_stack(stack: CloudFormationStack) -> Mapping[str, Any] | None:
    """Return the stack; None if there is none. Raises ConfigError if it belongs to something else."""
    found = stack.find()
    if found is not None and OURS not in stored_template(stack)["Resources"]:
        raise ConfigError(
            f"Stack {stack.name} exists and belongs to something else: its template has no {OURS}. "
            "Choose another --project-name, which gives another stack name."
        )
    return found


def stored_template(stack: CloudFormationStack) -> Mapping[str, Any]:
    """Return the template with which the stack was made."""
    found = stack.template()
    return read_template(found) if isinstance(found, str) else dict(found)


def deploy(
    stack: CloudFormationStack,
    found: Mapping[str, Any] | None,
    body: str,
    values: Mapping[str, str],
    *,
    dry_run: bool,
) -> list[Finding]:
    """Create or change the stack, and return a finding for each resource that changes."""
    if found and found["StackStatus"] in ("CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED"):
        raise ServiceError(
            f"The creation of stack {stack.name} failed before ({found['StackStatus']}), so it cannot be "
            "changed: run this with --delete, and then again."
        )
    planned = stack.plan(body, values, new=found is None)
    if planned is None:
        return []
    findings = [finding_of(each, dry_run=dry_run) for each in planned.changes]
    if all(finding.standing == "ok" for finding in findings):
        findings.append(stack_finding(stack, STANDINGS["Modify"][not dry_run]))
    if dry_run:
        stack.discard(planned)
        return findings
    stack.execute(planned)
    # An imported resource still has its old settings.
    is_import = any(each["Action"] == "Import" for each in planned.changes)
    if is_import and (following := stack.plan(body, values, new=False)):
        stack.execute(following)
    return findings


def finding_of(change: Mapping[str, Any], *, dry_run: bool) -> Finding:
    """Return the finding for a ResourceChange of a change set."""
    replaces = change.get("Replacement") == "True"
    standing = STANDINGS["Replace" if replaces else change["Action"]][not dry_run]
    text = ", ".join(dict.fromkeys(difference(each.get("Target", {})) for each in change.get("Details", ())))
    if change["Action"] == "Remove" and change.get("PolicyAction") == "Retain":
        standing, text = "kept", "it leaves the stack but is kept in the account"
    if change["Action"] == "Import":
        text = "it exists; it gets the settings of the template"
    name = change["LogicalResourceId"]
    return Finding(name, change["ResourceType"], change.get("PhysicalResourceId") or name, standing, text)


def difference(target: Mapping[str, Any]) -> str:
    """Return what a change set says of one property."""
    name = str(target.get("Path") or target.get("Name") or target.get("Attribute", ""))
    name = name.removeprefix("/Properties").strip("/").replace("/", ".")
    before, after = (str(target.get(f"{which}Value") or "")[:60] for which in ("Before", "After"))
    return f"{name}: {before} -> {after}" if before or after else name


def delete(stack: CloudFormationStack, found: Mapping[str, Any] | None, *, dry_run: bool) -> list[Finding]:
    """Delete the stack, and return a finding for each resource that it has."""
    if found is None:
        return [stack_finding(stack, "not there")]
    resources, template = stack.resources(), stored_template(stack)["Resources"]
    if not dry_run:
        stack.delete(found["StackId"])
    findings = []
    for name, resource in resources.items():
        is_kept = str(template.get(name, {}).get("DeletionPolicy")).startswith("Retain")
        standing = "kept" if is_kept else STANDINGS["Remove"][not dry_run]
        physical = resource.get("PhysicalResourceId") or name
        findings.append(Finding(name, resource["ResourceType"], physical, standing, KEPT if is_kept else ""))
    return findings or [stack_finding(stack, STANDINGS["Remove"][not dry_run])]


def stack_finding(stack: CloudFormationStack, standing: str) -> Finding:
    text = "its parameters, outputs or records" if standing.endswith(("change", "changed")) else ""
    return Finding("", "AWS::CloudFormation::Stack", stack.name, standing, text)


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
    variables["TRAINYARD_IMAGE_ROLE"] = role  # last: once it is set, a push starts a build
    lines = [f"gh variable set {key} --repo {args.github} --body {text}" for key, text in variables.items()]
    project = "" if args.project_name == PROJECT else f" --project {args.project_name}"
    build = f"{trainyard_command('image build')} --dockerfile docker/fsdp/Dockerfile"
    first = f"{build} --image {repository} --region {region}{project}"
    return [*(lines if args.github else ()), "Build a first image with", first]
