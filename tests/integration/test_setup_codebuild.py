"""The set-up of AWS on moto's server: a stack is created, changed and deleted through CloudFormation's API.

moto makes no bucket policy, OIDC provider, CodeBuild project and access entry in a stack, shows no outputs,
and has no drift and roll-backs; tests/unit/gateways/test_cloudformation.py scripts those.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
import yaml
from tests.integration.conftest import Endpoint

from trainyard.command import handler
from trainyard.commands import image_build, init_aws
from trainyard.gateways import cloudformation
from trainyard.github.variables import ENVIRONMENTS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "infrastructure" / "setup-codebuild.sh"
REGION, ACCOUNT = "us-west-2", "123456789012"
GITHUB = ("--github", "me/lab")


@pytest.fixture
def aws(moto: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setattr(cloudformation, "_PAUSE_SECONDS", 0.05)
    urlopen(Request(f"{moto.url}/moto-api/reset", method="POST"), timeout=10).close()
    return moto.url


def client(service: str, url: str) -> Any:
    return boto3.client(service, region_name=REGION, endpoint_url=url)


def set_up(*flags: str, code: int = 0) -> dict[str, str]:
    """Call the script in this process, which is quicker; return resource -> its action."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert init_aws.main([*flags, "--json"]) == code, printed.getvalue()
    return {each["resource"]: each["action"] for each in json.loads(printed.getvalue())["resources"]}


def test_the_stack_is_made_and_changed_and_keeps_the_values_it_has(aws: str) -> None:
    lab = ("--project-name", "lab", *GITHUB)
    stacks = client("cloudformation", aws)
    assert set(set_up(*lab, "--dry-run", code=1).values()) == {"Add"}
    assert stacks.describe_stacks()["Stacks"] == [], "the empty stack of the change set stays"
    made = set_up(*lab, "--ecr-repository", "team/lab", "--log-days", "7")
    assert set(made.values()) == {"Add"} and made.keys() >= {"Builds", "GitHubRole", "GitHubProvider"}
    assert client("logs", aws).describe_log_groups()["logGroups"][0]["retentionInDays"] == 7
    buckets = {each["Name"] for each in client("s3", aws).list_buckets()["Buckets"]}
    assert buckets == {f"lab-{kind}-{ACCOUNT}-{REGION}" for kind in ("source", "artifacts")}
    trust = client("iam", aws).get_role(RoleName="lab-github")["Role"]["AssumeRolePolicyDocument"]
    assert "repo:me/lab:environment:images" in json.dumps(trust)
    assert set_up(*lab) == set_up(*lab, "--dry-run") == {}, "what agrees is not changed"
    set_up(*lab, "--compute-type", "BUILD_GENERAL1_XLARGE")
    stack = stacks.describe_stacks(StackName="lab")["Stacks"][0]
    values = {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]}
    kept = (values["LogDays"], values["Repository"], values["ComputeType"])
    assert kept == ("7", "team/lab", "BUILD_GENERAL1_XLARGE"), "an option that is not given keeps its value"


def test_the_shell_script_ends_with_what_github_needs_and_how_an_image_is_built(aws: str) -> None:
    """Names of variables and flags are those that the workflows and the build read."""
    line = [
        str(SCRIPT),
        *GITHUB,
        "--project-name",
        "lab",
        "--ecr-repository",
        "team/lab",
        "--cluster",
        "gpus",
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    assert re.search("^Add .*SourceBucket", done.stdout, re.M)
    role = f"arn:aws:iam::{ACCOUNT}:role/lab-github"
    given = dict(re.findall(r"^gh variable set (\S+) --repo me/lab --body (\S+)$", done.stdout, re.M))
    assert given == {
        "TRAINYARD_IMAGE_PROJECT": "lab",
        "TRAINYARD_IMAGE_REPOSITORY": "team/lab",
        "TRAINYARD_IMAGE_ROLE": role,
        "TRAINYARD_AWS_REGION": REGION,
        "TRAINYARD_EKS_CLUSTER": "gpus",
        "TRAINYARD_EKS_ROLE": role,
    }
    read = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    assert all(f"vars.{name}" in read for name in given)
    (words,) = re.findall(r"^\S*trainyard image build (.*)$", done.stdout, re.M)
    build = image_build.parse_args(words.split())
    assert (build.image, build.project, build.region) == ("team/lab", "lab", REGION)
    assert Path(ROOT, *build.dockerfile).is_file()


def test_the_role_trusts_the_environments_of_the_jobs_that_assume_it() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "image.yml").read_text())["jobs"].values()
    assuming = [job for job in jobs if (job.get("permissions") or {}).get("id-token") == "write"]
    images = {str(job["environment"]["name"]) for job in assuming}
    for flags, environments in (((), images), (("--cluster", "gpus"), images | {"eks"})):
        given = init_aws.given_parameters(init_aws.parse_args([*GITHUB, *flags]))
        found = {text.removeprefix("repo:me/lab:environment:") for text in given["Subjects"].split(",")}
        assert found == environments and environments <= set(ENVIRONMENTS)


def test_the_project_that_ignores_overrides_gives_github_no_role_to_start_builds() -> None:
    args = init_aws.parse_args([*GITHUB, "--role-starts-builds", "false", "--webhook-repository", "me/lab"])
    values = {"Repository": "lab", "Cluster": "", **init_aws.given_parameters(args)}
    lines = init_aws.next_commands(args, values, role="arn:aws:iam::1:role/r", region=REGION)
    assert "TRAINYARD_IMAGE_ROLE" not in "".join(lines), "image.yml cannot start builds either"


def test_a_stack_of_somebody_else_is_refused_and_one_made_by_hand_is_taken_over(aws: str) -> None:
    stacks = client("cloudformation", aws)
    body = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    stacks.create_stack(StackName="trainyard", TemplateBody=body)
    assert "belongs to something else" in refusal()
    assert stacks.describe_stacks()["Stacks"][0]["StackStatus"] == "CREATE_COMPLETE"
    stacks.create_stack(
        StackName="lab",
        TemplateBody=init_aws.TEMPLATE.read_text(),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": "Project", "ParameterValue": "lab"}],
    )
    assert set_up("--project-name", "lab", "--dry-run") == {}


def test_wrong_flags_are_named_and_nothing_is_made(aws: str) -> None:
    for flags, named in (
        (("--github", "me"), "OWNER/REPO"),
        (("--github", "me/lab", "--environment", "*"), "match more than one"),
        (("--role-starts-builds", "no"), "--role-starts-builds"),
        (("--log-days", "8"), "--log-days"),
        (("--cluster", "gpus"), "--cluster needs --github"),
    ):
        assert named in refusal(*flags)
    assert client("ecr", aws).describe_repositories()["repositories"] == []


def refusal(*flags: str, code: int = 2) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            found = handler.exit_code_of(partial(init_aws.main, list(flags)))
        except SystemExit as ended:
            found = int(ended.code or 0)
    assert found == code, errors.getvalue()
    return errors.getvalue()


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ENDPOINT_URL", "http://127.0.0.1:1"), ("REGION", REGION), ("MAX_ATTEMPTS", "1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    assert "could not be reached" in refusal(code=4)


PLUGINS = os.environ.get("TRAINYARD_TERRAFORM_PLUGINS", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not PLUGINS or not shutil.which("terraform"),
    reason="no terraform, or TRAINYARD_TERRAFORM_PLUGINS names no mirror of its providers",
)
def test_the_module_makes_the_stack_that_the_script_finds(aws: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "infrastructure", tmp_path / "infrastructure")
    module = tmp_path / "infrastructure" / "terraform"
    (module / "provider.tf").write_text(
        f'provider "aws" {{\n  region = "{REGION}"\n  skip_credentials_validation = true\n'
        "  skip_metadata_api_check = true\n  s3_use_path_style = true\n}\n"
    )
    settings = tmp_path / "terraformrc"
    settings.write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path = "{PLUGINS}"\n  }}\n}}\n'
    )
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": str(settings), "CHECKPOINT_DISABLE": "1"}

    def terraform(*words: str) -> str:
        done = subprocess.run(
            ["terraform", *words], cwd=module, env=environment, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    terraform("fmt", "-check", "main.tf")
    terraform("init", "-no-color")
    terraform("validate", "-no-color")
    subject = 'subject=["repo:me/lab:environment:training"]'
    terraform("apply", "-auto-approve", "-no-color", "-var", subject)
    outputs = json.loads(terraform("output", "-json"))
    assert outputs["github_role_arn"]["value"] == f"arn:aws:iam::{ACCOUNT}:role/trainyard-github"
    assert outputs["source_bucket"]["value"] == f"trainyard-source-{ACCOUNT}-{REGION}"
    assert set_up("--dry-run") == {}
