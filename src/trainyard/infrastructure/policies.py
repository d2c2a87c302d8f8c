"""The permissions of the two roles: every action, its resources, and the caller that needs it.

    GRANTS  ──>  the policy of CodeBuild's role, the policy of GitHub's role

Least privilege: an action is here because a caller is named beside it. The tests compare the callers of our
own code with the calls in `gateways/`, and docs/runbooks/permissions.md with this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.infrastructure.values import Either


class Caller(StrEnum):
    """Who makes the calls that an action permits."""

    SERVICE = "CodeBuild itself"
    """Before and after the commands of a build: its log, its source, its reports."""
    DOCKER = "docker and buildx"
    """The registry protocol: a pull, a push, the layer cache."""
    SCRIPTS = "our scripts"
    """Calls of `gateways/` to AWS."""


@dataclass(frozen=True)
class Grant:
    """Actions on the same resources for the same caller."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    caller: Caller
    why: str
    condition: str = ""
    """The condition of the list of resources under which the statement applies; empty: always."""

    def statement(self) -> dict[str, Any]:
        """The grant as a statement of an IAM policy."""
        return {
            "Sid": self.sid,
            "Effect": "Allow",
            "Action": list(self.actions),
            "Resource": list(self.resources),
        }


_S3 = "arn:${Partition}:s3:::"
_HERE = "${Region}:${Account}"
SOURCE_BUCKET = "${Project}-source-${Account}-${Region}"
ARTIFACT_BUCKET = "${Project}-artifacts-${Account}-${Region}"
LOG_GROUP = "/aws/codebuild/${Project}"
PROJECT_ARN = f"arn:${{Partition}}:codebuild:{_HERE}:project/${{Project}}"
_REPOSITORIES = (
    f"arn:${{Partition}}:ecr:{_HERE}:repository/${{Repository}}",
    f"arn:${{Partition}}:ecr:{_HERE}:repository/${{Repository}}-cache",
)

BUILD_GRANTS = (
    Grant(
        "WriteTheBuildLog",
        ("logs:CreateLogStream", "logs:PutLogEvents"),
        (f"arn:${{Partition}}:logs:{_HERE}:log-group:{LOG_GROUP}:*",),
        Caller.SERVICE,
        "a build writes its log; the group is made by the set-up, so CreateLogGroup is not needed",
    ),
    Grant(
        "ReadTheSource",
        ("s3:GetObject", "s3:GetObjectVersion"),
        (f"{_S3}{SOURCE_BUCKET}/${{Project}}/source/*",),
        Caller.SERVICE,
        "the archive that is built",
    ),
    Grant(
        "FindTheBuckets",
        ("s3:GetBucketLocation", "s3:GetBucketAcl"),
        (f"{_S3}{SOURCE_BUCKET}", f"{_S3}{ARTIFACT_BUCKET}"),
        Caller.SERVICE,
        "CodeBuild asks for region and owner of a bucket before it uses it",
    ),
    Grant(
        "KeepArtifacts",
        ("s3:PutObject",),
        (f"{_S3}{ARTIFACT_BUCKET}/*",),
        Caller.SERVICE,
        "reports and records of a build",
    ),
    Grant(
        "KeepReports",
        (
            "codebuild:CreateReportGroup",
            "codebuild:CreateReport",
            "codebuild:UpdateReport",
            "codebuild:BatchPutTestCases",
        ),
        (f"arn:${{Partition}}:codebuild:{_HERE}:report-group/${{Project}}-*",),
        Caller.SERVICE,
        "the JUnit report of an image's check",
    ),
    Grant(
        "LogInToTheRegistry",
        ("ecr:GetAuthorizationToken",),
        ("*",),
        Caller.SCRIPTS,
        "the login is for the registry of the account; ECR takes no resource here",
    ),
    Grant(
        "PullImagesAndCache",
        ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer", "ecr:BatchCheckLayerAvailability"),
        _REPOSITORIES,
        Caller.DOCKER,
        "layers of the cache, the image that is checked, and which layers are there before a push",
    ),
    Grant(
        "PushImagesAndCache",
        ("ecr:InitiateLayerUpload", "ecr:UploadLayerPart", "ecr:CompleteLayerUpload", "ecr:PutImage"),
        _REPOSITORIES,
        Caller.DOCKER,
        "the image, its SBOM and provenance, and the layer cache",
    ),
    Grant(
        "ReadWhatWasPushed",
        ("ecr:DescribeRepositories", "ecr:DescribeImages", "ecr:DescribeImageScanFindings"),
        _REPOSITORIES[:1],
        Caller.SCRIPTS,
        "the address of the repository and whether its tags are immutable, whether the content "
        "exists already, the digest after a push, and the findings of the scan",
    ),
)
"""The role of CodeBuild."""

GITHUB_GRANTS = (
    Grant(
        "RunBuilds",
        ("codebuild:StartBuild", "codebuild:BatchGetBuilds", "codebuild:StopBuild"),
        (PROJECT_ARN,),
        Caller.SCRIPTS,
        "start a build, follow it, and stop it when the job is cancelled",
    ),
    Grant(
        "UploadTheSource",
        ("s3:PutObject", "s3:GetObject"),
        (f"{_S3}{SOURCE_BUCKET}/${{Project}}/source/*",),
        Caller.SCRIPTS,
        "the archive, once per content; GetObject also permits HeadObject, which shows whether it exists",
    ),
    Grant(
        "SeeTheSource",
        ("s3:ListBucket",),
        (f"{_S3}{SOURCE_BUCKET}",),
        Caller.SCRIPTS,
        "without it S3 answers AccessDenied instead of not found for an archive that does not exist yet",
    ),
    Grant(
        "ReadTheBuildLog",
        ("logs:GetLogEvents",),
        (f"arn:${{Partition}}:logs:{_HERE}:log-group:{LOG_GROUP}:log-stream:*",),
        Caller.SCRIPTS,
        "the log of a build, line by line",
    ),
    Grant(
        "ReadImages",
        ("ecr:DescribeImages",),
        _REPOSITORIES[:1],
        Caller.SCRIPTS,
        "whether the content is in the registry already, and the digest that is handed on",
    ),
    Grant(
        "FindTheCluster",
        ("eks:DescribeCluster",),
        (f"arn:${{Partition}}:eks:{_HERE}:cluster/${{Cluster}}",),
        Caller.SCRIPTS,
        "address and certificate of the API server; the cluster decides what the role may do there",
        condition="UsesCluster",
    ),
)
"""The role that jobs of GitHub Actions assume."""

SERVICE_TRUST: Mapping[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "codebuild.amazonaws.com"},
            "Action": "sts:AssumeRole",
            # Only for this project: otherwise CodeBuild could be asked to use the role from another account.
            "Condition": {
                "StringEquals": {"aws:SourceAccount": "${Account}"},
                "ArnLike": {"aws:SourceArn": PROJECT_ARN},
            },
        }
    ],
}


def policy(grants: tuple[Grant, ...]) -> dict[str, Any]:
    """An IAM policy of the grants."""
    statements = [
        Either(grant.condition, grant.statement(), None) if grant.condition else grant.statement()
        for grant in grants
    ]
    return {"Version": "2012-10-17", "Statement": statements}
