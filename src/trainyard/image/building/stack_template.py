"""The CloudFormation template of image builds: check its parameters, name its resources, make it importable.

    template, parameters, account  ──>  names | ConfigError with every wrong flag | template with static names

Nothing here calls AWS. The template is infrastructure/cloudformation.yaml.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.config.yaml_reader import parse_yaml
from trainyard.errors import ConfigError

FLAGS = {
    "Project": "project-name",
    "Repository": "ecr-repository",
    "TagMutability": "tag-mutability",
    "ComputeType": "compute-type",
    "TimeoutMinutes": "timeout-minutes",
    "LogDays": "log-days",
    "Subjects": "github",
    "CreateProvider": "no-provider",
    "Cluster": "cluster",
    "BaseRepositories": "base-repository",
    "WebhookRepository": "webhook-repository",
}
# Type -> the properties by which CloudFormation finds an existing resource. A project of CodeBuild cannot be
# imported, and an OIDC provider only by its ARN, which no template has.
IDENTIFIERS = {
    "AWS::ECR::Repository": ("RepositoryName",),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::S3::BucketPolicy": ("Bucket",),
    "AWS::Logs::LogGroup": ("LogGroupName",),
    "AWS::IAM::Role": ("RoleName",),
    "AWS::EKS::AccessEntry": ("PrincipalArn", "ClusterName"),
}
_NAMES = {**IDENTIFIERS, "AWS::CodeBuild::Project": ("Name",), "AWS::IAM::OIDCProvider": ("Url",)}
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_BUCKET_LETTERS = 63


@dataclass(frozen=True)
class Account:
    """The account and region of a stack."""

    number: str
    """Twelve digits."""
    region: str
    partition: str = "aws"


def read_template(text: str) -> dict[str, Any]:
    """Return the template as an object."""
    found: dict[str, Any] = parse_yaml(text, "the template")
    return found


def check_parameters(template: Mapping[str, Any], given: Mapping[str, str], account: Account) -> None:
    """Raise ConfigError that names the flag of every value that the template refuses."""
    problems = list(_problems(template["Parameters"], given))
    if not _REGION.fullmatch(account.region):
        problems.append(f"--region: {account.region[:40]!r} is not a region such as us-west-2")
    elif "Project" in given:
        problems += _too_long(template, given, account)
    if problems:
        count = f"{len(problems)} error{'s' * (len(problems) > 1)}. Nothing was started."
        raise ConfigError("\n".join([*problems, count]))


def _problems(parameters: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[str]:
    for name, value in given.items():
        rule, flag = parameters[name], f"--{FLAGS[name]}"
        if "AllowedValues" in rule and value not in map(str, rule["AllowedValues"]):
            yield f"{flag}: {value} is not one of {', '.join(map(str, rule['AllowedValues']))}"
        if "MinValue" in rule and not rule["MinValue"] <= int(value) <= rule["MaxValue"]:
            yield f"{flag}: {value} is not from {rule['MinValue']} to {rule['MaxValue']:,}"
        if "AllowedPattern" in rule:
            listed = rule["Type"] == "CommaDelimitedList"
            for each in value.split(",") if listed else [value]:
                # `$` of Python also matches before a line break at the end, that of CloudFormation does not.
                if not re.search(rule["AllowedPattern"], each, re.ASCII) or "\n" in each:
                    pattern, meaning = rule["AllowedPattern"], rule["Description"]
                    yield f"{flag}: {each[:80]!r} does not fit {pattern} ({meaning})"


def _too_long(template: Mapping[str, Any], given: Mapping[str, str], account: Account) -> Iterator[str]:
    names = resource_names(template, given, account)
    types = {name: resource["Type"] for name, resource in template["Resources"].items()}
    buckets = [name for each, name in names.items() if types[each] == "AWS::S3::Bucket"]
    longest, project = max(buckets, key=len), given["Project"]
    if len(longest) > _BUCKET_LETTERS:
        yield (
            f"--project-name: {project[:40]!r} is too long: the name of the bucket {longest[:99]} may have "
            f"{_BUCKET_LETTERS} letters; use at most {_BUCKET_LETTERS - len(longest) + len(project)} here"
        )


def resource_names(template: Mapping[str, Any], given: Mapping[str, str], account: Account) -> dict[str, str]:
    """Return logical name -> name in AWS of every resource."""
    values = _values(template, given, account)
    return {
        name: _static(resource["Properties"][_NAMES[resource["Type"]][0]], values)
        for name, resource in template["Resources"].items()
    }


def importable_template(
    template: Mapping[str, Any], given: Mapping[str, str], account: Account
) -> dict[str, Any]:
    """Return the template with which CloudFormation imports existing resources instead of creating them.

    An import requires names without functions and the deletion policy Retain.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/import-resources-automatically.html
    """
    values, found = _values(template, given, account), copy.deepcopy(dict(template))
    for resource in found["Resources"].values():
        if keys := IDENTIFIERS.get(resource["Type"]):
            resource["DeletionPolicy"] = "Retain"
            resource["Properties"] |= {key: _static(resource["Properties"][key], values) for key in keys}
    return found


def retained_resources(template: Mapping[str, Any]) -> set[str]:
    """Return the logical names of the resources that stay when the stack is deleted."""
    return {
        name
        for name, resource in template["Resources"].items()
        if str(resource.get("DeletionPolicy", "Delete")).startswith("Retain")
    }


def _values(template: Mapping[str, Any], given: Mapping[str, str], account: Account) -> dict[str, str]:
    defaults = {name: str(rule["Default"]) for name, rule in template["Parameters"].items()}
    pseudo = {"AccountId": account.number, "Region": account.region, "Partition": account.partition}
    return {**defaults, **given, **{f"AWS::{name}": value for name, value in pseudo.items()}}


def _static(value: Any, values: Mapping[str, str]) -> str:
    """Return a name with its Ref or the parameters of its Fn::Sub filled in."""
    if isinstance(value, str):
        return value
    if "Ref" in value:
        return values[value["Ref"]]
    return re.sub(r"\$\{([A-Za-z:]+)\}", lambda found: values[found[1]], value["Fn::Sub"])
