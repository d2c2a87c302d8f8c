"""The list of resources as a Terraform module.

    CHOICES, RESOURCES  ──>  infrastructure/terraform/main.tf

Terraform's AWS provider cuts some resources of CloudFormation in pieces: a bucket is six, a role two. Each type
has a function here that says which. The text is generated and never edited by hand.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.infrastructure.resources import CHOICES, CONDITIONS, LOG_DAYS, RESOURCES, Choice
from trainyard.infrastructure.values import PLACEHOLDER, Arn, Either, Name, Parameter, Resource

_HEADING = """\
# Written by scripts/write_infrastructure.py from src/trainyard/infrastructure/resources.py. Do not edit.
#
#   module "trainyard" {
#     source  = "./infrastructure/terraform"
#     subject = ["repo:OWNER/REPO:environment:training"]
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


@dataclass(frozen=True)
class Raw:
    """An expression of Terraform."""

    text: str


@dataclass(frozen=True)
class _Block:
    """A resource of Terraform, or a block in one."""

    arguments: Mapping[str, Any]
    blocks: Sequence[tuple[str, "_Block"]] = field(default=())


def text() -> str:
    """The module."""
    parts = [_HEADING, *(_variable(choice) for choice in CHOICES), _locals()]
    for resource in RESOURCES:
        parts += [
            _written(f'resource "{kind}" "{_label(resource.name)}"', block, 0, comment)
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


def _pieces(resource: Resource) -> Iterator[tuple[str, _Block, str]]:
    """The resources of Terraform that make one resource of the list."""
    kind = _TYPES[resource.type][0]
    common: dict[str, Any] = {}
    if resource.condition:
        common["count"] = Raw(f"local.{_label(resource.condition)} ? 1 : 0")
    comment = resource.why
    for found, block in _MAKERS[resource.type](resource):
        yield found, _Block({**common, **block.arguments}, block.blocks), comment if found == kind else ""


def _repository(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    blocks = [
        ("image_scanning_configuration", _Block({"scan_on_push": p["ImageScanningConfiguration"]["ScanOnPush"]})),
        (
            "encryption_configuration",
            _Block({"encryption_type": p["EncryptionConfiguration"]["EncryptionType"]}),
        ),
    ]
    arguments = {"name": p["RepositoryName"], "image_tag_mutability": p["ImageTagMutability"]}
    yield "aws_ecr_repository", _Block(arguments, blocks)
    rules = json.loads(p["LifecyclePolicy"]["LifecyclePolicyText"])
    policy = {"repository": _reference(resource.name, "name"), "policy": _Json(rules)}
    yield "aws_ecr_lifecycle_policy", _Block(policy)


def _bucket(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    bucket = {"bucket": _reference(resource.name, "id")}
    yield "aws_s3_bucket", _Block({"bucket": p["BucketName"]})
    versioning = _Block({"status": p["VersioningConfiguration"]["Status"]})
    yield "aws_s3_bucket_versioning", _Block(bucket, [("versioning_configuration", versioning)])
    rule = p["BucketEncryption"]["ServerSideEncryptionConfiguration"][0]
    by_default = _Block({"sse_algorithm": rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"]})
    inner = _Block(
        {"bucket_key_enabled": rule["BucketKeyEnabled"]},
        [("apply_server_side_encryption_by_default", by_default)],
    )
    yield "aws_s3_bucket_server_side_encryption_configuration", _Block(bucket, [("rule", inner)])
    blocked = {_label(key): value for key, value in p["PublicAccessBlockConfiguration"].items()}
    yield "aws_s3_bucket_public_access_block", _Block({**bucket, **blocked})
    owner = _Block({"object_ownership": p["OwnershipControls"]["Rules"][0]["ObjectOwnership"]})
    yield "aws_s3_bucket_ownership_controls", _Block(bucket, [("rule", owner)])
    rules = [("rule", _lifecycle_rule(each)) for each in p["LifecycleConfiguration"]["Rules"]]
    yield "aws_s3_bucket_lifecycle_configuration", _Block(bucket, rules)


def _lifecycle_rule(rule: Mapping[str, Any]) -> _Block:
    blocks = [("filter", _Block({"prefix": rule.get("Prefix", "")}))]
    if abort := rule.get("AbortIncompleteMultipartUpload"):
        days = {"days_after_initiation": abort["DaysAfterInitiation"]}
        blocks.append(("abort_incomplete_multipart_upload", _Block(days)))
    if old := rule.get("NoncurrentVersionExpiration"):
        blocks.append(("noncurrent_version_expiration", _Block({"noncurrent_days": old["NoncurrentDays"]})))
    if "ExpirationInDays" in rule:
        blocks.append(("expiration", _Block({"days": rule["ExpirationInDays"]})))
    return _Block({"id": rule["Id"], "status": rule["Status"]}, blocks)


def _bucket_policy(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    arguments = {"bucket": p["Bucket"], "policy": _Json(p["PolicyDocument"])}
    yield "aws_s3_bucket_policy", _Block(arguments)


def _log_group(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    arguments = {"name": p["LogGroupName"], "retention_in_days": p["RetentionInDays"]}
    yield "aws_cloudwatch_log_group", _Block(arguments)


def _role(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    arguments = {
        "name": p["RoleName"],
        "description": p["Description"],
        "assume_role_policy": _Json(p["AssumeRolePolicyDocument"]),
    }
    if "MaxSessionDuration" in p:
        arguments["max_session_duration"] = p["MaxSessionDuration"]
    yield "aws_iam_role", _Block(arguments)
    inline = p["Policies"][0]
    yield (
        "aws_iam_role_policy",
        _Block(
            {
                "name": inline["PolicyName"],
                "role": _reference(resource.name, "name"),
                "policy": _Json(inline["PolicyDocument"]),
            }
        ),
    )


def _provider(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    yield "aws_iam_openid_connect_provider", _Block({"url": p["Url"], "client_id_list": p["ClientIdList"]})


def _project(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    source, kept, machine = p["Source"], p["Artifacts"], p["Environment"]
    variables = [
        ("environment_variable", _Block({key.lower(): value for key, value in each.items()}))
        for each in machine["EnvironmentVariables"]
    ]
    logs = p["LogsConfig"]["CloudWatchLogs"]
    arguments = {
        "name": p["Name"],
        "description": p["Description"],
        "service_role": p["ServiceRole"],
        "build_timeout": p["TimeoutInMinutes"],
        "queued_timeout": p["QueuedTimeoutInMinutes"],
    }
    blocks = [
        (
            "source",
            _Block(
                {"type": source["Type"], "location": source["Location"], "buildspec": source["BuildSpec"]}
            ),
        ),
        (
            "artifacts",
            _Block(
                {
                    "type": kept["Type"],
                    "location": kept["Location"],
                    "path": kept["Path"],
                    "namespace_type": kept["NamespaceType"],
                    "packaging": kept["Packaging"],
                    "name": kept["Name"],
                }
            ),
        ),
        (
            "environment",
            _Block(
                {
                    "type": machine["Type"],
                    "image": machine["Image"],
                    "compute_type": machine["ComputeType"],
                    "privileged_mode": machine["PrivilegedMode"],
                },
                variables,
            ),
        ),
        ("cache", _Block({"type": p["Cache"]["Type"], "modes": p["Cache"]["Modes"]})),
        (
            "logs_config",
            _Block(
                {},
                [("cloudwatch_logs", _Block({"status": logs["Status"], "group_name": logs["GroupName"]}))],
            ),
        ),
    ]
    yield "aws_codebuild_project", _Block(arguments, blocks)
    triggers = p["Triggers"]
    groups = [
        ("filter_group", _Block({}, [("filter", _Block({"type": f["Type"], "pattern": f["Pattern"]})) for f in group]))
        for group in triggers.then["FilterGroups"]
    ]
    arguments = {
        "count": Raw(f"local.{_label(triggers.condition)} ? 1 : 0"),
        "project_name": _reference(resource.name, "name"),
    }
    yield "aws_codebuild_webhook", _Block(arguments, groups)


def _access_entry(resource: Resource) -> Iterator[tuple[str, _Block]]:
    p = resource.properties
    yield (
        "aws_eks_access_entry",
        _Block(
            {
                "cluster_name": p["ClusterName"],
                "principal_arn": p["PrincipalArn"],
                "type": p["Type"],
                "kubernetes_groups": p["KubernetesGroups"],
            }
        ),
    )


_MAKERS: Mapping[str, Callable[[Resource], Iterator[tuple[str, _Block]]]] = {
    "AWS::ECR::Repository": _repository,
    "AWS::S3::Bucket": _bucket,
    "AWS::S3::BucketPolicy": _bucket_policy,
    "AWS::Logs::LogGroup": _log_group,
    "AWS::IAM::Role": _role,
    "AWS::IAM::OIDCProvider": _provider,
    "AWS::CodeBuild::Project": _project,
    "AWS::EKS::AccessEntry": _access_entry,
}


@dataclass(frozen=True)
class _Json:
    """A document that the provider takes as JSON text."""

    value: Any


def _written(heading: str, block: _Block, depth: int, comment: str = "") -> str:
    """A block as HCL in the layout of `terraform fmt`: the equal signs of neighbours stand below each other."""
    space = "  " * depth
    lines = [f"{space}# {comment}"] if comment else []
    lines.append(f"{space}{heading} {{")
    lines += _arguments(block.arguments, depth + 1)
    for number, (name, inner) in enumerate(block.blocks):
        if block.arguments or number:
            lines.append("")
        lines.append(_written(name, inner, depth + 1).rstrip("\n"))
    return "\n".join([*lines, f"{space}}}"]) + "\n"


def _arguments(arguments: Mapping[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    together: list[tuple[str, str]] = []  # neighbours of one line each are aligned
    space = "  " * depth

    def flush() -> None:
        width = max((len(name) for name, _ in together), default=0)
        lines.extend(f"{space}{name.ljust(width)} = {value}" for name, value in together)
        together.clear()

    for name, value in arguments.items():
        written = _expression(value, depth)
        if "\n" in written:
            flush()
            lines.append(f"{space}{name} = {written}")
        else:
            together.append((name, written))
    flush()
    return lines


def _expression(value: Any, depth: int) -> str:
    match value:
        case Raw(found):
            return found
        case bool() | int():
            return json.dumps(value)
        case str():
            return _string(value)
        case Parameter(name):
            return _variable_name(name)
        case Arn(resource):
            return _reference(resource, "arn").text
        case Name(resource):
            return _reference(resource, _TYPES[_of(resource).type][1]).text
        case Either(condition, then, otherwise):
            left_out = "null" if otherwise is None else _expression(otherwise, depth)
            return f"local.{_label(condition)} ? {_expression(then, depth)} : {left_out}"
        case _Json(inner):
            return f"jsonencode({_expression(inner, depth)})"
        case Mapping():
            keyed = {_key(key): inner for key, inner in value.items()}
            return "\n".join(["{", *_arguments(keyed, depth + 1), "  " * depth + "}"])
        case list() | tuple():
            return _list(value, depth)
    raise TypeError(f"{value!r} has no form in Terraform")


def _list(values: Sequence[Any], depth: int) -> str:
    if any(isinstance(each, Either) for each in values):  # elements that a condition leaves out
        written = _list([each.then if isinstance(each, Either) else each for each in values], depth)
        conditions = {each.condition for each in values if isinstance(each, Either)}
        kept = " && ".join(
            f'(statement.Sid != "{each.then["Sid"]}" || local.{_label(each.condition)})'
            for each in values
            if isinstance(each, Either)
        )
        assert conditions
        return f"[for statement in {written} : statement if{kept}]"
    inner = [_expression(each, depth + 1) for each in values]
    if not any("\n" in each for each in inner) and sum(map(len, inner)) < 80:
        return f"[{', '.join(inner)}]"
    space = "  " * (depth + 1)
    return "\n".join(["[", *(f"{space}{each}," for each in inner), "  " * depth + "]"])


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else json.dumps(key)


def _string(value: str) -> str:
    if alone := PLACEHOLDER.fullmatch(value):
        return _variable_name(alone[1])
    return json.dumps(PLACEHOLDER.sub(lambda found: "${" + _variable_name(found[1]) + "}", value))


def _variable_name(name: str) -> str:
    return _LOCALS.get(name) or f"var.{_flag(next(c for c in CHOICES if c.name == name))}"


def _flag(choice: Choice) -> str:
    return choice.flag.replace("-", "_")


def _variable(choice: Choice) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "bool"),
        (int, "number"),
        (list, "list(string)"),
        (str, "string"),
    )
    kind = next(word for of, word in kinds if isinstance(choice.default, of))
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
        blocks.append(("validation", _Block({"condition": Raw(check), "error_message": message})))
    return _written(f'variable "{_flag(choice)}"', _Block(arguments, blocks), 0)


def _regex(pattern: str) -> str:
    return json.dumps(pattern.replace("(?=.{2,200}$)", ""))  # RE2 has no look-ahead


def _locals() -> str:
    found: dict[str, Any] = {
        "account": Raw("data.aws_caller_identity.current.account_id"),
        "partition": Raw("data.aws_partition.current.partition"),
        "region": Raw("data.aws_region.current.id"),
    }
    for name, needed in CONDITIONS.items():
        found[_label(name)] = Raw(" && ".join(_given(next(c for c in CHOICES if c.name == n)) for n in needed))
    return _written("locals", _Block(found), 0)


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
        _written(f'output "{name}"', _Block({"description": why, "value": Raw(value)}), 0)
        for name, (why, value) in outputs.items()
    )
