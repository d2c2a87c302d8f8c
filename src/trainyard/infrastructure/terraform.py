"""The list of resources as a Terraform module.

    CHOICES, RESOURCES  ──>  infrastructure/terraform/main.tf

Terraform's AWS provider splits some resources of CloudFormation: a bucket into six, a role into two. One
function per type makes the pieces. The text is generated and never edited by hand.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainyard.infrastructure.hcl import HclBlock, Json, Raw, Writer
from trainyard.infrastructure.resources import CHOICES, CONDITIONS, LOG_DAYS, RESOURCES, Choice, choice_called
from trainyard.infrastructure.values import PLACEHOLDER, Arn, Either, Name, Parameter, Resource

_HEADING = """\
# Written by scripts/write_infrastructure.py from src/trainyard/infrastructure/resources.py. Do not edit.
#
#   module "trainyard" {
#     source  = "./infrastructure/terraform"
#     subject = ["repo:OWNER/REPO:environment:images"]
#   }

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60"
    }
  }
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}
"""
_LOCALS = {"Account": "local.account", "Region": "local.region", "Partition": "local.partition"}
_TYPES = {
    "AWS::ECR::Repository": ("aws_ecr_repository", "name"),
    "AWS::S3::Bucket": ("aws_s3_bucket", "id"),
    "AWS::S3::BucketPolicy": ("aws_s3_bucket_policy", "id"),
    "AWS::Logs::LogGroup": ("aws_cloudwatch_log_group", "name"),
    "AWS::IAM::Role": ("aws_iam_role", "name"),
    "AWS::IAM::OIDCProvider": ("aws_iam_openid_connect_provider", "arn"),
    "AWS::CodeBuild::Project": ("aws_codebuild_project", "name"),
    "AWS::EKS::AccessEntry": ("aws_eks_access_entry", "id"),
}
"""The main type of Terraform, and its attribute that is the name."""


def render_module() -> str:
    """The module."""
    parts = [_HEADING, *(_variable(choice) for choice in CHOICES), _locals()]
    for resource in RESOURCES:
        parts += [
            _WRITER.block(f'resource "{kind}" "{_label(resource.name)}"', block, comment=comment)
            for kind, block, comment in _pieces(resource)
        ]
    return "\n".join([*parts, _outputs()])


def _label(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.replace("GitHub", "Github")).lower()


def _of(name: str) -> Resource:
    return next(resource for resource in RESOURCES if resource.name == name)


def _reference(name: str, attribute: str) -> Raw:
    resource = _of(name)
    one = "[0]" if resource.condition else ""
    return Raw(f"{_TYPES[resource.type][0]}.{_label(name)}{one}.{attribute}")


def _pieces(resource: Resource) -> Iterator[tuple[str, HclBlock, str]]:
    """The resources of Terraform that make one resource of the list."""
    common = {"count": Raw(f"local.{_label(resource.condition)} ? 1 : 0")} if resource.condition else {}
    for kind, block in _MAKERS[resource.type](resource):
        comment = resource.why if kind == _TYPES[resource.type][0] else ""
        yield kind, HclBlock({**common, **block.arguments}, block.blocks), comment


def _block(properties: Mapping[str, Any], blocks: Sequence[tuple[str, HclBlock]] = ()) -> HclBlock:
    """Properties of CloudFormation under Terraform's names: `GroupName` becomes `group_name`."""
    return HclBlock({_label(key): value for key, value in properties.items()}, blocks)


def _repository(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    p = resource.properties
    blocks = [
        ("image_scanning_configuration", _block(p["ImageScanningConfiguration"])),
        ("encryption_configuration", _block(p["EncryptionConfiguration"])),
    ]
    arguments = {"name": p["RepositoryName"], "image_tag_mutability": p["ImageTagMutability"]}
    yield "aws_ecr_repository", HclBlock(arguments, blocks)
    rules = json.loads(p["LifecyclePolicy"]["LifecyclePolicyText"])
    policy = {"repository": _reference(resource.name, "name"), "policy": Json(rules)}
    yield "aws_ecr_lifecycle_policy", HclBlock(policy)


def _bucket(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    p = resource.properties
    bucket = {"bucket": _reference(resource.name, "id")}
    yield "aws_s3_bucket", HclBlock({"bucket": p["BucketName"]})
    versioning = [("versioning_configuration", _block(p["VersioningConfiguration"]))]
    yield "aws_s3_bucket_versioning", HclBlock(bucket, versioning)
    rule = p["BucketEncryption"]["ServerSideEncryptionConfiguration"][0]
    by_default = HclBlock({"sse_algorithm": rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"]})
    inner = HclBlock(
        {"bucket_key_enabled": rule["BucketKeyEnabled"]},
        [("apply_server_side_encryption_by_default", by_default)],
    )
    yield "aws_s3_bucket_server_side_encryption_configuration", HclBlock(bucket, [("rule", inner)])
    yield "aws_s3_bucket_public_access_block", _block(bucket | p["PublicAccessBlockConfiguration"])
    owner = _block(p["OwnershipControls"]["Rules"][0])
    yield "aws_s3_bucket_ownership_controls", HclBlock(bucket, [("rule", owner)])
    rules = [("rule", _lifecycle_rule(each)) for each in p["LifecycleConfiguration"]["Rules"]]
    yield "aws_s3_bucket_lifecycle_configuration", HclBlock(bucket, rules)


def _lifecycle_rule(rule: Mapping[str, Any]) -> HclBlock:
    blocks = [("filter", HclBlock({"prefix": rule.get("Prefix", "")}))]
    if abort := rule.get("AbortIncompleteMultipartUpload"):
        blocks.append(("abort_incomplete_multipart_upload", _block(abort)))
    if old := rule.get("NoncurrentVersionExpiration"):
        blocks.append(("noncurrent_version_expiration", _block(old)))
    if "ExpirationInDays" in rule:
        blocks.append(("expiration", HclBlock({"days": rule["ExpirationInDays"]})))
    return HclBlock({"id": rule["Id"], "status": rule["Status"]}, blocks)


def _bucket_policy(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    p = resource.properties
    arguments = {"bucket": p["Bucket"], "policy": Json(p["PolicyDocument"])}
    yield "aws_s3_bucket_policy", HclBlock(arguments)


def _log_group(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    p = resource.properties
    arguments = {"name": p["LogGroupName"], "retention_in_days": p["RetentionInDays"]}
    yield "aws_cloudwatch_log_group", HclBlock(arguments)


def _role(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    p = resource.properties
    arguments = {
        "name": p["RoleName"],
        "description": p["Description"],
        "assume_role_policy": Json(p["AssumeRolePolicyDocument"]),
    }
    if "MaxSessionDuration" in p:
        arguments["max_session_duration"] = p["MaxSessionDuration"]
    yield "aws_iam_role", HclBlock(arguments)
    inline = p["Policies"][0]
    policy = {
        "name": inline["PolicyName"],
        "role": _reference(resource.name, "name"),
        "policy": Json(inline["PolicyDocument"]),
    }
    yield "aws_iam_role_policy", HclBlock(policy)


def _provider(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    yield "aws_iam_openid_connect_provider", _block(resource.properties)


def _project(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    p = resource.properties
    given = p["Source"]
    source = {"type": given["Type"], "location": given["Location"], "buildspec": given["BuildSpec"]}
    machine = dict(p["Environment"])
    variables = [("environment_variable", _block(each)) for each in machine.pop("EnvironmentVariables")]
    logs = _block(p["LogsConfig"]["CloudWatchLogs"])
    arguments = {
        "name": p["Name"],
        "description": p["Description"],
        "service_role": p["ServiceRole"],
        "build_timeout": p["TimeoutInMinutes"],
        "queued_timeout": p["QueuedTimeoutInMinutes"],
    }
    blocks = [
        ("source", HclBlock(source)),
        ("artifacts", _block(p["Artifacts"])),
        ("environment", _block(machine, variables)),
        ("cache", _block(p["Cache"])),
        ("logs_config", HclBlock({}, [("cloudwatch_logs", logs)])),
    ]
    yield "aws_codebuild_project", HclBlock(arguments, blocks)
    yield "aws_codebuild_webhook", _webhook(resource)


def _webhook(resource: Resource) -> HclBlock:
    triggers = resource.properties["Triggers"]
    groups = [
        ("filter_group", HclBlock({}, [("filter", _block(each)) for each in group]))
        for group in triggers.then["FilterGroups"]
    ]
    arguments = {
        "count": Raw(f"local.{_label(triggers.condition)} ? 1 : 0"),
        "project_name": _reference(resource.name, "name"),
    }
    return HclBlock(arguments, groups)


def _access_entry(resource: Resource) -> Iterator[tuple[str, HclBlock]]:
    yield "aws_eks_access_entry", _block(resource.properties)


_MAKERS: Mapping[str, Callable[[Resource], Iterator[tuple[str, HclBlock]]]] = {
    "AWS::ECR::Repository": _repository,
    "AWS::S3::Bucket": _bucket,
    "AWS::S3::BucketPolicy": _bucket_policy,
    "AWS::Logs::LogGroup": _log_group,
    "AWS::IAM::Role": _role,
    "AWS::IAM::OIDCProvider": _provider,
    "AWS::CodeBuild::Project": _project,
    "AWS::EKS::AccessEntry": _access_entry,
}


def _special(value: Any, depth: int) -> str | None:
    """Write values of the list, and texts with placeholders, as expressions of Terraform."""
    match value:
        case str():
            if alone := PLACEHOLDER.fullmatch(value):
                return _variable_name(alone[1])
            return json.dumps(PLACEHOLDER.sub(lambda found: "${" + _variable_name(found[1]) + "}", value))
        case Parameter(name):
            return _variable_name(name)
        case Arn(resource):
            return _reference(resource, "arn").text
        case Name(resource):
            return _reference(resource, _TYPES[_of(resource).type][1]).text
        case Either(condition, then, otherwise):
            left_out = "null" if otherwise is None else _WRITER.expression(otherwise, depth)
            return f"local.{_label(condition)} ? {_WRITER.expression(then, depth)} : {left_out}"
        case list() if any(isinstance(each, Either) for each in value):
            return _statements(value, depth)
    return None


def _statements(values: Sequence[Any], depth: int) -> str:
    """The statements of a policy, some of which a condition leaves out."""
    all_of_them = [each.then if isinstance(each, Either) else each for each in values]
    kept = " && ".join(
        f'(statement.Sid != "{each.then["Sid"]}" || local.{_label(each.condition)})'
        for each in values
        if isinstance(each, Either)
    )
    return f"[for statement in {_WRITER.expression(all_of_them, depth)} : statement if{kept}]"


_WRITER = Writer(_special)


def _variable_name(name: str) -> str:
    return _LOCALS.get(name) or f"var.{_flag(choice_called(name))}"


def _flag(choice: Choice) -> str:
    return choice.flag.replace("-", "_")


def _variable(choice: Choice) -> str:
    kind = {bool: "bool", int: "number", list: "list(string)", str: "string"}[type(choice.default)]
    variable = f"var.{_flag(choice)}"
    check = ""
    if choice.pattern and kind == "string":
        check = f"can(regex({_regex(choice.pattern)}, {variable}))"
    elif choice.pattern:
        check = f"alltrue([for each in {variable} : can(regex({_regex(choice.pattern)}, each))])"
    elif choice.highest:
        check = f"{variable} >= {choice.lowest} && {variable} <= {choice.highest}"
    elif choice.name == "LogDays":
        check = f"contains({json.dumps(list(LOG_DAYS))}, {variable})"
    arguments = {"description": choice.help, "type": Raw(kind), "default": choice.default}
    blocks = []
    if check:
        message = f"{_flag(choice)}: {choice.help}."
        blocks.append(("validation", HclBlock({"condition": Raw(check), "error_message": message})))
    return _WRITER.block(f'variable "{_flag(choice)}"', HclBlock(arguments, blocks))


def _regex(pattern: str) -> str:
    return json.dumps(pattern.replace("(?=.{2,200}$)", ""))  # RE2 has no look-ahead


def _locals() -> str:
    found: dict[str, Any] = {
        "account": Raw("data.aws_caller_identity.current.account_id"),
        "partition": Raw("data.aws_partition.current.partition"),
        "region": Raw("data.aws_region.current.id"),
    }
    for name, needed in CONDITIONS.items():
        found[_label(name)] = Raw(" && ".join(_given(choice_called(each)) for each in needed))
    return _WRITER.block("locals", HclBlock(found))


def _given(choice: Choice) -> str:
    variable = f"var.{_flag(choice)}"
    if isinstance(choice.default, bool):
        return variable
    return f"length({variable}) > 0" if isinstance(choice.default, list) else f'{variable} != ""'


def _outputs() -> str:
    outputs = {
        "repository_uri": ("where images are pushed", "aws_ecr_repository.image_repository.repository_url"),
        "project_name": ("for build_image.py", "aws_codebuild_project.builds.name"),
        "source_bucket": ("for build_image.py", "aws_s3_bucket.source_bucket.id"),
        "github_role_arn": (
            "the variable TRAINYARD_IMAGE_ROLE of the repository on GitHub",
            "one(aws_iam_role.github_role[*].arn)",
        ),
    }
    return "\n".join(
        _WRITER.block(f'output "{name}"', HclBlock({"description": why, "value": Raw(value)}))
        for name, (why, value) in outputs.items()
    )
