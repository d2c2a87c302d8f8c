"""The image that a run was trained in, and what its registry holds when the run is proven."""

import json
from collections.abc import Iterator

import pytest
from tests.integration.scripted_aws import ScriptedAws

from trainyard.gateways.images.held_image import look_for
from trainyard.gateways.images.local_builder import Login
from trainyard.gateways.images.registry import OCI_MANIFEST, Registry


@pytest.fixture
def registry() -> Iterator[ScriptedAws]:
    with ScriptedAws("http://127.0.0.1:1").serving() as server:
        yield server


def held(registry: ScriptedAws) -> str:
    client = Registry(Login(registry.host, "", ""))
    content = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": []}).encode()
    client._put_manifest("team/image", "1", content, OCI_MANIFEST)
    digest = client.digest_of("team/image", "1")
    assert digest is not None
    return digest


def test_an_image_that_is_held_is_evidence_and_one_that_is_gone_is_a_reason(registry: ScriptedAws) -> None:
    digest = held(registry)
    name = f"{registry.host}/team/image"
    assert look_for(name, digest) == (None, f"{registry.host} holds the image under that digest")
    assert look_for(f"{name}:tag", digest)[0] is None
    problem, _ = look_for(name, "sha256:" + "0" * 64)
    assert problem is not None
    assert "it was deleted, or never pushed" in problem


def test_bytes_that_have_another_digest_are_not_the_image(registry: ScriptedAws) -> None:
    digest = held(registry)
    registry.registry[f"/v2/team/image/manifests/{digest}"] = b"{}"
    problem, _ = look_for(f"{registry.host}/team/image", digest)
    assert problem is not None
    assert "has the digest" in problem


@pytest.mark.parametrize("name", ["", "trainer", "127.0.0.1:1/team/image"])
def test_a_registry_that_cannot_be_asked_is_said_and_nothing_more(name: str) -> None:
    problem, said = look_for(name, "sha256:" + "0" * 64)
    assert problem is None
    assert "asked" in said
