"""A registry through oras, a stand-in or the real one: digests and tags."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateways.images.conftest import Install, Server

from trainyard.errors import ConfigError, ServiceError, VerificationError
from trainyard.gateways.images.local_builder import Login
from trainyard.gateways.images.registry import Manifest, Registry

NOWHERE = "sha256:" + "0" * 64
IMAGE, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
ORAS = shutil.which("oras")
missing = pytest.mark.skipif(ORAS is None, reason="oras is not installed")


@pytest.fixture(params=["stand-in", pytest.param("oras", marks=missing)])
def oras(request: pytest.FixtureRequest, install: Install, tmp_path: Path) -> str:
    """Make the stand-in, or the real oras, the only one on the PATH."""
    install(*(["oras"] if request.param == "stand-in" else []))
    if request.param == "oras":
        (tmp_path / "bin" / "oras").symlink_to(str(ORAS))
    return str(request.param)


@pytest.fixture
def registry(oras: str, server: Server) -> Registry:
    return Registry(Login(server.host, "AWS", "password"))


def hold(server: Server, tag: str = "1", **more: Any) -> str:
    """Put an image into the registry, as a push does, and return its digest."""
    kind = INDEX if "manifests" in more else IMAGE
    blob = {"mediaType": "text/plain", "digest": NOWHERE, "size": 4}
    content = {"schemaVersion": 2, "mediaType": kind} | (more or {"config": blob, "layers": [blob]})
    body = json.dumps(content).encode()
    server.distribution("PUT", f"/v2/team/image/manifests/{tag}", body, kind)
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def test_an_image_has_one_digest_under_its_tags(server: Server, registry: Registry) -> None:
    digest = hold(server)
    registry.tag("team/image", digest, ["1.2.3", "1.2"])
    for reference in ("1", "1.2.3", "1.2", digest):
        assert registry.digest_of("team/image", reference) == digest
    assert registry.digest_of("team/image", "2") is None
    assert registry.digest_of("team/image", NOWHERE) is None
    assert registry.digest_of("x" * 200, "1") is None


def test_an_image_that_is_gone_is_not_tagged(server: Server, registry: Registry) -> None:
    with pytest.raises(ServiceError, match=f"oras tag .*team/image@{NOWHERE}: not found"):
        registry.tag("team/image", NOWHERE, ["1"])
    assert server.registry == {}


def test_a_manifest_of_other_bytes_is_never_taken_for_the_image(server: Server, registry: Registry) -> None:
    digest = hold(server)
    server.registry[f"/v2/team/image/manifests/{digest}"] += b" "
    with pytest.raises((VerificationError, ServiceError), match=digest):
        registry.digest_of("team/image", digest)


def test_a_refusal_is_no_missing_image_and_names_the_registry(server: Server, registry: Registry) -> None:
    hold(server)
    for status in (400, 401, 403):
        server.refuses["GET"] = server.refuses["HEAD"] = status
        with pytest.raises(ServiceError, match=f"The registry {server.host} refused oras manifest"):
            registry.digest_of("team/image", "2")


@pytest.mark.usefixtures("oras")
def test_a_registry_that_is_not_there_is_no_missing_image() -> None:
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:1 refused oras manifest or could not be reached"):
        Registry(Login("127.0.0.1:1", "", "")).digest_of("team/image", "1")


def test_without_oras_nothing_begins(install: Install) -> None:
    install()
    with pytest.raises(ConfigError, match="oras is not installed"):
        Registry(Login("127.0.0.1:1", "", ""))


def test_the_images_of_an_index_are_those_without_attestations(server: Server, registry: Registry) -> None:
    """BuildKit's index: https://docs.docker.com/build/metadata/attestations/attestation-storage/"""
    one, two = "sha256:" + "1" * 64, "sha256:" + "2" * 64
    amd64 = {"architecture": "amd64", "os": "linux"}
    entry = {"mediaType": IMAGE, "digest": one, "size": 1, "platform": amd64}
    annotations = {"vnd.docker.reference.digest": one, "vnd.docker.reference.type": "attestation-manifest"}
    unknown = {"architecture": "unknown", "os": "unknown"}
    beside = {"mediaType": IMAGE, "digest": two, "size": 1, "platform": unknown, "annotations": annotations}
    digest = hold(server, manifests=[entry, beside])
    found = registry.manifest("team/image", "1")
    assert found is not None and found.digest == digest
    assert found.image_digests == [one]
    alone = Manifest(one, {"layers": []})
    assert alone.image_digests == [one]


def test_the_login_is_in_no_command_line_and_no_file_that_stays(
    install: Install, server: Server, tmp_path: Path
) -> None:
    install("oras")
    hold(server)
    Registry(Login(server.host, "AWS", "password")).digest_of("team/image", "1")
    ((words, logins),) = [json.loads(line) for line in (tmp_path / "oras-calls").read_text().splitlines()]
    assert set(logins) == {server.host} and "password" not in str(words)
    (file,) = [word.partition("=")[2] for word in words if word.startswith("--registry-config=")]
    assert not os.path.lexists(file)
