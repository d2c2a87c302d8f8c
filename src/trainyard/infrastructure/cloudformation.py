"""The list of resources as a CloudFormation template.

    CHOICES, RESOURCES  ──>  infrastructure/cloudformation.yaml

The text is YAML with a comment before each resource. It is generated and never edited by hand.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from trainyard.infrastructure.resources import CHOICES, CONDITIONS, LOG_DAYS, RESOURCES, Choice, choice_called
from trainyard.infrastructure.values import PLACEHOLDER, Arn, Either, Name, Parameter, Resource

_PSEUDO = {"Account": "AWS::AccountId", "Region": "AWS::Region", "Partition": "AWS::Partition"}
_HEADING = """\
# Written by scripts/write_infrastructure.py from src/trainyard/infrastructure/resources.py. Do not edit.
#
#   aws cloudformation deploy --stack-name trainyard --template-file infrastructure/cloudformation.yaml \\
#     --capabilities CAPABILITY_NAMED_IAM --parameter-overrides Subjects=repo:OWNER/REPO:environment:images
#
# Buckets and repositories hold data and are kept when the stack is deleted.
"""


def template_yaml() -> str:
    """The template as YAML, with the reason for each resource before it."""
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Trainyard: build, check and push training images in CodeBuild.",
        "Parameters": {choice.name: _parameter(choice) for choice in CHOICES},
        "Conditions": {name: _condition(name) for name in CONDITIONS},
        "Resources": {resource.name: _resource(resource) for resource in RESOURCES},
        "Outputs": _outputs(),
    }
    found = yaml.dump(template, sort_keys=False, width=1000, Dumper=_Dumper)
    for resource in RESOURCES:
        found = found.replace(
            f"\n  {resource.name}:\n    Type:", f"\n  # {resource.why}\n  {resource.name}:\n    Type:"
        )
    return _HEADING + found


class _Dumper(yaml.SafeDumper):
    """Writes every value where it is used: no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _parameter(choice: Choice) -> dict[str, Any]:
    found: dict[str, Any] = {"Type": "String", "Description": choice.help}
    match choice.default:
        case bool():
            found |= {"Default": str(choice.default).lower(), "AllowedValues": ["true", "false"]}
        case int():
            found |= {"Type": "Number", "Default": choice.default}
            found |= {"AllowedValues": list(LOG_DAYS)} if choice.name == "LogDays" else {}
            found |= {"MinValue": choice.lowest, "MaxValue": choice.highest} if choice.highest else {}
        case list():
            found |= {"Type": "CommaDelimitedList", "Default": ""}
            found |= {"AllowedPattern": f"^({choice.pattern.strip('^$')})?$"}  # of each element
        case _:
            found |= {"Default": choice.default, "AllowedPattern": choice.pattern}
    return found


def _condition(name: str) -> Any:
    given = [_given(choice_called(each)) for each in CONDITIONS[name]]
    return given[0] if len(given) == 1 else {"Fn::And": given}


def _given(choice: Choice) -> dict[str, Any]:
    if isinstance(choice.default, bool):
        return {"Fn::Equals": [{"Ref": choice.name}, "true"]}
    value: Any = {"Ref": choice.name}
    if isinstance(choice.default, list):
        value = {"Fn::Join": ["", value]}
    return {"Fn::Not": [{"Fn::Equals": [value, ""]}]}


def _resource(resource: Resource) -> dict[str, Any]:
    found: dict[str, Any] = {"Type": resource.type}
    if resource.condition:
        found["Condition"] = resource.condition
    if resource.keeps_data:
        found |= {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
    return {**found, "Properties": _rendered(resource.properties)}


def _rendered(value: Any) -> Any:
    match value:
        case str() if PLACEHOLDER.search(value):
            return {"Fn::Sub": PLACEHOLDER.sub(lambda m: "${" + _PSEUDO.get(m[1], m[1]) + "}", value)}
        case Parameter(name):
            return {"Ref": name}
        case Arn(resource):
            return {"Fn::GetAtt": [resource, "Arn"]}
        case Name(resource):
            return {"Ref": resource}
        case Either(condition, then, otherwise):
            left_out = {"Ref": "AWS::NoValue"} if otherwise is None else _rendered(otherwise)
            return {"Fn::If": [condition, _rendered(then), left_out]}
        case Mapping():
            return {key: _rendered(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_rendered(inner) for inner in value]
    return value


def _outputs() -> dict[str, Any]:
    return {
        "RepositoryUri": {
            "Description": "where images are pushed",
            "Value": {"Fn::GetAtt": ["ImageRepository", "RepositoryUri"]},
        },
        "ProjectName": {"Description": "for build_image.py", "Value": {"Ref": "Builds"}},
        "SourceBucket": {"Description": "for build_image.py", "Value": {"Ref": "SourceBucket"}},
        "GitHubRoleArn": {
            "Condition": "TrustsGitHub",
            "Description": "the variable TRAINYARD_IMAGE_ROLE of the repository on GitHub",
            "Value": {"Fn::GetAtt": ["GitHubRole", "Arn"]},
        },
    }
