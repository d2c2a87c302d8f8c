"""The template as a file, and the module around it, by independent judges; wrong parameters by rule."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.infrastructure.template_reader import (
    ACCOUNT,
    FOLDER,
    REGION,
    SUBJECT,
    TEMPLATE,
    ResolvedTemplate,
    template,
)

from trainyard.commands.init_aws import PARAMETERS
from trainyard.errors import ConfigError
from trainyard.image.building.stack_template import check_parameters, more_repositories, write_template

TOOLS = Path(sys.executable).parent
FLAGS = {name: flag for name, (flag, _) in PARAMETERS.items()}
NAMES = {"AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::Partition": "aws"}


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


def test_what_is_retained_can_be_imported_by_the_identifier_of_its_schema() -> None:
    """cfn-lint has AWS's own schemas. An OIDC provider is found only by its ARN, which no template has."""
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    values = {"Project": "lab", "Repository": "team/lab"}
    written = json.loads(write_template(template(), {**values, **NAMES}, ["verl", "a-b"]))
    for name, resource in written["Resources"].items():
        if resource.get("DeletionPolicy") == "Retain" and name != "GitHubProvider":
            schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", resource["Type"]).schema
            (key,) = [path.removeprefix("/properties/") for path in schema["primaryIdentifier"]]
            assert isinstance(resource["Properties"][key], str), name
    assert more_repositories(written) == ["verl", "a-b"]
    more = {name for name in written["Resources"] if name.startswith("More")}
    assert len(more) == 4 and all(re.fullmatch("[A-Za-z0-9]+", name) for name in more)
    as_it_is = ResolvedTemplate(values).resources()
    found = ResolvedTemplate(values, written).resources()
    assert {name: found[name] for name in found if name not in more} == as_it_is


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
    ({"Project": "a" * 26}, "--project-name"),
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
    ({"KmsKey": "alias/lab"}, "--kms-key"),
    ({"Subnets": "subnet-1,,subnet-2"}, "--subnets"),
    ({"ArtifactDays": "3651"}, "--artifact-days"),
]
RIGHT: list[dict[str, str]] = [
    {"Project": "lab", "Repository": "team/lab", "TagMutability": "MUTABLE", "TimeoutMinutes": "2160"},
    {"Subjects": f"{SUBJECT},repo:me@1/lab@2:ref:refs/heads/main", "Cluster": "gpus", "LogDays": "731"},
    {"Subjects": "", "Cluster": "", "WebhookRepository": ""},
    {"ComputeType": "BUILD_GENERAL1_2XLARGE", "WebhookRepository": "me/lab"},
    {"Vpc": "vpc-0a1b2c3d", "Subnets": "subnet-0a1b2c3d,subnet-1a1b2c3d", "SecurityGroups": "sg-0a1b2c3d"},
]


def test_a_wrong_value_is_named_with_its_flag_and_a_right_one_is_taken() -> None:
    for given, flag in WRONG:
        with pytest.raises(ConfigError, match=re.escape(flag)):
            check_parameters(template(), given, FLAGS)
    for right in RIGHT:
        check_parameters(template(), right, FLAGS)


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        check_parameters(template(), {"Project": "Lab", "LogDays": "8", "Cluster": "a b"}, FLAGS)
    assert str(raised.value).endswith("3 errors. Nothing was started.")


def test_the_longest_project_fits_the_name_of_a_bucket_in_the_region_with_the_longest_name() -> None:
    found = ResolvedTemplate({"Project": "a" * 25}).name_of("ArtifactBucket")
    assert len(found.replace(REGION, "ap-southeast-2")) == 63
