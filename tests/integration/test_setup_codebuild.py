"""The set-up of AWS on moto's server: a stack is created, changed and deleted through CloudFormation's API.

moto makes no bucket policy, OIDC provider, CodeBuild project and access entry in a stack, answers a list
parameter as Python prints it, shows no outputs, and has no imports, drift and roll-backs.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.request import Request, urlopen

import boto3
import pytest
import yaml
from tests.integration.conftest import Endpoint
from tests.unit.infrastructure.template_reader import ResolvedTemplate

from trainyard.command import handler
from trainyard.commands import image_build, init_aws
from trainyard.errors import ServiceError
from trainyard.gateways import cloudformation
from trainyard.gateways.cloudformation import CloudFormationStack

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "infrastructure" / "setup-codebuild.sh"
REGION, ACCOUNT = "us-west-2", "123456789012"
GITHUB = ("--github", "me/lab")
BUCKET = f"trainyard-source-{ACCOUNT}-{REGION}"


def workflow(name: str) -> str:
    return (ROOT / ".github" / "workflows" / name).read_text()


IMAGE_WORKFLOW = workflow("image.yml")
MADE = {"ImageRepository", "CacheRepository", "SourceBucket", "ArtifactBucket", "LogGroup", "BuildRole"}
"""The resources that moto makes."""


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
    """Call the script in this process, which is quicker; return resource -> its standing."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert init_aws.main([*flags, "--json"]) == code, said.getvalue()
    return {each["resource"]: each["standing"] for each in json.loads(said.getvalue())["resources"]}


def test_the_shell_script_makes_everything_from_any_folder(aws: str) -> None:
    done = subprocess.run([str(SCRIPT), *GITHUB], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("made ")]
    assert len(rows) == len(resources()) and all(len(row) <= 90 for row in rows)
    assert "role/trainyard-github" in done.stdout and "CREATE_COMPLETE" in done.stderr
    assert set_up(*GITHUB) == {}


def resources() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(init_aws.TEMPLATE.read_text())["Resources"]
    return found


def test_the_end_says_what_github_is_told_and_how_an_image_is_built(
    aws: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("--project-name", "lab", "--ecr-repository", "team/lab")
    assert init_aws.main([*GITHUB, *names]) == 0
    said = capsys.readouterr().out
    told = dict(re.findall(r"^gh variable set (\S+) --repo me/lab --body (\S+)$", said, re.M))
    assert told == {
        "TRAINYARD_IMAGE_PROJECT": "lab",
        "TRAINYARD_IMAGE_REPOSITORY": "team/lab",
        "TRAINYARD_IMAGE_ROLE": f"arn:aws:iam::{ACCOUNT}:role/lab-github",
        "TRAINYARD_AWS_REGION": REGION,
    }
    assert all(f"vars.{name} " in IMAGE_WORKFLOW for name in told)
    (line,) = re.findall(r"^\S*trainyard image build (.*)$", said, re.M)
    build = image_build.parse_args(line.split())
    assert (build.image, build.project, build.region) == ("team/lab", "lab", REGION)
    assert Path(ROOT, *build.dockerfile).is_file()


def test_with_a_cluster_github_is_given_its_name_and_role_too() -> None:
    args, role = init_aws.parse_args([*GITHUB, "--cluster", "gpus"]), "arn:aws:iam::1:role/r"
    values = {"Repository": "lab", **init_aws.given_parameters(args)}
    lines = init_aws.next_commands(args, values, role=role, region=REGION)
    said = "\n".join(lines)
    given = dict(re.findall(r"^gh variable set (TRAINYARD_EKS\S+) --repo me/lab --body (\S+)$", said, re.M))
    assert given == {"TRAINYARD_EKS_CLUSTER": "gpus", "TRAINYARD_EKS_ROLE": role}
    assert all(f"vars.{name} " in workflow("deploy_eks.yml") for name in given)


@pytest.mark.parametrize("flags", [(), ("--cluster", "gpus")])
def test_the_role_trusts_the_environments_of_the_workflows_that_assume_it(flags: tuple[str, ...]) -> None:
    workflows = ["image.yml", *(["deploy_eks.yml"] if flags else [])]
    jobs = [job for name in workflows for job in yaml.safe_load(workflow(name))["jobs"].values()]
    assuming = [job for job in jobs if (job.get("permissions") or {}).get("id-token") == "write"]
    expected = {f"repo:me/lab:environment:{job['environment']['name']}" for job in assuming}
    given = init_aws.given_parameters(init_aws.parse_args([*GITHUB, *flags]))
    assert expected and set(given["Subjects"].split(",")) == expected
    named = init_aws.parse_args([*GITHUB, "--environment", "a", "--environment", "b"])
    subjects = init_aws.given_parameters(named)["Subjects"]
    assert [text[-1] for text in subjects.split(",")] == ["a", "b"]


def test_a_dry_run_makes_nothing_and_a_second_run_changes_nothing(aws: str) -> None:
    assert set(set_up(*GITHUB, "--dry-run", code=1).values()) == {"would make"}
    assert client("ecr", aws).describe_repositories()["repositories"] == []
    stacks = client("cloudformation", aws)
    assert stacks.describe_stacks()["Stacks"] == [], "the empty stack of the change set stays"
    assert set(set_up(*GITHUB).values()) == {"made"}
    before = stacks.describe_stacks(StackName="trainyard")["Stacks"][0]
    assert before["StackStatus"] == "CREATE_COMPLETE"
    assert set_up(*GITHUB) == set_up(*GITHUB, "--dry-run") == {}
    assert stacks.describe_stacks(StackName="trainyard")["Stacks"][0] == before
    assert stacks.list_change_sets(StackName="trainyard")["Summaries"][1:] == [], "a change set was left"


def test_names_and_limits_are_the_chosen_ones_and_stay(aws: str) -> None:
    lab = ("--project-name", "lab", *GITHUB)
    set_up(*lab, "--ecr-repository", "team/lab", "--log-days", "7")
    assert client("logs", aws).describe_log_groups()["logGroups"][0]["retentionInDays"] == 7
    names = {each["repositoryName"] for each in client("ecr", aws).describe_repositories()["repositories"]}
    assert names == {"team/lab", "team/lab-cache"}
    buckets = {each["Name"] for each in client("s3", aws).list_buckets()["Buckets"]}
    assert buckets == {f"lab-source-{ACCOUNT}-{REGION}", f"lab-artifacts-{ACCOUNT}-{REGION}"}
    assert set_up(*lab, "--dry-run") == {}
    set_up(*lab, "--compute-type", "BUILD_GENERAL1_XLARGE")
    stack = client("cloudformation", aws).describe_stacks(StackName="lab")["Stacks"][0]
    values = {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]}
    assert (values["LogDays"], values["Repository"]) == ("7", "team/lab")
    assert values["ComputeType"] == "BUILD_GENERAL1_XLARGE"
    trust = client("iam", aws).get_role(RoleName="lab-github")["Role"]["AssumeRolePolicyDocument"]
    assert "repo:me/lab:environment:images" in json.dumps(trust)


def test_a_project_has_as_many_repositories_as_it_names(aws: str) -> None:
    more = ("--more-repository", "megatron", "--more-repository", "verl")
    names = [f"trainyard/{name}{end}" for name in ("megatron", "verl") for end in ("", "-cache")]
    set_up(*GITHUB, *more)
    assert set_up(*GITHUB, "--dry-run") == {}, "they stay without the option"
    ecr = client("ecr", aws)
    held = {each["repositoryName"]: each for each in ecr.describe_repositories()["repositories"]}
    assert held.keys() == {"trainyard", "trainyard-cache", *names}
    for name, like in ((names[0], "trainyard"), (names[1], "trainyard-cache")):
        for key in ("imageTagMutability", "imageScanningConfiguration"):
            assert held[name][key] == held[like][key]
    role = ResolvedTemplate({}).statements("BuildRole")
    (push,) = [each for each in role if each["Sid"] == "PushImagesAndCache"]
    assert any(
        fnmatchcase(f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/{names[0]}", one) for one in push["Resource"]
    )


def test_a_stack_of_somebody_else_is_not_touched(aws: str, capsys: pytest.CaptureFixture[str]) -> None:
    stacks = client("cloudformation", aws)
    body = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    stacks.create_stack(StackName="trainyard", TemplateBody=body)
    for flags in ((), ("--delete",)):
        assert exit_code(*flags) == 2
        assert "belongs to something else" in capsys.readouterr().err
    assert stacks.describe_stacks()["Stacks"][0]["StackStatus"] == "CREATE_COMPLETE"


def test_resources_that_exist_are_imported_and_then_get_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    change: dict[str, Any] = {
        "LogicalResourceId": "SourceBucket",
        "ResourceType": "AWS::S3::Bucket",
        "Action": "Import",
    }
    drift = {
        "Target": {"Path": "/Properties/VersioningConfiguration", "BeforeValue": "off", "AfterValue": "on"}
    }
    plans = [change | {"PhysicalResourceId": BUCKET}, change | {"Action": "Modify", "Details": [drift]}]
    planned = [cloudformation.ChangeSet(each["Action"], "id", (each,)) for each in plans]
    news, executed = [], []

    def plan(_self: Any, _body: str, _values: Any, *, new: bool) -> Any:
        news.append(new)
        return planned[len(news) - 1]

    monkeypatch.setattr(CloudFormationStack, "plan", plan)
    monkeypatch.setattr(CloudFormationStack, "execute", lambda _self, it: executed.append(it.arn))
    stack = CloudFormationStack(cast("Any", None), "lab")
    (finding,) = init_aws.deploy(stack, None, "{}", {}, dry_run=False)
    assert (finding.standing, finding.name, executed, news) == (
        "imported",
        BUCKET,
        ["Import", "Modify"],
        [True, False],
    )
    row = init_aws.finding_of(plans[1], dry_run=True).row()
    assert row.startswith("would change") and row.endswith("VersioningConfiguration: off -> on")
    failed = {"StackStatus": "ROLLBACK_COMPLETE"}
    with pytest.raises(ServiceError, match="run this with --delete, and then again"):
        init_aws.deploy(stack, failed, "{}", {}, dry_run=False)


def test_deleting_keeps_what_holds_data(aws: str) -> None:
    set_up(*GITHUB)
    planned = set_up("--delete", "--dry-run", code=1)
    assert client("iam", aws).get_role(RoleName="trainyard-github")
    removed = set_up("--delete")
    assert {name: "removed" if each == "would remove" else each for name, each in planned.items()} == removed
    assert {name for name, each in removed.items() if each == "kept" and name in MADE} == {
        *("ImageRepository", "CacheRepository", "SourceBucket", "ArtifactBucket"),
    }
    assert removed["BuildRole"] == "removed"
    assert len(client("ecr", aws).describe_repositories()["repositories"]) == 2
    assert len(client("s3", aws).list_buckets()["Buckets"]) == 2
    assert client("iam", aws).list_roles()["Roles"] == []
    assert set_up("--delete") == {"": "not there"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--project-name", "Lab"), "--project-name"),
        (("--github", "me"), "OWNER/REPO"),
        (("--github", "me/lab", "--environment", "*"), "match more than one"),
        (("--delete", "--timeout-minutes", "1"), "--timeout-minutes"),
        (("--role-starts-builds", "no"), "--role-starts-builds"),
        (("--cluster", "gpus"), "--cluster needs --github"),
        (("--environment", "images"), "--environment needs --github"),
    ],
)
def test_wrong_flags_are_named_and_nothing_is_made(aws: str, flags: tuple[str, ...], said: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert exit_code(*flags) == 2
    assert said in errors.getvalue() and "Traceback" not in errors.getvalue()
    assert client("ecr", aws).describe_repositories()["repositories"] == []


def exit_code(*flags: str) -> int:
    try:
        return handler.exit_code_of(partial(init_aws.main, list(flags)))
    except SystemExit as ended:
        return int(ended.code or 0)


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert exit_code() == 4
    assert "could not be reached" in errors.getvalue()


def test_a_stack_that_was_made_by_hand_is_taken_over(aws: str) -> None:
    """It was made as the command at the top of the template makes it."""
    subject = {"ParameterKey": "Subjects", "ParameterValue": "repo:me/lab:environment:training"}
    client("cloudformation", aws).create_stack(
        StackName="trainyard",
        TemplateBody=init_aws.TEMPLATE.read_text(),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[subject],
    )
    found = set_up("--dry-run", code=1)
    assert set(found.values()) == {"would change"}, "moto compares names as they are written"


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
    assert outputs["source_bucket"]["value"] == BUCKET
    assert set(set_up("--dry-run", code=1).values()) == {"would change"}
