"""The image that a run was trained in, and what its registry holds when the run is proven."""

import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from tests.integration.scripted_aws import ACCOUNT, REGION, ScriptedAws

from trainyard.gateways.images.held_image import MANIFEST_TYPES, find_held_image


@pytest.fixture
def registry() -> Iterator[ScriptedAws]:
    with ScriptedAws("http://127.0.0.1:1").serving() as server:
        yield server


MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST_TYPES[0], "layers": []})


def held(registry: ScriptedAws) -> str:
    registry.distribution("PUT", "/v2/team/image/manifests/1", MANIFEST.encode(), MANIFEST_TYPES[0])
    return f"sha256:{hashlib.sha256(MANIFEST.encode()).hexdigest()}"


def test_an_image_that_is_held_is_evidence_and_one_that_is_gone_is_a_reason(registry: ScriptedAws) -> None:
    digest = held(registry)
    name = f"{registry.host}/team/image"
    assert find_held_image(name, digest) == (None, f"{registry.host} holds the image under that digest")
    assert find_held_image(f"{name}:tag", digest)[0] is None
    problem, _ = find_held_image(name, "sha256:" + "0" * 64)
    assert problem is not None
    assert "it was deleted, or never pushed" in problem


def test_bytes_that_have_another_digest_are_not_the_image(registry: ScriptedAws) -> None:
    digest = held(registry)
    registry.registry[f"/v2/team/image/manifests/{digest}"] = b"{}"
    problem, _ = find_held_image(f"{registry.host}/team/image", digest)
    assert problem is not None
    assert "has the digest" in problem


@pytest.mark.parametrize("name", ["team/im\nage", "/image", "x" * 100_000, "../image", "team/../../image"])
def test_what_is_no_name_of_an_image_is_asked_of_nobody(registry: ScriptedAws, name: str) -> None:
    for digest in ("sha256:" + "0" * 64, "latest", "0" * 64, ""):
        problem, said = find_held_image(f"{registry.host}/{name}", digest)
        assert problem is None or digest.endswith("0" * 64)
        assert problem or "queried" in said


def test_a_digest_without_its_algorithm_is_still_one(registry: ScriptedAws) -> None:
    """If it were taken as a tag, the registry could hold any image under it."""
    digest = held(registry)
    bare = digest.removeprefix("sha256:")
    registry.registry[f"/v2/team/image/manifests/{bare}"] = b"{}"
    assert "holds the image" in find_held_image(f"{registry.host}/team/image", bare)[1]
    registry.registry[f"/v2/team/image/manifests/{'0' * 64}"] = b"{}"
    assert find_held_image(f"{registry.host}/team/image", "0" * 64)[0] is not None


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_a_registry_that_never_ends_its_answer_is_not_waited_for(first: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as open_ones:

        def drip() -> None:
            with contextlib.suppress(OSError):
                while True:
                    there, _ = server.accept()
                    open_ones.enter_context(there)
                    there.sendall(first)
                    for _ in range(30):
                        there.sendall(first[:1])
                        time.sleep(0.2)

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        name = f"127.0.0.1:{server.getsockname()[1]}/team/image"
        problem, said = find_held_image(name, "sha256:" + "0" * 64, seconds=0.5)
        assert time.monotonic() - began < 120
        assert problem is None
        assert "no answer within" in said


@pytest.mark.parametrize("name", ["", "trainer", "127.0.0.1:1/team/image"])
def test_a_registry_that_cannot_be_asked_is_said_and_nothing_more(name: str) -> None:
    problem, said = find_held_image(name, "sha256:" + "0" * 64)
    assert problem is None
    assert "queried" in said


def test_ecr_is_asked_without_a_pull(moto: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with ScriptedAws(moto.url).serving() as aws:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        ecr, repository = boto3.client("ecr"), f"team/image-{time.time_ns()}"
        name = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{repository}"
        gone = "sha256:" + "0" * 64
        assert "it was deleted, or never pushed" in str(find_held_image(name, gone)[0])  # no such repository
        ecr.create_repository(repositoryName=repository)
        made = ecr.put_image(repositoryName=repository, imageManifest=MANIFEST, imageTag="1")
        digest = str(made["image"]["imageId"]["imageDigest"])
        assert "holds the image under that digest" in find_held_image(name, digest)[1]
        assert "it was deleted, or never pushed" in str(find_held_image(name, gone)[0])
        for code in ("AccessDeniedException", "ThrottlingException", "ServerException"):
            aws.refusals = {"DescribeImages": [(code, "because")] * 9}
            problem, observation = find_held_image(name, digest)
            assert problem is None and code in observation
        aws.refusals = {}
        assert {call for call in aws.calls if "Image" in call} == {"DescribeImages", "PutImage"}
