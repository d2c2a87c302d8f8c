"""The template as CloudFormation resolves it in one account, for the functions that the template uses."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[3] / "infrastructure"
TEMPLATE = FOLDER / "cloudformation.yaml"
ACCOUNT, REGION = "123456789012", "us-west-2"
SUBJECT = "repo:me/lab:environment:training"


@cache
def template() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text())
    return found


class ResolvedTemplate:
    """The resources of the template with their properties, for the parameters `given`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.template = template()
        self.refs: dict[str, Any] = {
            "AWS::AccountId": ACCOUNT,
            "AWS::Region": REGION,
            "AWS::Partition": "aws",
        }
        for name, parameter in self.template["Parameters"].items():
            value = given.get(name, parameter["Default"])
            if parameter["Type"] == "CommaDelimitedList":
                value = [each for each in value.split(",") if each]
            self.refs[name] = value

    def condition(self, name: str) -> bool:
        return bool(self.value(self.template["Conditions"][name]))

    def resources(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Logical name -> type and properties, of the resources whose condition holds."""
        return {
            name: (each["Type"], self.value(each["Properties"]))
            for name, each in self.template["Resources"].items()
            if "Condition" not in each or self.condition(each["Condition"])
        }

    def properties(self, resource: str) -> dict[str, Any]:
        return self.resources()[resource][1]

    def statements(self, role: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.properties(role)["Policies"][0]["PolicyDocument"]["Statement"]
        return found

    def name_of(self, resource: str) -> Any:
        properties = self.template["Resources"][resource]["Properties"]
        keys = ("BucketName", "LogGroupName", "RoleName", "Name")
        return self.value(next(properties[key] for key in keys if key in properties))

    def value(self, given: Any) -> Any:
        if isinstance(given, list):
            return [found for each in given if (found := self.value(each)) is not None]
        if not isinstance(given, dict):
            return given
        if len(given) == 1:
            (function, argument), *_ = given.items()
            if function in FUNCTIONS:
                return FUNCTIONS[function](self, argument)
        filled = {key: self.value(inner) for key, inner in given.items()}
        return {key: inner for key, inner in filled.items() if inner is not None}

    def ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return None
        return self.refs[name] if name in self.refs else self.name_of(name)

    def sub(self, text: str) -> str:
        return re.sub(r"\$\{([A-Za-z:]+)\}", lambda found: str(self.ref(found[1])), text)

    def arn(self, argument: list[str]) -> str:
        resource, attribute = argument
        assert attribute == "Arn"
        return f"arn:aws:iam::{ACCOUNT}:role/{self.name_of(resource)}"

    def if_(self, argument: list[Any]) -> Any:
        return self.value(argument[1] if self.condition(argument[0]) else argument[2])


FUNCTIONS: dict[str, Any] = {
    "Ref": ResolvedTemplate.ref,
    "Condition": lambda self, name: self.condition(name) if isinstance(name, str) else self.value(name),
    "Fn::Sub": ResolvedTemplate.sub,
    "Fn::GetAtt": ResolvedTemplate.arn,
    "Fn::If": ResolvedTemplate.if_,
    "Fn::And": lambda self, each: all(self.value(one) for one in each),
    "Fn::Not": lambda self, each: not self.value(each[0]),
    "Fn::Equals": lambda self, each: self.value(each[0]) == self.value(each[1]),
    "Fn::Split": lambda self, each: self.value(each[1]).split(each[0]),
    "Fn::Join": lambda self, each: each[0].join(self.value(each[1])),
}
