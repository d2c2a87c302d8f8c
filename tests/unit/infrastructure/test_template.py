"""The template as a file, and the module around it, by independent judges; wrong parameters by rule."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.unit.infrastructure.template_reader import (
    FOLDER,
    REGION,
    SUBJECT,
    TEMPLATE,
    ResolvedTemplate,
    template,
)

from trainyard.commands.init_aws import flag_of

TOOLS = Path(sys.executable).parent


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


def test_what_holds_data_survives_the_stack_and_nothing_else() -> None:
    kept = {name for name, each in template()["Resources"].items() if each.get("DeletionPolicy") == "Retain"}
    buckets = {"SourceBucket", "SourceBucketPolicy", "ArtifactBucket", "ArtifactBucketPolicy"}
    assert kept == {"ImageRepository", "CacheRepository", "GitHubProvider", *buckets}
    replaced = {name for name, each in template()["Resources"].items() if "UpdateReplacePolicy" in each}
    assert replaced == kept


def test_every_parameter_has_a_flag_and_a_variable_of_terraform() -> None:
    module = (FOLDER / "terraform" / "main.tf").read_text()
    variables = re.findall(r'^variable "(\w+)"', module, flags=re.M)
    renamed = {"github": "subject", "no-provider": "create-provider"}
    assert variables == [
        renamed.get(flag, flag).replace("-", "_") for flag in map(flag_of, template()["Parameters"])
    ]
    assert re.findall(r"^    ([A-Z]\w+) += ", module, flags=re.M) == list(template()["Parameters"])


def test_the_lifecycle_of_images_is_json_with_rules_in_order() -> None:
    for name, count in (("ImageRepository", 2), ("CacheRepository", 1)):
        text = template()["Resources"][name]["Properties"]["LifecyclePolicy"]["LifecyclePolicyText"]
        assert [rule["rulePriority"] for rule in json.loads(text)["rules"]] == [1, 2][:count]


def test_the_pattern_of_a_parameter_refuses_what_a_name_or_a_trust_must_not_hold() -> None:
    """CloudFormation applies the patterns; moto does not. `$` of Python also matches before a line break."""
    wrong = {
        "Project": ("Lab", "lab_1", "-lab", "a" * 26, ""),
        "Repository": ("Lab", "lab/", "a", "a" * 201, "lab--"),
        "ComputeType": ("BUILD_GENERAL1_SMALL", "large"),
        "Subjects": ("repo:me/lab:*", "repo:me/*:environment:training", "me/lab"),
        "Cluster": ("two words",),
        "WebhookRepository": ("me",),
        "BaseRepositories": ("nvcr.io/nvidia/pytorch",),
        "KmsKey": ("alias/lab",),
        "Subnets": ("subnet-1,,subnet-2",),
    }
    right = {
        "Project": ("lab", "a" * 25),
        "Repository": ("team/lab",),
        "Subjects": (SUBJECT, "repo:me@1/lab@2:ref:refs/heads/main", ""),
        "Cluster": ("gpus", ""),
        "WebhookRepository": ("me/lab", ""),
        "Subnets": ("subnet-0a1b2c3d,subnet-1a1b2c3d",),
    }
    for fits, table in ((False, wrong), (True, right)):
        for name, values in table.items():
            pattern = template()["Parameters"][name]["AllowedPattern"]
            for value in values:
                assert bool(re.search(pattern, value, re.ASCII)) is fits, (name, value)


def test_the_longest_project_fits_the_name_of_a_bucket_in_the_region_with_the_longest_name() -> None:
    found = ResolvedTemplate({"Project": "a" * 25}).name_of("ArtifactBucket")
    assert len(found.replace(REGION, "ap-southeast-2")) == 63
