"""Values that are known only where the resources are made: parameters, ARNs of other resources, conditions.

    "${Project}-build", Arn("BuildRole"), Either("HasGitHub", a, b)  ──resolve_value──>  plain JSON

The list of resources is written once with these values. The script fills them in (`resolve_value`);
CloudFormation and Terraform get their own notation (`cloudformation`, `terraform`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLACEHOLDER = re.compile(r"\$\{([A-Za-z]+)\}")


@dataclass(frozen=True)
class Parameter:
    """A parameter as a whole value: a list or a number, which no text with a placeholder can be."""

    name: str


@dataclass(frozen=True)
class Arn:
    """The ARN of another resource of the list."""

    resource: str


@dataclass(frozen=True)
class Name:
    """The name of another resource of the list, by which AWS knows it."""

    resource: str


@dataclass(frozen=True)
class Either:
    """One of two values."""

    condition: str
    then: Any
    otherwise: Any
    """None: the property is left out."""


@dataclass(frozen=True)
class Resource:
    """One resource, with the properties of its CloudFormation type."""

    name: str
    """Its logical name in the list, such as BuildRole."""
    type: str
    """Its CloudFormation type, such as AWS::IAM::Role."""
    why: str
    properties: Mapping[str, Any]
    condition: str = ""
    """The condition under which it is made; empty: always."""
    keeps_data: bool = False
    """It holds data or is shared with others, so it is kept when the stack is removed."""


@dataclass(frozen=True)
class Settings:
    """The values of placeholders, parameters and conditions in one account and region."""

    texts: Mapping[str, str]
    values: Mapping[str, Any]
    conditions: Mapping[str, bool]
    arns: Mapping[str, str]
    names: Mapping[str, str]


def resolve_value(value: Any, settings: Settings) -> Any:
    """The value as plain JSON. Properties that a condition leaves out are not in it."""
    match value:
        case str():
            return PLACEHOLDER.sub(lambda found: settings.texts[found[1]], value)
        case Parameter(name):
            return settings.values[name]
        case Arn(resource):
            return settings.arns[resource]
        case Name(resource):
            return settings.names[resource]
        case Either(condition, then, otherwise):
            return resolve_value(then if settings.conditions[condition] else otherwise, settings)
        case Mapping():
            filled = {key: resolve_value(inner, settings) for key, inner in value.items()}
            return {key: inner for key, inner in filled.items() if inner is not None}
        case list() | tuple():
            return [inner for each in value if (inner := resolve_value(each, settings)) is not None]
    return value
