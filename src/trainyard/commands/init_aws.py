"""Set up AWS once for building images with CodeBuild: registry, project, buckets, log group, roles.

It deploys infrastructure/cloudformation.yaml as the stack PROJECT: it creates a change set, executes it and
prints the changes. Resources that a deleted stack left are imported. What was changed outside of the stack is
changed back. An option that is not given keeps the value that the stack has; an empty value such as
`--webhook-repository ""` takes it away.
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
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.cloudformation import REVIEW, CloudFormationStack
from trainyard.github.trust_policy import ISSUER, Form, Subject
from trainyard.image.building.stack_template import (
    Account,
    check_parameters,
    importable_template,
    read_template,
    resource_names,
    retained_resources,
)
from trainyard.image.context.image_names import require_repository
from trainyard.run.suggested_commands import trainyard_command

if TYPE_CHECKING:
    from trainyard.gateways.cloudformation import ChangeSet, PlannedChange, StackEvent, StackState

_logger = logging.getLogger("trainyard.setup_codebuild")
PROJECT = "trainyard"  # the CodeBuild project of builds that name none
TEMPLATE = REPOSITORY_ROOT / "infrastructure" / "cloudformation.yaml"
OURS = "ImageRepository"  # a resource that no other template has
# An action of a change set -> what is printed in a dry run, and after the action.
STANDINGS = {
    "Add": ("would make", "made"),
    "Import": ("would import", "imported"),
    "Modify": ("would change", "changed"),
    "Dynamic": ("would change", "changed"),
    "Remove": ("would remove", "removed"),
    "SyncWithActual": ("ok", "ok"),  # only the record of CloudFormation changes
}
GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE", "DELETE_COMPLETE")
# A stack whose creation failed cannot be changed. It has only retained resources.
FAILED_CREATION = ("CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
KEPT = "it may hold data or be used by others: to remove it, use its console"


@dataclass(frozen=True)
class Finding:
    """One resource of the template, and the change that was or would be made."""

    resource: str
    """Its logical name in the template."""
    type: str
    name: str
    """Its name in AWS."""
    standing: str
    text: str = ""
    differences: tuple[str, ...] = ()

    def row(self) -> str:
        """The finding as a line of a table."""
        about = self.text or ", ".join(self.differences)
        end = f"  {about}" if about else ""
        return f"{self.standing:<12} {short_type(self.type):<20} {self.name}{end}"


def short_type(kind: str) -> str:
    """Return the printed form of a CloudFormation type, such as `S3 Bucket`."""
    return kind.removeprefix("AWS::").replace("::", " ")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--project-name", default=PROJECT, metavar="NAME", help="default: trainyard")
    parser.add_argument("--region", metavar="REGION", default="", help="default: from the environment")
    parser.add_argument("--ecr-repository", metavar="NAME", help="default: trainyard")
    more = "a further repository, PROJECT/NAME, with its cache; may be repeated"
    parser.add_argument("--more-repository", action="append", default=[], metavar="NAME", help=more)
    mutable = "which tags may move; default: IMMUTABLE_WITH_EXCLUSION, only latest"
    kinds = ("IMMUTABLE", "IMMUTABLE_WITH_EXCLUSION", "MUTABLE")
    parser.add_argument("--tag-mutability", choices=kinds, help=mutable)
    size = "size of the build machine; default: BUILD_GENERAL1_LARGE"
    parser.add_argument("--compute-type", metavar="TYPE", help=size)
    limit = "time limit of a build, 5 to 2160; default: 120"
    parser.add_argument("--timeout-minutes", type=arguments.positive, metavar="N", help=limit)
    parser.add_argument("--log-days", type=arguments.positive, metavar="N", help="default: 30")
    github = "repository whose jobs may start builds; without it GitHub gets no role"
    parser.add_argument("--github", metavar="OWNER/REPO", help=github)
    environment = "environment of these jobs; may be repeated; default: images, with --cluster also eks"
    parser.add_argument("--environment", action="append", metavar="NAME", help=environment)
    form = "needed for a repository created after 15 July 2026"
    parser.add_argument("--owner-id", type=arguments.positive, metavar="N", help=form)
    parser.add_argument("--repository-id", type=arguments.positive, metavar="N", help=form)
    parser.add_argument("--no-provider", action="store_true", help="do not make GitHub's OIDC provider")
    cluster = "the EKS cluster in which these jobs start training"
    parser.add_argument("--cluster", metavar="NAME", help=cluster)
    bases = "ARN of a further ECR repository with base images, also of another account; may be repeated"
    parser.add_argument("--base-repository", action="append", metavar="ARN", help=bases)
    webhook = "repository whose pushes to the main branch start a build"
    parser.add_argument("--webhook-repository", metavar="OWNER/REPO", help=webhook)
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
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    given, text = given_parameters(args), TEMPLATE.read_text(encoding="utf-8")
    template = read_template(text)
    aws = AwsAccount(args.region)
    check_parameters(template, given, Account("0" * 12, aws.region))  # before the first request to AWS
    number, partition = aws.identity()
    account = Account(number, aws.region, partition)
    setup = Setup(aws, CloudFormationStack(aws.call, stack_name(args.project_name)), template, account)
    if not args.json:
        mode = "dry run" if args.dry_run else "delete" if args.delete else "set-up"
        print(f"account {number} · {aws.region} · stack {setup.stack.name} · {mode}\n", flush=True)
    if args.delete:
        findings = setup.delete(given, dry_run=args.dry_run)
    else:
        for name in args.more_repository:
            require_repository(f"{args.project_name}/{name}-cache")
        findings = setup.deploy(given, text, no_provider=args.no_provider, dry_run=args.dry_run)
        findings += setup.add_repositories(args.more_repository, dry_run=args.dry_run)
    if args.json:
        records = [asdict(finding) for finding in findings]
        output.print_json(
            {"account": number, "region": aws.region, "stack": setup.stack.name, "resources": records}
        )
    elif findings:
        print("\n".join(finding.row() for finding in findings))
    if args.dry_run and any(finding.standing.startswith("would ") for finding in findings):
        return ExitCode.NO
    if not args.json and not args.delete:
        print(next_steps(args, setup.stack.state(), account))
    return ExitCode.DONE


def given_parameters(args: argparse.Namespace) -> dict[str, str]:
    """Return the template's parameters that the command line gives."""
    subjects = None
    if args.github:
        ids = {"owner_id": args.owner_id, "repository_id": args.repository_id}
        form = Form.NAMES if None in ids.values() else Form.IMMUTABLE
        environments = args.environment or ["images", *(["eks"] if args.cluster else [])]
        subjects = ",".join(
            text for each in environments for text in Subject(args.github, each, **ids).texts(form)
        )
    found = {
        "Project": args.project_name,
        "Repository": args.ecr_repository,
        "TagMutability": args.tag_mutability,
        "ComputeType": args.compute_type,
        "TimeoutMinutes": args.timeout_minutes,
        "LogDays": args.log_days,
        "Subjects": args.github if args.github == "" else subjects,
        "Cluster": args.cluster,
        "BaseRepositories": None if args.base_repository is None else ",".join(args.base_repository),
        "WebhookRepository": args.webhook_repository,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def stack_name(project: str) -> str:
    """Return the name of the project's stack, which must begin with a letter."""
    return project if project[:1].isalpha() else f"{PROJECT}-{project}"


class Setup:
    """The template, and its stack in one account."""

    def __init__(
        self, aws: AwsAccount, stack: CloudFormationStack, template: Mapping[str, Any], account: Account
    ) -> None:
        self.aws, self.stack, self.template, self.account = aws, stack, template, account
        self.names: dict[str, str] = {}

    def deploy(
        self, given: Mapping[str, str], text: str, *, no_provider: bool, dry_run: bool
    ) -> list[Finding]:
        """Create or change the stack, and return a finding for each resource that changes."""
        state = self._own_state()
        if state is not None and state.status in FAILED_CREATION:
            raise ServiceError(
                f"The creation of stack {self.stack.name} failed before ({state.status}), so it cannot be "
                "changed: run this with --delete, and then again."
            )
        kept = {} if state is None else state.parameters
        defaults = {name: str(each["Default"]) for name, each in self.template["Parameters"].items()}
        values = {**defaults, **{name: kept[name] for name in kept.keys() & defaults.keys()}, **given}
        self.names = resource_names(self.template, values, self.account)
        values["CreateProvider"] = self._provider_parameter(values, state, no_provider=no_provider)
        if state is None:
            change_set = self._create(values, text, dry_run=dry_run)
        elif (change_set := self.stack.create_change_set(text, values, new=False)) and not dry_run:
            self._execute(change_set)
        if change_set is None:
            return []
        if dry_run:
            self.stack.discard(change_set)
        findings = [finding_of(each, self.names, dry_run=dry_run) for each in change_set.changes]
        if all(finding.standing == "ok" for finding in findings):
            standing = STANDINGS["Modify"][not dry_run]
            findings.append(self._stack_finding(standing, "its parameters, outputs or records"))
        return findings

    def add_repositories(self, names: Sequence[str], *, dry_run: bool) -> list[Finding]:
        """Create the repositories PROJECT/NAME and their caches with the settings of the stack's own.

        They are not part of the stack, which has a fixed number of repositories, so --delete keeps them.
        """
        findings = []
        for name in names:
            for suffix, resource in (("", "ImageRepository"), ("-cache", "CacheRepository")):
                full = f"{self.names['Builds']}/{name}{suffix}"
                findings.append(self._add_repository(full, resource, dry_run=dry_run))
        return findings

    def _add_repository(self, name: str, resource: str, *, dry_run: bool) -> Finding:
        kind, what = "AWS::ECR::Repository", f"create the repository {name}"
        if self._repository(name) is not None:
            return Finding(name, kind, name, "ok")
        if dry_run:
            return Finding(name, kind, name, "would make")
        like, own = self._repository(self.names[resource]) or {}, self.template["Resources"][resource]
        keys = ("imageTagMutability", "imageTagMutabilityExclusionFilters")
        settings = {key: like[key] for key in keys if like.get(key)}
        settings["imageScanningConfiguration"] = {
            "scanOnPush": own["Properties"]["ImageScanningConfiguration"]["ScanOnPush"]
        }
        self.aws.call("ecr", "create_repository", what=what, repositoryName=name, **settings)
        text = own["Properties"]["LifecyclePolicy"]["LifecyclePolicyText"]
        self.aws.call("ecr", "put_lifecycle_policy", repositoryName=name, lifecyclePolicyText=text)
        return Finding(name, kind, name, "made")

    def _repository(self, name: str) -> Mapping[str, Any] | None:
        answer = self.aws.call(
            "ecr", "describe_repositories", absent=("RepositoryNotFoundException",), repositoryNames=[name]
        )
        found: list[dict[str, Any]] = (answer or {}).get("repositories") or []
        return found[0] if found else None

    def _create(self, values: Mapping[str, str], text: str, *, dry_run: bool) -> "ChangeSet | None":
        """Create the stack. Resources that exist are imported, then changed to the template's settings."""
        body = json.dumps(importable_template(self.template, values, self.account))
        change_set = self.stack.create_change_set(body, values, new=True, imports=True)
        if dry_run or change_set is None:
            return change_set
        if not any(change.action == "Import" for change in change_set.changes):
            self.stack.discard(change_set)
            if plain := self.stack.create_change_set(text, values, new=True):
                self._execute(plain)
            return plain
        self._execute(change_set)
        # After the import the resources still have their old settings, and this template retains all of them.
        if following := self.stack.create_change_set(text, values, new=False):
            self._execute(following)
        return change_set

    def _own_state(self) -> "StackState | None":
        """Return the state of the stack; None if it is missing or empty.

        Raises ConfigError if the stack belongs to something else.
        """
        state = self.stack.state()
        if state is None or state.status == REVIEW:
            return None
        if OURS not in str(self.stack.template()):
            raise ConfigError(
                f"Stack {self.stack.name} in {self.account.region} exists and belongs to something else: "
                f"its template has no {OURS}. Choose another --project-name, which gives another stack name."
            )
        return state

    def _provider_parameter(
        self, values: Mapping[str, str], state: "StackState | None", *, no_provider: bool
    ) -> str:
        """Return CreateProvider: whether the stack makes GitHub's OIDC provider, or the account has one."""
        if no_provider:
            return "false"
        if not values["Subjects"]:
            return values["CreateProvider"]
        if state is not None and "GitHubProvider" in self.stack.resources():
            return "true"
        arn = f"arn:{self.account.partition}:iam::{self.account.number}:oidc-provider/{ISSUER}"
        absent = ("NoSuchEntity", "NoSuchEntityException")
        operation = "get_open_id_connect_provider"
        found = self.aws.call("iam", operation, absent=absent, OpenIDConnectProviderArn=arn)
        return "true" if found is None else "false"

    def delete(self, given: Mapping[str, str], *, dry_run: bool) -> list[Finding]:
        """Delete the stack, and return a finding for each resource that it has."""
        state = self._own_state()
        if state is None:
            return [self._stack_finding("not there", "")]
        names = resource_names(self.template, {**state.parameters, **given}, self.account)
        resources, found = self.stack.resources(), self.stack.template()
        retained = retained_resources(read_template(found) if isinstance(found, str) else found)
        if not dry_run:
            self._follow(self.stack.delete(state.stack_id), "deleted")
        findings = []
        for name, kind in resources.items():
            standing = "kept" if name in retained else "would remove" if dry_run else "removed"
            text = KEPT if name in retained else ""
            findings.append(Finding(name, kind, names.get(name, name), standing, text))
        return findings or [self._stack_finding("would remove" if dry_run else "removed", "")]

    def _execute(self, change_set: "ChangeSet") -> None:
        self._follow(self.stack.execute(change_set), "settled")

    def _follow(self, events: "Iterable[StackEvent]", aim: str) -> None:
        """Log the events; raise ServiceError with the reasons if the stack did not reach its aim."""
        seen: list[StackEvent] = []
        for event in events:
            seen.append(event)
            _logger.info("%-28s %s %s", event.status, short_type(event.type), event.name)
        status = next((event.status for event in reversed(seen) if event.of_stack), "unknown")
        if status in GOOD:
            return
        given = [event for event in seen if event.reason]
        failed = [event for event in given if event.status.endswith("_FAILED") and not event.of_stack]
        # The other resources were cancelled because of the first failure.
        failed = [event for event in failed if "cancelled" not in event.reason] or failed
        reasons = [
            f"  {each.name} ({each.type} {each.physical_id}): {each.reason}"
            for each in failed or [event for event in given if event.of_stack]
        ]
        first = f"Stack {self.stack.name} in {self.account.region} was not {aim}: it is {status}."
        raise ServiceError("\n".join([first, *reasons, "Remove the cause and run this again."]))

    def _stack_finding(self, standing: str, text: str) -> Finding:
        return Finding("", "AWS::CloudFormation::Stack", self.stack.name, standing, text)


def finding_of(change: "PlannedChange", names: Mapping[str, str], *, dry_run: bool) -> Finding:
    """Return the finding for a change of a change set."""
    standing = STANDINGS[change.action][not dry_run]
    text = ""
    if change.replaces:
        standing = "would replace" if dry_run else "replaced"
    elif change.action == "Remove" and change.retained:
        standing, text = "kept", "it leaves the stack but is kept in the account"
    elif change.action == "Import":
        text = "it exists; it gets the settings of the template"
    name = names.get(change.name, change.name)
    return Finding(change.name, change.type, name, standing, text, change.differences)


def next_steps(args: argparse.Namespace, state: "StackState | None", account: Account) -> str:
    """Return the commands that set GitHub's variables, and the command of a first build."""
    repository = state.parameters.get("Repository", PROJECT) if state else PROJECT
    lines = ["", "The account agrees with the template."]
    if args.github:
        role = f"arn:{account.partition}:iam::{account.number}:role/{args.project_name}-github"
        variables = {"TRAINYARD_IMAGE_REPOSITORY": repository, "TRAINYARD_AWS_REGION": account.region}
        if args.project_name != PROJECT:
            variables["TRAINYARD_IMAGE_PROJECT"] = args.project_name
        if cluster := state.parameters.get("Cluster") if state else None:
            variables |= {"TRAINYARD_EKS_CLUSTER": cluster, "TRAINYARD_EKS_ROLE": role}
        variables["TRAINYARD_IMAGE_ROLE"] = role  # last: once it is set, a push starts a build
        lines += [
            f"gh variable set {key} --repo {args.github} --body {text}" for key, text in variables.items()
        ]
    project = "" if args.project_name == PROJECT else f" --project {args.project_name}"
    registry = f"{account.number}.dkr.ecr.{account.region}.amazonaws.com"
    lines.append(f"Images go to {registry}/{repository}; build one with")
    build = f"{trainyard_command('image build')} --dockerfile docker/fsdp/Dockerfile"
    return "\n".join([*lines, f"{build} --image {repository} --region {account.region}{project}"])
