"""The two roles of image builds on a server that enforces policies: enough, and no more."""

import json
import urllib.request
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from tests.integration.conftest import Endpoint
from tests.unit.infrastructure.template_reader import ACCOUNT, REGION, SUBJECT, ResolvedTemplate

SOURCE, KEPT = f"trainyard-source-{ACCOUNT}-{REGION}", f"trainyard-artifacts-{ACCOUNT}-{REGION}"
LOGS, REPOSITORY = "/aws/codebuild/trainyard", "trainyard"
LAYER = b"a layer"
DENIED = ("AccessDenied", "AccessDeniedException", "Forbidden", "403")
Call = tuple[str, str, dict[str, Any]]
CALLS: dict[str, dict[str, Call]] = {
    "GitHubRole": {
        "codebuild:StartBuild": ("codebuild", "start_build", {"projectName": "trainyard"}),
        "codebuild:BatchGetBuilds": ("codebuild", "batch_get_builds", {"ids": ["BUILD"]}),
        "codebuild:StopBuild": ("codebuild", "stop_build", {"id": "BUILD"}),
        "s3:PutObject": (
            "s3",
            "put_object",
            {"Bucket": SOURCE, "Key": "trainyard/source/b.zip", "Body": b"b"},
        ),
        "s3:GetObject": ("s3", "head_object", {"Bucket": SOURCE, "Key": "trainyard/source/a.zip"}),
        "s3:ListBucket": ("s3", "list_objects_v2", {"Bucket": SOURCE}),
        "logs:GetLogEvents": ("logs", "get_log_events", {"logGroupName": LOGS, "logStreamName": "build"}),
        "ecr:DescribeImages": ("ecr", "describe_images", {"repositoryName": REPOSITORY}),
        "ecr:DescribeRepositories": (
            "ecr",
            "describe_repositories",
            {"repositoryNames": [f"{REPOSITORY}-cache"]},
        ),
        "eks:DescribeCluster": ("eks", "describe_cluster", {"name": "gpus"}),
    },
    "BuildRole": {
        "logs:CreateLogStream": (
            "logs",
            "create_log_stream",
            {"logGroupName": LOGS, "logStreamName": "FRESH"},
        ),
        "logs:PutLogEvents": (
            "logs",
            "put_log_events",
            {"logGroupName": LOGS, "logStreamName": "build", "logEvents": [{"timestamp": 1, "message": "x"}]},
        ),
        "s3:GetObject": ("s3", "get_object", {"Bucket": SOURCE, "Key": "trainyard/source/a.zip"}),
        "s3:GetObjectVersion": (
            "s3",
            "get_object",
            {"Bucket": SOURCE, "Key": "trainyard/source/a.zip", "VersionId": "VERSION"},
        ),
        "s3:GetBucketLocation": ("s3", "get_bucket_location", {"Bucket": SOURCE}),
        "s3:GetBucketAcl": ("s3", "get_bucket_acl", {"Bucket": KEPT}),
        "s3:PutObject": ("s3", "put_object", {"Bucket": KEPT, "Key": "builds/1/records.zip", "Body": b"b"}),
        "secretsmanager:GetSecretValue": (
            "secretsmanager",
            "get_secret_value",
            {"SecretId": "trainyard/pip"},
        ),
        "ecr:GetAuthorizationToken": ("ecr", "get_authorization_token", {}),
        "ecr:BatchGetImage": (
            "ecr",
            "batch_get_image",
            {"repositoryName": REPOSITORY, "imageIds": [{"imageTag": "v1"}]},
        ),
        "ecr:BatchCheckLayerAvailability": (
            "ecr",
            "batch_check_layer_availability",
            {"repositoryName": f"{REPOSITORY}-cache", "layerDigests": ["sha256:" + "b" * 64]},
        ),
        "ecr:GetDownloadUrlForLayer": (
            "ecr",
            "get_download_url_for_layer",
            {"repositoryName": REPOSITORY, "layerDigest": "LAYER"},
        ),
        "ecr:InitiateLayerUpload": (
            "ecr",
            "initiate_layer_upload",
            {"repositoryName": f"{REPOSITORY}-cache"},
        ),
        "ecr:UploadLayerPart": (
            "ecr",
            "upload_layer_part",
            {
                "repositoryName": REPOSITORY,
                "uploadId": "UPLOAD",
                "partFirstByte": 0,
                "partLastByte": len(LAYER) - 1,
                "layerPartBlob": LAYER,
            },
        ),
        "ecr:CompleteLayerUpload": (
            "ecr",
            "complete_layer_upload",
            {"repositoryName": REPOSITORY, "uploadId": "UPLOAD", "layerDigests": ["LAYER"]},
        ),
        "ecr:PutImage": ("ecr", "put_image", {"repositoryName": REPOSITORY, "imageManifest": "MANIFEST"}),
        "ecr:DescribeRepositories": ("ecr", "describe_repositories", {"repositoryNames": [REPOSITORY]}),
        "ecr:DescribeImages": ("ecr", "describe_images", {"repositoryName": REPOSITORY}),
        "ecr:DescribeImageScanFindings": (
            "ecr",
            "describe_image_scan_findings",
            {"repositoryName": REPOSITORY, "imageId": {"imageTag": "v1"}},
        ),
    },
}
"""Role -> action -> one call that needs it, as the role's callers make it."""
BEYOND: dict[str, list[Call]] = {
    "GitHubRole": [
        ("codebuild", "start_build", {"projectName": "other"}),
        ("s3", "put_object", {"Bucket": SOURCE, "Key": "elsewhere.zip", "Body": b"b"}),
        ("s3", "put_object", {"Bucket": KEPT, "Key": "trainyard/source/b.zip", "Body": b"b"}),
        ("ecr", "put_image", {"repositoryName": REPOSITORY, "imageManifest": "{}"}),
        ("ecr", "describe_images", {"repositoryName": "other"}),
        ("ecr", "batch_delete_image", {"repositoryName": REPOSITORY, "imageIds": [{"imageTag": "v1"}]}),
        ("eks", "describe_cluster", {"name": "other"}),
        ("logs", "get_log_events", {"logGroupName": "/aws/other", "logStreamName": "x"}),
        ("iam", "list_roles", {}),
    ],
    "BuildRole": [
        ("s3", "put_object", {"Bucket": SOURCE, "Key": "trainyard/source/b.zip", "Body": b"b"}),
        ("s3", "delete_object", {"Bucket": KEPT, "Key": "builds/1/records.zip"}),
        ("ecr", "put_image", {"repositoryName": "other", "imageManifest": "{}"}),
        ("ecr", "batch_delete_image", {"repositoryName": REPOSITORY, "imageIds": [{"imageTag": "v1"}]}),
        ("ecr", "delete_repository", {"repositoryName": REPOSITORY}),
        ("logs", "create_log_group", {"logGroupName": "/aws/codebuild/other"}),
        ("codebuild", "start_build", {"projectName": "trainyard"}),
        ("iam", "list_roles", {}),
        ("secretsmanager", "get_secret_value", {"SecretId": "other/token"}),
    ],
}


def arn_of(call: Call) -> str:
    """The resource that a policy must allow for this call."""
    service, operation, given = call
    if operation == "get_authorization_token":
        return "*"
    if service == "s3":
        return f"arn:aws:s3:::{given['Bucket']}" + (f"/{given['Key']}" if "Key" in given else "")
    named = {
        "ecr": f"repository/{given.get('repositoryName', (given.get('repositoryNames') or [REPOSITORY])[0])}",
        "eks": f"cluster/{given.get('name')}",
        "codebuild": f"project/{given.get('projectName', 'trainyard')}",
        "logs": f"log-group:{given.get('logGroupName')}:log-stream:{given.get('logStreamName', '')}",
        "iam": "role/",
        "secretsmanager": f"secret:{given.get('SecretId')}-AbCdEf",
    }
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{named[service]}"


def covers(statement: dict[str, Any], action: str, arn: str) -> bool:
    return action in statement["Action"] and any(fnmatchcase(arn, each) for each in statement["Resource"])


def for_moto(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """moto compares the resources of S3 only; those of the other services are compared here (`covers`)."""
    return [each if each["Action"][0].startswith("s3:") else {**each, "Resource": "*"} for each in given]


def statements(role: str, *, without: str = "") -> list[dict[str, Any]]:
    template = ResolvedTemplate({"Subjects": SUBJECT, "Cluster": "gpus"})
    left = [
        {**each, "Action": [action for action in each["Action"] if action != without]}
        for each in template.statements(role)
    ]
    return [each for each in left if each["Action"]]


class Guarded:
    """moto with everything that the calls need, and a user who has one policy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ids: dict[str, str] = {}
        self._make()
        iam = self.admin("iam")
        iam.create_user(UserName="job")
        key = iam.create_access_key(UserName="job")["AccessKey"]
        self._keys = {
            "aws_access_key_id": key["AccessKeyId"],
            "aws_secret_access_key": key["SecretAccessKey"],
        }
        self._clients: dict[str, Any] = {}

    def admin(self, service: str) -> Any:
        return boto3.client(service, region_name=REGION, endpoint_url=self.url)

    def _make(self) -> None:
        place = {"LocationConstraint": REGION}
        for bucket in (SOURCE, KEPT):
            self.admin("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
        self.admin("s3").put_bucket_versioning(Bucket=SOURCE, VersioningConfiguration={"Status": "Enabled"})
        put = self.admin("s3").put_object(Bucket=SOURCE, Key="trainyard/source/a.zip", Body=b"a")
        self.ids["VERSION"] = put["VersionId"]
        for name in (REPOSITORY, f"{REPOSITORY}-cache", "other"):
            self.admin("ecr").create_repository(repositoryName=name)
        self.admin("logs").create_log_group(logGroupName=LOGS)
        self.admin("logs").create_log_stream(logGroupName=LOGS, logStreamName="build")
        self.admin("codebuild").create_project(
            name="trainyard",
            source={"type": "S3", "location": f"{SOURCE}/trainyard/source/a.zip"},
            artifacts={"type": "NO_ARTIFACTS"},
            environment={"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_LARGE"},
            serviceRole=f"arn:aws:iam::{ACCOUNT}:role/service-role/trainyard-build",
        )
        self.ids["BUILD"] = self.admin("codebuild").start_build(projectName="trainyard")["build"]["id"]
        self.admin("eks").create_cluster(
            name="gpus",
            roleArn=f"arn:aws:iam::{ACCOUNT}:role/eks",
            resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]},
        )

    def allow(self, given: list[dict[str, Any]]) -> None:
        self.enforce(False)
        policy = json.dumps({"Version": "2012-10-17", "Statement": given})
        self.admin("iam").put_user_policy(UserName="job", PolicyName="job", PolicyDocument=policy)
        self.enforce(True)

    def enforce(self, on: bool) -> None:
        free = b"0" if on else b"1000000000"
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.url}/moto-api/reset-auth", data=free, headers=headers)
        urllib.request.urlopen(request, timeout=30).close()

    def permits(self, call: Call) -> bool:
        """Whether the user may make the call; an error such as "no such layer" shows that it is permitted."""
        service, operation, given = call
        if service not in self._clients:
            self._clients[service] = boto3.client(
                service, region_name=REGION, endpoint_url=self.url, **self._keys
            )
        filled = {
            key: self.ids.get(value, value) if isinstance(value, str) else value
            for key, value in given.items()
        }
        if "ids" in filled:
            filled["ids"] = [self.ids["BUILD"]]
        try:
            getattr(self._clients[service], operation)(**filled)
        except ClientError as error:
            return error.response["Error"]["Code"] not in DENIED
        return True


@pytest.fixture
def guarded(moto: Endpoint) -> Iterator[Guarded]:
    urllib.request.urlopen(
        urllib.request.Request(f"{moto.url}/moto-api/reset", method="POST"), timeout=30
    ).close()
    found = Guarded(moto.url)
    yield found
    found.enforce(False)


@pytest.mark.parametrize("role", CALLS)
def test_every_granted_action_has_a_call_here(role: str) -> None:
    granted = {action for each in statements(role) for action in each["Action"]}
    assert granted == set(CALLS[role])


@pytest.mark.parametrize("role", CALLS)
def test_the_policy_is_enough_and_each_action_is_needed(guarded: Guarded, role: str) -> None:
    calls = {action: call for action, call in CALLS[role].items() if call[0] != "eks"}  # moto denies them all
    guarded.allow(for_moto(statements(role)))
    assert [action for action, call in calls.items() if not guarded.permits(call)] == []
    needless = []
    for action, call in calls.items():
        guarded.allow(for_moto(statements(role, without=action)))
        if guarded.permits(call):
            needless.append(action)
    assert needless == []


@pytest.mark.parametrize("role", CALLS)
def test_each_call_is_covered_by_one_statement_with_its_resource(role: str) -> None:
    for action, call in CALLS[role].items():
        given = [each["Sid"] for each in statements(role) if covers(each, action, arn_of(call))]
        assert len(given) == 1, f"{action} on {arn_of(call)}: {given}"


@pytest.mark.parametrize("role", BEYOND)
def test_nothing_beyond_it_is_permitted(guarded: Guarded, role: str) -> None:
    guarded.allow(for_moto(statements(role)))
    for call in BEYOND[role]:
        action = f"{call[0]}:{''.join(word.capitalize() for word in call[1].split('_'))}"
        assert not any(covers(each, action, arn_of(call)) for each in statements(role)), call
        if call[0] == "s3" or not any(action in each["Action"] for each in statements(role)):
            assert not guarded.permits(call), call
