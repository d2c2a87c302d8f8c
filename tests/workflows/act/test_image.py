"""The shipped image.yml, played: the builds that it starts in AWS, its messages in Slack, and its summary."""

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.github_identity import ROLE, github_identity
from tests.integration.conftest import moto as moto_server  # noqa: F401 - a fixture
from tests.integration.scripted_aws import REGION, Script, ScriptedAws

from trainyard.image.context.build_context import content_tag

pytestmark = pytest.mark.act
MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
FILE = "docker/fsdp/Dockerfile"


@pytest.fixture
def aws(moto_server: Any) -> Iterator[ScriptedAws]:  # noqa: F811 - the fixture
    with ScriptedAws(moto_server.url).serving() as server:
        yield server


def client(aws: ScriptedAws, name: str, region: str = REGION) -> Any:
    import boto3

    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client(name, endpoint_url=aws.moto, region_name=region, **keys)


def played_with(stage: Any, aws: ScriptedAws, **more: Any) -> Any:
    bucket = f"sources-{time.time_ns()}"
    client(aws, "s3", "us-east-1").create_bucket(Bucket=bucket)
    variables = {"TRAINYARD_IMAGE_ROLE": ROLE, "TRAINYARD_SOURCE_BUCKET": bucket}
    variables |= {"TRAINYARD_AWS_REGION": REGION, "TRAINYARD_IMAGE_REPOSITORY": f"team/t{time.time_ns()}"}
    client(aws, "ecr").create_repository(repositoryName=variables["TRAINYARD_IMAGE_REPOSITORY"])
    given = {"AWS_ENDPOINT_URL": aws.url, "AWS_EC2_METADATA_DISABLED": "true"}
    with github_identity() as identity:  # moto's STS takes its tokens
        own = {name: value for name, value in identity.variables().items() if name.startswith("ACTIONS_ID")}
        played = play_with(stage, variables, {**own, **given, **more.pop("environment", {})}, **more)
    assert set(identity.calls) == {"oidc"}
    return played, variables["TRAINYARD_IMAGE_REPOSITORY"]


def play_with(stage: Any, variables: dict[str, str], environment: dict[str, str], **more: Any) -> Any:
    return stage.play(
        "workflow_dispatch",
        inputs={"dockerfile": FILE, "level": "full", "tags": "git-sha"},
        workflow="image.yml",
        job="build",
        variables=variables,
        environment=environment,
        **more,
    )


def test_an_image_is_built_in_aws_and_told_in_slack_and_summary(stage: Any, aws: ScriptedAws) -> None:
    digest = f"sha256:{hashlib.sha256(b'').hexdigest()}"  # moto's, for a manifest without a configuration

    def push() -> None:
        ecr, name = client(aws, "ecr"), aws.builds[0].variables["IMAGE"]
        tag = content_tag(aws.builds[0].variables["CONTENT"])
        answer = ecr.put_image(repositoryName=name, imageManifest=json.dumps(MANIFEST), imageTag=tag)
        assert answer["image"]["imageId"]["imageDigest"] == digest

    aws.scripts = [Script(at_end=push, exported={"IMAGE_DIGEST": digest})]
    played, name = played_with(stage, aws)
    assert played.green, played.log
    (build,) = aws.builds
    assert [build.variables[key] for key in ("IMAGE", "DOCKERFILE", "LEVEL", "TAGS")] == [
        *(name, FILE, "full", "git-sha")
    ]
    assert "Built, checked and pushed" in played.summary
    assert digest in played.summary
    (message,) = played.messages
    assert json.loads(message)["text"] == f"✅ Image {name} built, checked and pushed"
    assert digest in message
