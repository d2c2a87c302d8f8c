"""The template as a file, and the module around it, by independent judges; wrong parameters by rule."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.infrastructure.template_reader import ACCOUNT, FOLDER, REGION, SUBJECT, TEMPLATE, template

from trainyard.errors import ConfigError
from trainyard.image.building.stack_template import FLAGS, IDENTIFIERS, Account, check_parameters

TOOLS = Path(sys.executable).parent
HERE = Account(ACCOUNT, REGION)


def test_cfn_lint_finds_nothing() -> None:
    line: list[str | Path] = [TOOLS / "cfn-lint", "--non-zero-exit-code", "informational", TEMPLATE]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_finds_nothing_in_the_script() -> None:
    line = [TOOLS / "shellcheck", FOLDER / "setup-codebuild.sh"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_template_is_short_enough_to_be_sent_with_a_request() -> None:
    assert len(TEMPLATE.read_bytes()) <= 51_200


@pytest.mark.parametrize("kind", IDENTIFIERS)
def test_a_type_is_found_by_the_identifier_of_its_schema(kind: str) -> None:
    """cfn-lint has AWS's own schemas."""
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema
    assert schema["primaryIdentifier"] == [f"/properties/{key}" for key in IDENTIFIERS[kind]]


def test_the_types_that_cannot_be_imported_are_those_without_an_identifier_that_is_written() -> None:
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    kinds = {each["Type"] for each in template()["Resources"].values()}
    for kind in kinds - IDENTIFIERS.keys():
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema
        assert set(schema["primaryIdentifier"]) <= set(schema["readOnlyProperties"]), kind


def test_what_holds_data_survives_the_stack_and_nothing_else() -> None:
    kept = {name for name, each in template()["Resources"].items() if each.get("DeletionPolicy") == "Retain"}
    buckets = {"SourceBucket", "SourceBucketPolicy", "ArtifactBucket", "ArtifactBucketPolicy"}
    assert kept == {"ImageRepository", "CacheRepository", "GitHubProvider", *buckets}
    replaced = {name for name, each in template()["Resources"].items() if "UpdateReplacePolicy" in each}
    assert replaced == kept


def test_every_parameter_has_a_flag_and_a_variable_of_terraform() -> None:
    assert list(template()["Parameters"]) == list(FLAGS)
    module = (FOLDER / "terraform" / "main.tf").read_text()
    variables = re.findall(r'^variable "(\w+)"', module, flags=re.M)
    renamed = {"github": "subject", "no-provider": "create-provider"}
    assert variables == [renamed.get(flag, flag).replace("-", "_") for flag in FLAGS.values()]
    assert re.findall(r"^    ([A-Z]\w+) += ", module, flags=re.M) == list(FLAGS)


def test_the_lifecycle_of_images_is_json_with_rules_in_order() -> None:
    for name, count in (("ImageRepository", 2), ("CacheRepository", 1)):
        text = template()["Resources"][name]["Properties"]["LifecyclePolicy"]["LifecyclePolicyText"]
        assert [rule["rulePriority"] for rule in json.loads(text)["rules"]] == [1, 2][:count]


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
    ({"TagMutability": "immutable"}, "--tag-mutability"),
    ({"ComputeType": "BUILD_GENERAL1_SMALL"}, "--compute-type"),
    ({"ComputeType": "large"}, "--compute-type"),
    ({"TimeoutMinutes": "4"}, "--timeout-minutes"),
    ({"TimeoutMinutes": "2161"}, "--timeout-minutes"),
    ({"LogDays": "8"}, "--log-days"),
    ({"Subjects": "repo:me/lab:*"}, "--github"),
    ({"Subjects": "repo:me/*:environment:training"}, "--github"),
    ({"Subjects": f"{SUBJECT},me/lab"}, "--github"),
    ({"Cluster": "two words"}, "--cluster"),
    ({"WebhookRepository": "me"}, "--webhook-repository"),
    ({"BaseRepositories": "nvcr.io/nvidia/pytorch"}, "--base-repository"),
]
RIGHT: list[dict[str, str]] = [
    {"Project": "lab", "Repository": "team/lab", "TagMutability": "MUTABLE", "TimeoutMinutes": "2160"},
    {"Subjects": f"{SUBJECT},repo:me@1/lab@2:ref:refs/heads/main", "Cluster": "gpus", "LogDays": "731"},
    {"Subjects": "", "Cluster": "", "WebhookRepository": ""},
    {"ComputeType": "BUILD_GENERAL1_2XLARGE", "WebhookRepository": "me/lab"},
]


@each_case(("given", "flag"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_named_with_its_flag(given: dict[str, str], flag: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(flag)):
        check_parameters(template(), given, HERE)


@pytest.mark.parametrize("given", RIGHT, ids=lambda value: str(value)[:40])
def test_a_right_value_is_taken(given: dict[str, str]) -> None:
    check_parameters(template(), given, HERE)


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        check_parameters(template(), {"Project": "Lab", "LogDays": "8", "Cluster": "a b"}, HERE)
    assert str(raised.value).endswith("3 errors. Nothing was started.")


@pytest.mark.parametrize("region", ["", "us west", "us-west-2\n", "moon", "us-west-22"])
def test_a_region_that_is_none_is_refused(region: str) -> None:
    with pytest.raises(ConfigError, match="--region"):
        check_parameters(template(), {}, Account(ACCOUNT, region))


def test_a_bucket_name_that_would_be_too_long_is_refused_with_the_length_that_fits() -> None:
    far = Account(ACCOUNT, "ap-southeast-2")
    check_parameters(template(), {"Project": "a" * 25}, far)
    with pytest.raises(ConfigError, match="use at most 25"):
        check_parameters(template(), {"Project": "a" * 26}, far)
