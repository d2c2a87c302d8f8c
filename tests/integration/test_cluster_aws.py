"""EKS, HyperPod and ECR as moto serves them: listings, tokens, access to a cluster by its name."""

import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
from tests import warm_start
from tests.answering import answering
from tests.integration.conftest import Endpoint

from trainyard.errors import ConfigError, CredentialsRefusedError, PermissionRefusedError, ServiceTroubleError
from trainyard.gateways.images.ecr import find_digest
from trainyard.gateways.kubernetes.cluster_connection import access_by_name
from trainyard.gateways.kubernetes.eks import HyperPod, describe_cluster, eks_token, list_clusters

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "manage_cluster.py"
REGION = "us-west-2"
ACCOUNT = "123456789012"


@pytest.fixture
def aws(moto: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    urlopen(Request(f"{moto.url}/moto-api/reset", method="POST"), timeout=10).close()
    return moto.url


def client(name: str, url: str) -> Any:
    import boto3

    return boto3.client(name, region_name=REGION, endpoint_url=url)


def make_eks(url: str, name: str) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/eks"
    client("eks", url).create_cluster(
        name=name, roleArn=role, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]}, version="1.34"
    )


def make_hyperpod(url: str) -> str:
    """Create a cluster without an orchestrator; return its new name, as moto's reset keeps clusters."""
    name = f"pod-{uuid.uuid4().hex[:8]}"
    client("sagemaker", url).create_cluster(
        ClusterName=name,
        InstanceGroups=[
            {
                "InstanceGroupName": "workers",
                "InstanceType": "ml.p5.48xlarge",
                "InstanceCount": 2,
                "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-life", "OnCreate": "on_create.sh"},
                "ThreadsPerCore": 1,
                "ExecutionRole": f"arn:aws:iam::{ACCOUNT}:role/hyperpod",
            }
        ],
    )
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
    line = [sys.executable, str(SCRIPT), "list", "--region", REGION]
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
    config = {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "digest": "sha256:" + "0" * 64,
        "size": 1,
    }
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": []})
    put = ecr.put_image(repositoryName="team/train", imageManifest=manifest, imageTag="v1")
    digest = put["image"]["imageId"]["imageDigest"]
    place: Any = {"account": ACCOUNT, "region": REGION, "repository": "team/train"}
    assert find_digest(**place, tag="v1", digest="") == digest
    assert find_digest(**place, tag="", digest=digest) == digest
    assert find_digest(**place, tag="v2", digest="") is None
    assert find_digest(account=ACCOUNT, region=REGION, repository="no/such", tag="v1", digest="") is None
