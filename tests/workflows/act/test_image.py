"""The shipped image.yml, played: the builds that it starts in AWS, its messages in Slack, and its summary."""

import hashlib
import json
import time
from typing import Any

import pytest
from tests.github_identity import ROLE, github_identity
from tests.integration.conftest import aws, bucket, moto  # noqa: F401 - fixtures
from tests.integration.scripted_aws import REGION, Script, ScriptedAws

from trainyard.image.context.build_context import content_tag

pytestmark = pytest.mark.act
MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
FILE = "docker/fsdp/Dockerfile"


def test_an_image_is_built_in_aws_and_told_in_slack_and_summary(
    stage: Any,
    aws: ScriptedAws,  # noqa: F811 - the fixture
    bucket: str,  # noqa: F811 - the fixture
) -> None:
    digest = f"sha256:{hashlib.sha256(b'').hexdigest()}"  # moto's, for a manifest without a configuration
    ecr, name = aws.client("ecr"), f"team/t{time.time_ns()}"
    ecr.create_repository(repositoryName=name)

    def push() -> None:
        tag = content_tag(aws.builds[0].variables["CONTENT"])
        answer = ecr.put_image(repositoryName=name, imageManifest=json.dumps(MANIFEST), imageTag=tag)
        assert answer["image"]["imageId"]["imageDigest"] == digest

    aws.scripts = [Script(at_end=push, exported={"IMAGE_DIGEST": digest})]
    variables = {"TRAINYARD_IMAGE_ROLE": ROLE, "TRAINYARD_SOURCE_BUCKET": bucket}
    variables |= {"TRAINYARD_AWS_REGION": REGION, "TRAINYARD_IMAGE_REPOSITORY": name}
    given = {"AWS_ENDPOINT_URL": aws.url, "AWS_EC2_METADATA_DISABLED": "true"}
    with github_identity() as identity:  # moto's STS takes its tokens
        own = {key: value for key, value in identity.variables().items() if key.startswith("ACTIONS_ID")}
        played = stage.play(
            "workflow_dispatch",
            inputs={"dockerfile": FILE, "level": "full", "tags": "git-sha"},
            workflow="image.yml",
            job="build",
            variables=variables,
            environment={**own, **given},
        )
    assert set(identity.calls) == {"oidc"}
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
