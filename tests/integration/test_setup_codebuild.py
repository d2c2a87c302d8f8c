"""The set-up of AWS on moto's server: the script makes, mends and removes; the other doors make the same."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError
from tests.integration.conftest import Endpoint

from scripts import build_image, setup_codebuild
from trainyard.command import handler

MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "x", "size": 1, "digest": "sha256:" + "a" * 64},
        "layers": [],
    }
)
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "infrastructure" / "setup-codebuild.sh"
REGION, ACCOUNT = "us-west-2", "123456789012"
GITHUB = ("--github", "me/lab")
BUCKET = f"trainyard-source-{ACCOUNT}-{REGION}"


def workflow(name: str) -> str:
    return (ROOT / ".github" / "workflows" / name).read_text()


IMAGE_WORKFLOW = workflow("image.yml")
KINDS = 11
"""Resources of a set-up with GitHub and without a cluster."""


@pytest.fixture
def aws(moto: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    urlopen(Request(f"{moto.url}/moto-api/reset", method="POST"), timeout=10).close()
    return moto.url


def client(service: str, url: str) -> Any:
    return boto3.client(service, region_name=REGION, endpoint_url=url)


def set_up(*flags: str, code: int = 0) -> dict[str, str]:
    """Resource -> its standing, as the script says it; in this process, which is quicker."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert setup_codebuild.main([*flags, "--json"]) == code, said.getvalue()
    return {each["resource"]: each["standing"] for each in json.loads(said.getvalue())["resources"]}


def test_the_shell_script_makes_everything_from_any_folder(aws: str) -> None:
    done = subprocess.run([str(SCRIPT), *GITHUB], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("made ")]
    assert len(rows) == KINDS and all(len(row) <= 80 for row in rows)
    assert "role/trainyard-github" in done.stdout
    assert set(set_up(*GITHUB).values()) == {"ok"}


def test_the_end_says_what_github_is_told_and_how_an_image_is_built(
    aws: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("--project-name", "lab", "--ecr-repository", "team/lab")
    assert setup_codebuild.main([*GITHUB, *names]) == 0
    said = capsys.readouterr().out
    told = dict(re.findall(r"^gh variable set (\S+) --repo me/lab --body (\S+)$", said, re.M))
    assert told == {
        "TRAINYARD_IMAGE_PROJECT": "lab",
        "TRAINYARD_IMAGE_REPOSITORY": "team/lab",
        "TRAINYARD_IMAGE_ROLE": f"arn:aws:iam::{ACCOUNT}:role/lab-github",
        "TRAINYARD_AWS_REGION": REGION,
    }
    assert all(f"vars.{name} " in IMAGE_WORKFLOW for name in told)
    (line,) = re.findall(r"^scripts/build_image\.py (.*)$", said, re.M)
    build = build_image.parse_args(line.split())
    assert (build.image, build.project, build.region) == ("team/lab", "lab", REGION)
    assert Path(ROOT, *build.dockerfile).is_file()


@pytest.mark.parametrize("flags", [(), ("--cluster", "gpus")])
def test_the_role_trusts_the_environments_of_the_workflows_that_assume_it(flags: tuple[str, ...]) -> None:
    workflows = ["image.yml", *(["deploy_eks.yml"] if flags else [])]
    jobs = [job for name in workflows for job in yaml.safe_load(workflow(name))["jobs"].values()]
    assuming = [job for job in jobs if "role-to-assume" in str(job)]
    expected = {f"repo:me/lab:environment:{job['environment']['name']}" for job in assuming}
    chosen = setup_codebuild.chosen_by(setup_codebuild.parse_args([*GITHUB, *flags]))
    assert expected and set(chosen["Subjects"]) == expected
    named = setup_codebuild.parse_args([*GITHUB, "--environment", "a", "--environment", "b"])
    assert [text[-1] for text in setup_codebuild.chosen_by(named)["Subjects"]] == ["a", "b"]


def test_what_is_made_agrees_and_a_second_run_touches_nothing(aws: str) -> None:
    assert set(set_up(*GITHUB, "--dry-run", code=1).values()) == {"would make"}
    assert client("ecr", aws).describe_repositories()["repositories"] == [], "a dry run made something"
    made = set_up(*GITHUB)
    assert len(made) == KINDS and set(made.values()) == {"made"}
    before = client("codebuild", aws).batch_get_projects(names=["trainyard"])["projects"][0]
    assert set(set_up(*GITHUB).values()) == {"ok"}
    assert client("codebuild", aws).batch_get_projects(names=["trainyard"])["projects"][0] == before
    assert before["environment"]["privilegedMode"] is True
    assert (before["timeoutInMinutes"], before["cache"]["type"]) == (120, "LOCAL")


def test_what_somebody_changed_is_found_and_mended(aws: str) -> None:
    set_up(*GITHUB)
    client("ecr", aws).put_image_tag_mutability(repositoryName="trainyard", imageTagMutability="MUTABLE")
    client("ecr", aws).put_image_scanning_configuration(
        repositoryName="trainyard", imageScanningConfiguration={"scanOnPush": False}
    )
    s3 = client("s3", aws)
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    s3.delete_public_access_block(Bucket=BUCKET)
    theirs = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "x/"}, "Expiration": {"Days": 3}}
    s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [theirs]})
    s3.delete_bucket_policy(Bucket=BUCKET)
    client("logs", aws).delete_retention_policy(logGroupName="/aws/codebuild/trainyard")
    iam = client("iam", aws)
    wide = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
    }
    iam.put_role_policy(RoleName="trainyard-build", PolicyName="build", PolicyDocument=json.dumps(wide))
    changed = {"ImageRepository", "SourceBucket", "LogGroup", "BuildRole"}
    found = set_up(*GITHUB, "--dry-run", code=1)
    assert {name for name, standing in found.items() if standing == "would change"} == changed
    assert found["SourceBucketPolicy"] == "would make"
    found = set_up(*GITHUB)
    assert {name for name, standing in found.items() if standing == "changed"} == changed
    assert set(set_up(*GITHUB).values()) == {"ok"}
    rules = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert "theirs" in {rule["ID"] for rule in rules}, "a rule of somebody else is gone"
    policy = iam.get_role_policy(RoleName="trainyard-build", PolicyName="build")["PolicyDocument"]
    assert "s3:*" not in json.dumps(policy)


def test_deleting_keeps_what_holds_data(aws: str) -> None:
    set_up(*GITHUB)
    s3 = client("s3", aws)
    with pytest.raises(ClientError, match="Forbidden"):  # moto's server speaks HTTP, and the policy wants TLS
        s3.put_object(Bucket=BUCKET, Key="trainyard/source/a.zip", Body=b"a")
    s3.delete_bucket_policy(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="trainyard/source/a.zip", Body=b"a")
    set_up(*GITHUB)
    client("ecr", aws).put_image(repositoryName="trainyard", imageManifest=MANIFEST, imageTag="v1")
    looked = set_up("--delete", "--dry-run", code=1)
    assert client("iam", aws).get_role(RoleName="trainyard-github")
    removed = set_up("--delete")
    assert looked == {name: "would remove" if each == "removed" else each for name, each in removed.items()}
    kept = {name for name, standing in removed.items() if standing == "kept"}
    assert kept == {"SourceBucket", "SourceBucketPolicy", "ImageRepository", "GitHubProvider"}
    assert client("codebuild", aws).list_projects()["projects"] == []
    assert client("s3", aws).get_bucket_policy(Bucket=BUCKET), "a bucket that stays keeps its policy"
    again = set_up("--delete")
    assert again["Builds"] == again["GitHubRole"] == "not there"
    assert again["SourceBucket"] == "kept"


def test_names_and_limits_are_the_chosen_ones(aws: str) -> None:
    set_up(
        "--project-name", "lab", "--ecr-repository", "team/lab", "--timeout-minutes", "45", "--log-days", "7"
    )
    project = client("codebuild", aws).batch_get_projects(names=["lab"])["projects"][0]
    assert project["timeoutInMinutes"] == 45
    assert {"name": "ECR_REPOSITORY", "value": "team/lab", "type": "PLAINTEXT"} in project["environment"][
        "environmentVariables"
    ]
    assert client("logs", aws).describe_log_groups()["logGroups"][0]["retentionInDays"] == 7


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--project-name", "Lab"), "--project-name"),
        (("--ecr-repository", "Lab"), "--ecr-repository"),
        (("--github", "me"), "OWNER/REPO"),
        (("--github", "me/lab", "--environment", "*"), "match more than one"),
        (("--log-days", "8"), "--log-days"),
        (("--region", "moon"), "--region"),
        (("--delete", "--timeout-minutes", "1"), "--timeout-minutes"),
    ],
)
def test_wrong_flags_are_named_and_nothing_is_made(aws: str, flags: tuple[str, ...], said: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert handler.exit_code_of(lambda: setup_codebuild.main(list(flags))) == 2
    assert said in errors.getvalue() and "Traceback" not in errors.getvalue()
    assert client("ecr", aws).describe_repositories()["repositories"] == []


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert handler.exit_code_of(lambda: setup_codebuild.main([])) == 4
    assert "could not be reached" in errors.getvalue()


def test_the_template_makes_the_same_names(aws: str) -> None:
    """moto's CloudFormation knows five of these types and few settings; see tests/unit/infrastructure."""
    body = (ROOT / "infrastructure" / "cloudformation.yaml").read_text()
    subject = {"ParameterKey": "Subjects", "ParameterValue": "repo:me/lab:environment:training"}
    client("cloudformation", aws).create_stack(
        StackName="images", TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"], Parameters=[subject]
    )
    names = {each["repositoryName"] for each in client("ecr", aws).describe_repositories()["repositories"]}
    assert names == {"trainyard", "trainyard-cache"}
    assert {each["Name"] for each in client("s3", aws).list_buckets()["Buckets"]} == {
        BUCKET,
        BUCKET.replace("source", "artifacts"),
    }
    roles = {each["RoleName"]: each for each in client("iam", aws).list_roles()["Roles"]}
    assert set(roles) == {"trainyard-build", "trainyard-github"}
    trust = json.dumps(roles["trainyard-github"]["AssumeRolePolicyDocument"])
    assert "repo:me/lab:environment:training" in trust
    groups = client("logs", aws).describe_log_groups()["logGroups"]
    assert [(each["logGroupName"], each["retentionInDays"]) for each in groups] == [
        ("/aws/codebuild/trainyard", 30)
    ]


PLUGINS = os.environ.get("TRAINYARD_TERRAFORM_PLUGINS", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not PLUGINS or not shutil.which("terraform"),
    reason="no terraform, or TRAINYARD_TERRAFORM_PLUGINS names no mirror of its providers",
)
def test_what_terraform_makes_agrees_with_the_list(aws: str, tmp_path: Path) -> None:
    module = tmp_path / "module"
    shutil.copytree(ROOT / "infrastructure" / "terraform", module)
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
    assert set(set_up(*GITHUB, "--dry-run").values()) == {"ok"}
