"""The template and the module say what the list says, read by independent readers: there is one list."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.errors import ConfigError
from trainyard.infrastructure import cloudformation, terraform
from trainyard.infrastructure.resources import CHOICES, CONDITIONS, RESOURCES
from trainyard.infrastructure.settings import Account, settings_for, wanted_resources
from trainyard.infrastructure.values import Settings

FOLDER = Path(__file__).resolve().parents[3] / "infrastructure"
TOOLS = Path(sys.executable).parent
ACCOUNT = Account("123456789012", "us-west-2")
SUBJECT = "repo:me/lab:environment:training"
CHOSEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "github": {"Subjects": [SUBJECT]},
    "two subjects": {"Subjects": [SUBJECT, "repo:me@1/lab@2:ref:refs/heads/main"], "CreateProvider": False},
    "everything": {
        "Subjects": [SUBJECT],
        "Cluster": "gpus",
        "WebhookRepository": "me/lab",
        "Project": "lab",
        "Repository": "team/lab",
        "TagMutability": "MUTABLE",
        "TimeoutMinutes": 90,
        "LogDays": 7,
    },
    "a cluster without github": {"Cluster": "gpus"},
}


def template() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "cloudformation.yaml").read_text())
    return found


class CloudFormation:
    """Return the template as CloudFormation resolves it, for the functions that it uses."""

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        self.template = template()
        self.refs: dict[str, Any] = {
            "AWS::AccountId": ACCOUNT.number,
            "AWS::Region": ACCOUNT.region,
            "AWS::Partition": ACCOUNT.partition,
        }
        for name, parameter in self.template["Parameters"].items():
            value = chosen.get(name, parameter["Default"])
            if parameter["Type"] == "CommaDelimitedList":
                value = value if isinstance(value, list) else [each for each in value.split(",") if each]
            elif parameter["Type"] == "String":
                value = str(value).lower() if isinstance(value, bool) else value
            self.refs[name] = value

    def condition(self, name: str) -> bool:
        return bool(self.value(self.template["Conditions"][name]))

    def resources(self) -> dict[str, Any]:
        return {
            name: (each["Type"], self.value(each["Properties"]))
            for name, each in self.template["Resources"].items()
            if "Condition" not in each or self.condition(each["Condition"])
        }

    def named(self, resource: str) -> Any:
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
        return self.refs[name] if name in self.refs else self.named(name)

    def sub(self, text: str) -> str:
        return re.sub(r"\$\{([A-Za-z:]+)\}", lambda found: str(self.ref(found[1])), text)

    def arn(self, argument: list[str]) -> str:
        resource, attribute = argument
        assert attribute == "Arn"
        return f"arn:aws:iam::{ACCOUNT.number}:role/{self.named(resource)}"

    def if_(self, argument: list[Any]) -> Any:
        return self.value(argument[1] if self.condition(argument[0]) else argument[2])


FUNCTIONS: dict[str, Any] = {
    "Ref": CloudFormation.ref,
    "Fn::Sub": CloudFormation.sub,
    "Fn::GetAtt": CloudFormation.arn,
    "Fn::If": CloudFormation.if_,
    "Fn::And": lambda self, each: all(self.value(one) for one in each),
    "Fn::Not": lambda self, each: not self.value(each[0]),
    "Fn::Equals": lambda self, each: self.value(each[0]) == self.value(each[1]),
    "Fn::Join": lambda self, each: each[0].join(self.value(each[1])),
}


def listed(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources that the script applies."""
    settings: Settings = settings_for(chosen, ACCOUNT)
    return {resource.name: (resource.type, found) for resource, found in wanted_resources(settings)}


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
def test_the_template_makes_what_the_script_makes(chosen: dict[str, Any]) -> None:
    assert CloudFormation(chosen).resources() == listed(chosen)


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
def test_a_condition_decides_the_same_at_both_doors(chosen: dict[str, Any]) -> None:
    made, settings = CloudFormation(chosen), settings_for(chosen, ACCOUNT)
    assert {name: made.condition(name) for name in CONDITIONS} == dict(settings.conditions)


def test_the_files_are_what_the_list_says_now() -> None:
    assert (FOLDER / "cloudformation.yaml").read_text() == cloudformation.template_yaml()
    assert (FOLDER / "terraform" / "main.tf").read_text() == terraform.render_module()


def test_cfn_lint_finds_nothing() -> None:
    line: list[str | Path] = [
        TOOLS / "cfn-lint",
        "--non-zero-exit-code",
        "informational",
        FOLDER / "cloudformation.yaml",
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_finds_nothing_in_the_script() -> None:
    line = [TOOLS / "shellcheck", FOLDER / "setup-codebuild.sh"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", [choice.name for choice in CHOICES if choice.pattern])
def test_the_template_refuses_what_the_script_refuses(name: str) -> None:
    """The patterns are the same; a list's is asked of each element, and its default is not an element."""
    pattern = template()["Parameters"][name]["AllowedPattern"]
    for chosen, _ in WRONG:
        for value in chosen.get(name, []) if name == "Subjects" else [chosen.get(name, "")]:
            if name in chosen and value not in (SUBJECT, "a" * 27):
                assert not re.fullmatch(pattern.strip("^$"), value), value


def test_what_holds_data_survives_the_stack() -> None:
    kept = {name for name, each in template()["Resources"].items() if each.get("DeletionPolicy") == "Retain"}
    assert kept == {"ImageRepository", "CacheRepository", "SourceBucket", "ArtifactBucket", "GitHubProvider"}


def test_every_choice_is_offered_at_all_three_doors() -> None:
    names = [choice.name for choice in CHOICES]
    assert list(template()["Parameters"]) == names
    module = (FOLDER / "terraform" / "main.tf").read_text()
    variables = re.findall(r'^variable "(\w+)"', module, flags=re.M)
    assert variables == [choice.flag.replace("-", "_") for choice in CHOICES]
    script = (FOLDER.parent / "scripts" / "setup_codebuild.py").read_text()
    assert [name for name in names if f'"{name}":' not in script] == []


def test_the_module_has_every_resource_of_the_list() -> None:
    module = (FOLDER / "terraform" / "main.tf").read_text()
    labels = set(re.findall(r'^resource "\w+" "(\w+)"', module, flags=re.M))
    assert labels == {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each.name.replace("GitHub", "Github")).lower()
        for each in RESOURCES
    }


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"Project": "Lab"}, "--project-name"),
    ({"Project": "lab_1"}, "--project-name"),
    ({"Project": "-lab"}, "--project-name"),
    ({"Project": "a" * 27}, "--project-name"),
    ({"Project": ""}, "--project-name"),
    ({"Repository": "Lab"}, "--ecr-repository"),
    ({"Repository": "lab/"}, "--ecr-repository"),
    ({"Repository": "a"}, "--ecr-repository"),
    ({"Repository": "a" * 201}, "--ecr-repository"),
    ({"Repository": "lab--"}, "--ecr-repository"),
    ({"Repository": "lab\n"}, "--ecr-repository"),
    ({"ComputeType": "BUILD_GENERAL1_SMALL"}, "--compute-type"),
    ({"ComputeType": "large"}, "--compute-type"),
    ({"TimeoutMinutes": 4}, "--timeout-minutes"),
    ({"TimeoutMinutes": 2161}, "--timeout-minutes"),
    ({"LogDays": 8}, "--log-days"),
    ({"Subjects": ["repo:me/lab:*"]}, "--subject"),
    ({"Subjects": ["repo:me/*:environment:training"]}, "--subject"),
    ({"Subjects": [SUBJECT, "me/lab"]}, "--subject"),
    ({"Cluster": "two words"}, "--cluster"),
    ({"WebhookRepository": "me"}, "--webhook-repository"),
]


@pytest.mark.parametrize(("chosen", "flag"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_choice_is_named_with_its_flag(chosen: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(flag)):
        settings_for(chosen, ACCOUNT)


def test_all_wrong_choices_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        settings_for({"Project": "Lab", "LogDays": 8, "Cluster": "a b"}, ACCOUNT)
    assert str(raised.value).endswith("3 errors. Nothing was started.")


@pytest.mark.parametrize("region", ["", "us west", "us-west-2\n", "moon", "us-west-22"])
def test_a_region_that_is_none_is_refused(region: str) -> None:
    with pytest.raises(ConfigError, match="--region"):
        settings_for({}, Account("123456789012", region))


def test_a_bucket_name_that_would_be_too_long_is_refused_with_the_length_that_fits() -> None:
    far = Account("123456789012", "ap-southeast-2")
    settings_for({"Project": "a" * 25}, far)
    with pytest.raises(ConfigError, match="use 25"):
        settings_for({"Project": "a" * 26}, far)


def test_the_template_is_yaml_that_nothing_is_repeated_in() -> None:
    text = (FOLDER / "cloudformation.yaml").read_text()
    assert "&id" not in text
    policies = [each for name, each in CloudFormation({}).resources().items() if name == "ImageRepository"]
    rules = json.loads(policies[0][1]["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
    assert [rule["rulePriority"] for rule in rules] == [1, 2]
