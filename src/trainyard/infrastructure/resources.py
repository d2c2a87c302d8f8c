"""The list of AWS resources for building images without Docker at hand.

    RESOURCES  ──>  setup-codebuild.sh (through the API) | cloudformation.yaml | terraform/main.tf

This list is the only place where a resource or a setting of one is written. `scripts/write_infrastructure.py`
writes the template and the module from it; the script applies it as it stands.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.infrastructure.policies import (
    ARTIFACT_BUCKET,
    BUILD_GRANTS,
    GITHUB_GRANTS,
    LOG_GROUP,
    SERVICE_TRUST,
    SOURCE_BUCKET,
    policy,
)
from trainyard.infrastructure.values import Arn, Either, Name, Parameter, Resource

ISSUER = "token.actions.githubusercontent.com"
DEPLOYERS = "trainyard-deployers"
"""The Kubernetes group of the role that GitHub assumes; a RoleBinding of the cluster says what it may do."""


@dataclass(frozen=True)
class Choice:
    """A parameter of the script, the template and the module."""

    name: str
    flag: str
    """The option of the script, and with underscores the variable of Terraform."""
    default: Any
    help: str
    pattern: str = ""
    """The pattern of the text; empty: not a text, or any text."""
    lowest: int = 0
    highest: int = 0


CHOICES = (
    Choice(
        "Project",
        "project-name",
        "trainyard",
        "the CodeBuild project, and the beginning of the name of everything else",
        pattern=r"^[a-z0-9][a-z0-9-]{1,25}$",  # with account and region at most the 63 letters of a bucket
    ),
    Choice(
        "Repository",
        "ecr-repository",
        "trainyard",
        "the ECR repository of the images; NAME-cache holds the layer cache",
        pattern=r"^(?=.{2,200}$)[a-z0-9]+([._-][a-z0-9]+)*(/[a-z0-9]+([._-][a-z0-9]+)*)*$",
    ),
    Choice(
        "TagMutability",
        "tag-mutability",
        "IMMUTABLE",
        "IMMUTABLE: a tag always names the same image; MUTABLE: a tag such as latest may move",
        pattern=r"^(IM)?MUTABLE$",
    ),
    Choice(
        "ComputeType",
        "compute-type",
        "BUILD_GENERAL1_LARGE",
        "the size of the build machine; SMALL has too little disk for a training image",
        pattern=r"^BUILD_GENERAL1_(MEDIUM|LARGE|XLARGE|2XLARGE)$",
    ),
    Choice("TimeoutMinutes", "timeout-minutes", 120, "of a build", lowest=5, highest=2160),
    Choice("LogDays", "log-days", 30, "how long logs are kept"),
    Choice(
        "Subjects",
        "subject",
        [],
        "the subjects of GitHub's jobs that may assume the role, such as repo:OWNER/REPO:environment:NAME",
        pattern=r"^repo:[^*?\s,]+:(environment|ref):[^*?\s,]+$",
    ),
    Choice(
        "CreateProvider",
        "create-provider",
        True,
        "make GitHub's OIDC provider; an account has one, and another stack may have made it",
    ),
    Choice(
        "Cluster",
        "cluster",
        "",
        "the EKS cluster in which jobs of GitHub Actions start training",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,99})?$",
    ),
    Choice(
        "WebhookRepository",
        "webhook-repository",
        "",
        "OWNER/REPO whose pushes to main build by themselves; CodeBuild must be connected to GitHub",
        pattern=r"^([A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100})?$",
    ),
)
LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731)
"""The retentions up to two years that CloudWatch Logs knows."""
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "TrustsGitHub": ("Subjects",),
    "MakesProvider": ("Subjects", "CreateProvider"),
    "UsesCluster": ("Subjects", "Cluster"),
    "UsesWebhook": ("WebhookRepository",),
}
"""A condition -> the parameters that must all be given."""


def choice_called(name: str) -> Choice:
    """The choice of this name."""
    return next(choice for choice in CHOICES if choice.name == name)


def _lifecycle(*rules: tuple[str, Mapping[str, Any]]) -> str:
    """ECR takes a lifecycle policy as a text."""
    listed = [
        {
            "rulePriority": number,
            "description": text,
            "selection": dict(selection),
            "action": {"type": "expire"},
        }
        for number, (text, selection) in enumerate(rules, 1)
    ]
    return json.dumps({"rules": listed})


_UNTAGGED = {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days", "countNumber": 14}
_RECENT = {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 200}
_CACHED = {"tagStatus": "any", "countType": "sinceImagePushed", "countUnit": "days", "countNumber": 30}


def _bucket(name: str, why: str, expiry: Mapping[str, Any] | None) -> Resource:
    """A versioned, encrypted and private bucket, whose leftovers expire by rule."""
    rules = [
        {
            "Id": "abort-incomplete-uploads",
            "Status": "Enabled",
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        },
        {
            "Id": "expire-old-versions",
            "Status": "Enabled",
            "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
        },
        *([expiry] if expiry else []),
    ]
    encryption = {
        "ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"},
        "BucketKeyEnabled": False,  # for KMS only
    }
    return Resource(
        "SourceBucket" if name == SOURCE_BUCKET else "ArtifactBucket",
        "AWS::S3::Bucket",
        why,
        {
            "BucketName": name,
            "VersioningConfiguration": {"Status": "Enabled"},
            "BucketEncryption": {"ServerSideEncryptionConfiguration": [encryption]},
            "PublicAccessBlockConfiguration": {
                "BlockPublicAcls": True,
                "IgnorePublicAcls": True,
                "BlockPublicPolicy": True,
                "RestrictPublicBuckets": True,
            },
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            "LifecycleConfiguration": {"Rules": rules},
        },
        keeps_data=True,
    )


def _tls_only(bucket: str) -> Resource:
    arn = "arn:${Partition}:s3:::" + (SOURCE_BUCKET if bucket == "SourceBucket" else ARTIFACT_BUCKET)
    return Resource(
        f"{bucket}Policy",
        "AWS::S3::BucketPolicy",
        "TLS only",
        {
            "Bucket": Name(bucket),
            "PolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Sid": "TlsOnly",
                        "Effect": "Deny",
                        "Principal": "*",
                        "Action": "s3:*",
                        "Resource": [arn, f"{arn}/*"],
                        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                    }
                ],
            },
        },
    )


_GITHUB_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Federated": "arn:${Partition}:iam::${Account}:oidc-provider/" + ISSUER},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {
                "StringEquals": {f"{ISSUER}:aud": "sts.amazonaws.com", f"{ISSUER}:sub": Parameter("Subjects")}
            },
        }
    ],
}

_SOURCE_EXPIRY = {
    "Id": "expire-archives",
    "Status": "Enabled",
    "Prefix": "${Project}/source/",
    "ExpirationInDays": 90,
}


def _variable(name: str, value: Any) -> dict[str, Any]:
    return {"Name": name, "Type": "PLAINTEXT", "Value": value}


RESOURCES = (
    Resource(
        "ImageRepository",
        "AWS::ECR::Repository",
        "the images; every push is scanned",
        {
            "RepositoryName": "${Repository}",
            "ImageTagMutability": Parameter("TagMutability"),
            "ImageScanningConfiguration": {"ScanOnPush": True},
            "EncryptionConfiguration": {"EncryptionType": "AES256"},
            "LifecyclePolicy": {
                "LifecyclePolicyText": _lifecycle(
                    ("untagged images go after 14 days", _UNTAGGED), ("the newest 200 images stay", _RECENT)
                )
            },
        },
        keeps_data=True,
    ),
    Resource(
        "CacheRepository",
        "AWS::ECR::Repository",
        "the layer cache of buildx, whose only tag every build replaces",
        {
            "RepositoryName": "${Repository}-cache",
            "ImageTagMutability": "MUTABLE",
            "ImageScanningConfiguration": {"ScanOnPush": False},
            "EncryptionConfiguration": {"EncryptionType": "AES256"},
            "LifecyclePolicy": {
                "LifecyclePolicyText": _lifecycle(("what was not built for 30 days goes", _CACHED))
            },
        },
        keeps_data=True,
    ),
    _bucket(SOURCE_BUCKET, "sources of builds: one archive per content", _SOURCE_EXPIRY),
    _tls_only("SourceBucket"),
    _bucket(ARTIFACT_BUCKET, "reports and records of builds", None),
    _tls_only("ArtifactBucket"),
    Resource(
        "LogGroup",
        "AWS::Logs::LogGroup",
        "the logs of builds",
        {"LogGroupName": LOG_GROUP, "RetentionInDays": Parameter("LogDays")},
    ),
    Resource(
        "BuildRole",
        "AWS::IAM::Role",
        "the permissions of a build",
        {
            "RoleName": "${Project}-build",
            "Description": "Trainyard: builds, checks and pushes images in CodeBuild",
            "AssumeRolePolicyDocument": SERVICE_TRUST,
            "Policies": [{"PolicyName": "build", "PolicyDocument": policy(BUILD_GRANTS)}],
        },
    ),
    Resource(
        "Builds",
        "AWS::CodeBuild::Project",
        "the builds: privileged, because building an image in CodeBuild needs a Docker daemon",
        {
            "Name": "${Project}",
            "Description": "Trainyard: builds, checks and pushes images",
            "ServiceRole": Arn("BuildRole"),
            "Source": {
                "Type": Either("UsesWebhook", "GITHUB", "S3"),
                "Location": Either(
                    "UsesWebhook",
                    "https://github.com/${WebhookRepository}.git",
                    SOURCE_BUCKET + "/${Project}/source/none.zip",
                ),
                "BuildSpec": "buildspec.yml",
            },
            "Artifacts": {
                "Type": "S3",
                "Location": Name("ArtifactBucket"),
                "Path": "builds",
                "NamespaceType": "BUILD_ID",
                "Packaging": "ZIP",
                "Name": "records.zip",
            },
            "Environment": {
                "Type": "LINUX_CONTAINER",
                "Image": "aws/codebuild/standard:7.0",
                "ComputeType": Parameter("ComputeType"),
                "PrivilegedMode": True,
                "EnvironmentVariables": [
                    _variable("ECR_REPOSITORY", "${Repository}"),
                    _variable("TASK", Either("UsesWebhook", "image", "train")),
                ],
            },
            "Cache": {"Type": "LOCAL", "Modes": ["LOCAL_DOCKER_LAYER_CACHE", "LOCAL_CUSTOM_CACHE"]},
            "LogsConfig": {"CloudWatchLogs": {"Status": "ENABLED", "GroupName": Name("LogGroup")}},
            "TimeoutInMinutes": Parameter("TimeoutMinutes"),
            "QueuedTimeoutInMinutes": 480,
            "Triggers": Either(
                "UsesWebhook",
                {
                    "Webhook": True,
                    "FilterGroups": [
                        [
                            {"Type": "EVENT", "Pattern": "PUSH"},
                            {"Type": "HEAD_REF", "Pattern": "^refs/heads/main$"},
                            {"Type": "FILE_PATH", "Pattern": "^(docker/|requirements-|src/|scripts/)"},
                        ]
                    ],
                },
                None,
            ),
        },
    ),
    Resource(
        "GitHubProvider",
        "AWS::IAM::OIDCProvider",
        "lets AWS trust the tokens of GitHub Actions; one per account",
        {"Url": f"https://{ISSUER}", "ClientIdList": ["sts.amazonaws.com"]},
        condition="MakesProvider",
        keeps_data=True,
    ),
    Resource(
        "GitHubRole",
        "AWS::IAM::Role",
        "the permissions of GitHub Actions jobs, which need no keys",
        {
            "RoleName": "${Project}-github",
            "Description": "Trainyard: starts builds from GitHub Actions",
            "MaxSessionDuration": 3600,
            "AssumeRolePolicyDocument": _GITHUB_TRUST,
            "Policies": [{"PolicyName": "github", "PolicyDocument": policy(GITHUB_GRANTS)}],
        },
        condition="TrustsGitHub",
    ),
    Resource(
        "AccessEntry",
        "AWS::EKS::AccessEntry",
        "the identity of GitHub's role in the cluster: a member of a group, without an EKS policy",
        {
            "ClusterName": "${Cluster}",
            "PrincipalArn": Arn("GitHubRole"),
            "Type": "STANDARD",
            "KubernetesGroups": [DEPLOYERS],
        },
        condition="UsesCluster",
    ),
)
"""In the order in which they are made; removed in the opposite one."""
