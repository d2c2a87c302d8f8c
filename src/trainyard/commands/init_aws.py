"""Set up AWS once for building images with CodeBuild: registry, project, buckets, log group, roles.

It deploys infrastructure/cloudformation.yaml as the stack PROJECT: it creates a change set, executes it, and
prints the changes and the outputs of the stack. Repositories and buckets that a deleted stack left are
imported. What was changed outside of the stack is changed back. An option that is not given keeps the value
that the stack has; an empty value such as `--webhook-repository ""` takes it away.
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
import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.checkout import SHIPPED_FILES
from trainyard.command.parser import script_parser
from trainyard.config.yaml_reader import parse_yaml
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.cloudformation import CloudFormationStack
from trainyard.github.trust_policy import ISSUER, Subject
from trainyard.image.context.image_names import require_repository
from trainyard.run.suggested_commands import trainyard_command

PROJECT = "trainyard"  # the CodeBuild project of builds that name none
TEMPLATE = SHIPPED_FILES / "infrastructure" / "cloudformation.yaml"
OURS = "ImageRepository"  # a resource that no other template has
MORE = "More"  # begins the logical names of further repositories, which only a written template has
# Flags that are not named after their parameter of the template.
FLAGS = {"Project": "project-name", "Repository": "ecr-repository"}
FLAGS |= {"BaseRepositories": "base-repository", "Subjects": "github", "CreateProvider": "no-provider"}
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
Json = Mapping[str, Any]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--region", metavar="REGION", default="", help="default: from the environment")
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
    for name, rule in parameters().items():
        if f"--{flag_of(name)}" not in parser._option_string_actions:
            allowed = [str(each) for each in rule.get("AllowedValues", ())] or None
            text = f"{rule['Description']}; default: {rule['Default'] or 'none'}"
            shown = "NAME" if name in ("Project", "Repository", "Cluster") else "VALUE"
            parser.add_argument(f"--{flag_of(name)}", choices=allowed, metavar=shown, help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the changes, make none")
    parser.add_argument("--json", action="store_true", help="print the changes and outputs as JSON")
    args = parser.parse_args(argv)
    args.project_name = args.project_name or PROJECT
    needs_github = {"--environment": args.environment, "--cluster": args.cluster, "--owner-id": args.owner_id}
    for flag, value in needs_github.items():
        if value and not args.github:
            parser.error(f"{flag} needs --github: both decide which jobs the role trusts")
    for name in args.more_repository:
        require_repository(f"{args.project_name}/{name}-cache")
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
    found = stack.find()
    before: Json = {OURS: None}
    if found:  # the template with which the stack was made
        stored = stack.call("get_template", StackName=stack.name)["TemplateBody"]
        before = (read_template(stored) if isinstance(stored, str) else stored)["Resources"]
    if OURS not in before:
        raise ConfigError(
            f"Stack {stack.name} exists and belongs to something else: its template has no {OURS}. "
            "Choose another --project-name, which gives another stack name."
        )
    values = {name: str(rule["Default"]) for name, rule in parameters().items()}
    values |= {each["ParameterKey"]: each["ParameterValue"] for each in (found or {}).get("Parameters", ())}
    values |= given
    if values["Subjects"] and not args.no_provider and not (found and makes_provider(stack)):
        provider = f"arn:{partition}:iam::{number}:oidc-provider/{ISSUER}"
        absent = ("NoSuchEntity", "NoSuchEntityException")
        call = "get_open_id_connect_provider"
        existing = aws.call("iam", call, absent=absent, OpenIDConnectProviderArn=provider)
        values["CreateProvider"] = str(existing is None).lower()  # an account can have only one
    account = {"AWS::AccountId": number, "AWS::Region": aws.region, "AWS::Partition": partition}
    body = write_template({**values, **account}, [*more_repositories(before), *args.more_repository])
    changes = deploy(stack, body, values, new=found is None, dry_run=args.dry_run)
    rows = [row_of(each, dry_run=args.dry_run) for each in changes]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in (stack.find() or {}).get("Outputs", ())}
    if args.json:
        facts = {"account": number, "region": aws.region, "stack": stack.name}
        output.print_json({**facts, "resources": rows, "outputs": outputs})
    for row in () if args.json else rows:
        kind = row["type"].removeprefix("AWS::").replace("::", " ")
        print(f"{row['standing']:<12} {kind:<20} {row['name']}  {row['text']}".rstrip())
    if args.dry_run and changes:
        return ExitCode.NO
    if not args.json:
        print("\n".join(["", "The account agrees with the template.", *map(": ".join, outputs.items())]))
        role = f"arn:{partition}:iam::{number}:role/{project}-github"
        print("\n".join(next_commands(args, values, role=role, region=aws.region)))
    return ExitCode.DONE


def read_template(text: str) -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml(text, "the template")
    return found


def parameters() -> Json:
    """Return the parameters of the template; CloudFormation itself checks the values that they get."""
    found: Json = read_template(TEMPLATE.read_text(encoding="utf-8"))["Parameters"]
    return found


def flag_of(parameter: str) -> str:
    return FLAGS.get(parameter) or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", parameter).lower()


def given_parameters(args: argparse.Namespace) -> dict[str, str]:
    """Return the template's parameters that the command line gives."""
    found = {name: getattr(args, flag_of(name).replace("-", "_")) for name in parameters()}
    found["CreateProvider"] = "false" if args.no_provider else None
    if args.base_repository is not None:
        found["BaseRepositories"] = ",".join(args.base_repository)
    if args.github:
        environments = args.environment or ["images", *(["eks"] if args.cluster else [])]
        ids = (args.owner_id, args.repository_id)
        subjects = [Subject(args.github, each, *ids).text for each in environments]
        found["Subjects"] = ",".join(subjects)
    return {name: value for name, value in found.items() if value is not None}


def write_template(values: Mapping[str, str], more: Iterable[str]) -> str:
    """Return the template as JSON, in which resources that are retained have names without functions.

    CloudFormation imports a resource that exists, such as a bucket that a deleted stack retained, only by
    such a name. `values` are the parameters and the pseudo parameters; `more` are names of further
    repositories, each with its cache.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/import-resources-automatically.html
    """
    written = read_template(TEMPLATE.read_text(encoding="utf-8"))
    resources = written["Resources"]
    for name in more:
        for kind, end in (("ImageRepository", ""), ("CacheRepository", "-cache")):
            resource = copy.deepcopy(resources[kind])
            resource["Properties"]["RepositoryName"] = {"Fn::Sub": f"${{Project}}/{name}{end}"}
            logical = re.sub("[^a-z0-9]", lambda found: f"x{ord(found[0]):02x}", name)
            resources[f"{MORE}{logical}{kind}"] = resource
    for resource in resources.values():
        for key in {"RepositoryName", "BucketName", "Bucket"} & resource["Properties"].keys():
            if resource.get("DeletionPolicy") == "Retain":
                name = resource["Properties"][key]
                text = f"${{{name['Ref']}}}" if "Ref" in name else name["Fn::Sub"]
                filled = re.sub(r"\$\{([A-Za-z:]+)\}", lambda found: values[found[1]], text)
                resource["Properties"][key] = filled
    return json.dumps(written)


def more_repositories(resources: Json) -> list[str]:
    """Return the names of the further repositories in a written template."""
    return [
        resource["Properties"]["RepositoryName"].partition("/")[2]
        for name, resource in resources.items()
        if name.startswith(MORE) and name.endswith("ImageRepository")
    ]


def makes_provider(stack: CloudFormationStack) -> bool:
    """Return whether GitHub's OIDC provider is a resource of the stack."""
    found = stack.call("list_stack_resources", StackName=stack.name)["StackResourceSummaries"]
    kept = [each for each in found if each["ResourceStatus"] != "DELETE_COMPLETE"]
    return "GitHubProvider" in {each["LogicalResourceId"] for each in kept}


def deploy(
    stack: CloudFormationStack, body: str, values: Mapping[str, str], *, new: bool, dry_run: bool
) -> list[Json]:
    """Create or change the stack, and return each ResourceChange."""
    change_set, changes = stack.plan(body, values, new=new)
    if change_set and dry_run:
        stack.discard(change_set)
    elif change_set:
        stack.execute(change_set)
        # An imported resource still has its old settings.
        if any(each["Action"] == "Import" for each in changes):
            deploy(stack, body, values, new=False, dry_run=False)
    return changes


def row_of(change: Json, *, dry_run: bool) -> dict[str, str]:
    """Return what was or would be done to a resource, according to its ResourceChange."""
    action = "Replace" if change.get("Replacement") == "True" else change["Action"]
    targets = [each.get("Target", {}) for each in change.get("Details", ())]
    names = dict.fromkeys(str(each.get("Name") or each.get("Attribute")) for each in targets)
    standing, text = STANDINGS[action][not dry_run], ", ".join(names)
    if action == "Remove" and change.get("PolicyAction") == "Retain":
        standing, text = "kept", "it may hold data or be used by others: to remove it, use its console"
    name = change["LogicalResourceId"]
    row = {"resource": name, "type": change["ResourceType"], "name": change.get("PhysicalResourceId") or name}
    return {**row, "standing": standing, "text": text}


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
