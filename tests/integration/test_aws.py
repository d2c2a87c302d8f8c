"""AWS on moto: clusters of EKS and HyperPod, images of ECR, and the set-up as a stack of CloudFormation."""

import base64
import contextlib
import hashlib
import hmac
import io
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import boto3
import pytest
import yaml
from tests import warm_start
from tests.answering import answering
from tests.integration.conftest import Endpoint

from trainyard.command import handler
from trainyard.commands import image_build, init_aws
from trainyard.errors import ConfigError, CredentialsRefusedError, PermissionRefusedError, ServiceTroubleError
from trainyard.gateways import cloudformation
from trainyard.gateways.images.ecr import find_digest
from trainyard.gateways.kubernetes.cluster_connection import access_by_name
from trainyard.gateways.kubernetes.eks import HyperPod, describe_cluster, eks_token, list_clusters
from trainyard.github.variables import ENVIRONMENTS

MANAGE_CLUSTER = Path(__file__).resolve().parents[2] / "scripts" / "manage_cluster.py"
REGION = "us-west-2"
ACCOUNT = "123456789012"


@pytest.fixture
def aws(moto: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setattr(cloudformation, "_PAUSE_SECONDS", 0.05)
    urlopen(Request(f"{moto.url}/moto-api/reset", method="POST"), timeout=10).close()
    return moto.url


def client(name: str, url: str) -> Any:
    return boto3.client(name, region_name=REGION, endpoint_url=url)


def make_eks(url: str, name: str) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/eks"
    client("eks", url).create_cluster(
        name=name, roleArn=role, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]}, version="1.34"
    )


def make_hyperpod(url: str) -> str:
    """Create a cluster without an orchestrator; return its new name, as moto's reset keeps clusters."""
    name = f"pod-{uuid.uuid4().hex[:8]}"
    group = {"InstanceGroupName": "workers", "InstanceType": "ml.p5.48xlarge", "InstanceCount": 2}
    group["LifeCycleConfig"] = {"SourceS3Uri": "s3://sagemaker-life", "OnCreate": "on_create.sh"}
    group |= {"ThreadsPerCore": 1, "ExecutionRole": f"arn:aws:iam::{ACCOUNT}:role/hyperpod"}
    client("sagemaker", url).create_cluster(ClusterName=name, InstanceGroups=[group])
    return name


def test_every_cluster_of_the_region_is_listed(aws: str) -> None:
    for number in range(3):
        make_eks(aws, f"eks-{number}")
    found = list_clusters(REGION)
    assert [cluster.name for cluster in found] == ["eks-0", "eks-1", "eks-2"]
    assert {cluster.region for cluster in found} == {REGION}
    assert {cluster.version for cluster in found} == {"1.34"}
    assert list_clusters("eu-west-1") == ()


def test_an_unknown_cluster_is_none(aws: str) -> None:
    assert describe_cluster("no-such", REGION) is None
    with pytest.raises(ConfigError, match="no-such"):
        access_by_name("no-such", REGION)


def test_the_list_shows_eks_and_hyperpod_and_its_nodes_are_known(aws: str, tmp_path: Path) -> None:
    make_eks(aws, "plain")
    name = make_hyperpod(aws)
    environment = {**os.environ, "HOME": str(tmp_path)}
    line = [sys.executable, str(MANAGE_CLUSTER), "list", "--region", REGION]
    done = warm_start.run([*line, "--json"], timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    eks, *pods = json.loads(done.stdout)["clusters"]
    pod = next(found for found in pods if found["name"] == name)
    assert (eks["name"], eks["type"], eks["version"]) == ("plain", "eks", "1.34")
    assert (pod["type"], pod["nodes"]) == ("hyperpod", 2)
    assert pod["instance_groups"][0]["instance_type"] == "ml.p5.48xlarge"
    text = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment, check=True)
    assert "workers" in text.stdout
    nodes = HyperPod(REGION).nodes(name)
    assert [node["InstanceGroupName"] for node in nodes] == ["workers"] * 2


@pytest.fixture
def sagemaker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that describes a HyperPod cluster on EKS as SageMaker does; moto does not."""
    arn = f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/plain"
    body = {"ClusterName": "pod", "ClusterStatus": "InService", "Orchestrator": {"Eks": {"ClusterArn": arn}}}
    with answering(lambda *_: (200, body)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", url)
        yield


@pytest.mark.parametrize("name", ["plain", "pod"])
def test_a_cluster_is_reached_by_its_name_or_that_of_its_hyperpod(
    name: str, aws: str, sagemaker: None
) -> None:
    make_eks(aws, "plain")
    access = access_by_name(name, REGION)
    assert access.server.startswith("https://")
    assert access.context == f"plain in {REGION}"
    assert access.credentials.token is not None
    assert access.credentials.token().startswith("k8s-aws-v1.")


def test_a_token_is_a_signed_question_who_we_are(aws: str) -> None:
    token = eks_token("plain", region=REGION)
    url = base64.urlsafe_b64decode(token.removeprefix("k8s-aws-v1.") + "==").decode()
    query = parse_qs(urlsplit(url).query)
    assert query["Action"] == ["GetCallerIdentity"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert query["X-Amz-Expires"] == ["60"]
    assert f"/{REGION}/sts/aws4_request" in query["X-Amz-Credential"][0]
    assert "not-a-secret" not in url
    assert query["X-Amz-Signature"] == [signature(url, "plain")]


def signature(url: str, cluster: str) -> str:
    """The signature that STS computes for a signed address (AWS Signature Version 4), by hand."""
    parts = urlsplit(url)
    pairs = sorted(pair for pair in parts.query.split("&") if not pair.startswith("X-Amz-Signature="))
    query = parse_qs(parts.query)
    date, scope = query["X-Amz-Date"][0], query["X-Amz-Credential"][0].split("/", 1)[1]
    headers = f"host:{parts.netloc}\nx-k8s-aws-id:{cluster}\n"
    empty = hashlib.sha256(b"").hexdigest()
    canonical = "\n".join(["GET", "/", "&".join(pairs), headers, "host;x-k8s-aws-id", empty])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4not-a-secret"
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def test_without_credentials_it_is_said(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for ask in (lambda: eks_token("plain", region=REGION), lambda: list_clusters(REGION)):
        with pytest.raises((PermissionRefusedError, CredentialsRefusedError), match="no AWS credentials"):
            ask()


def test_an_unreachable_aws_is_an_outside_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ServiceTroubleError, match="could not be reached"):
        list_clusters(REGION)


def test_an_image_is_found_by_tag_and_digest(aws: str) -> None:
    ecr = client("ecr", aws)
    ecr.create_repository(repositoryName="team/train")
    kind = "application/vnd.oci.image.manifest.v1+json"
    of_config = "application/vnd.oci.image.config.v1+json"
    config = {"mediaType": of_config, "digest": "sha256:" + "0" * 64, "size": 1}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": []})
    put = ecr.put_image(repositoryName="team/train", imageManifest=manifest, imageTag="v1")
    digest = put["image"]["imageId"]["imageDigest"]
    place: Any = {"account": ACCOUNT, "region": REGION, "repository": "team/train"}
    assert find_digest(**place, tag="v1", digest="") == digest
    assert find_digest(**place, tag="", digest=digest) == digest
    assert find_digest(**place, tag="v2", digest="") is None
    assert find_digest(account=ACCOUNT, region=REGION, repository="no/such", tag="v1", digest="") is None


ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "infrastructure" / "setup-codebuild.sh"
GITHUB = ("--github", "me/lab")


# moto makes no bucket policy, OIDC provider, CodeBuild project and access entry in a stack, shows no outputs,
# and has no drift and roll-backs; tests/unit/gateways/test_cloudformation.py scripts those.
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
    names = ("--project-name", "lab", "--ecr-repository", "team/lab", "--cluster", "gpus")
    line = [str(SCRIPT), *GITHUB, *names]
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
    given: dict[str, Any] = {"Parameters": [{"ParameterKey": "Project", "ParameterValue": "lab"}]}
    given |= {"TemplateBody": init_aws.TEMPLATE.read_text(), "Capabilities": ["CAPABILITY_NAMED_IAM"]}
    stacks.create_stack(StackName="lab", **given)
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
