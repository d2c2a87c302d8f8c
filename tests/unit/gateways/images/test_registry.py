"""A registry: what is attached to an image, and that bytes are believed and no header."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.attachments import attached, read_attachment
from tests.unit.gateways.images.conftest import Server

from trainyard.errors import PermissionRefusedError, ServiceError, ServiceTroubleError, VerificationError
from trainyard.gateways.images.local_builder import Login
from trainyard.gateways.images.registry import OCI_MANIFEST, Registry

NOWHERE = "sha256:" + "0" * 64
SBOM, ORIGIN = "application/vnd.cyclonedx+json", "application/vnd.in-toto+json"


def client(server: Server, **options: Any) -> Registry:
    return Registry(Login(server.host, "AWS", "password"), **options)


def hold(server: Server, tag: str = "1") -> str:
    """Put an image into the registry, as a push does; its digest."""
    layers = [{"size": 4}, {"size": 6}]
    content = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": layers}).encode()
    server.distribution("PUT", f"/v2/team/image/manifests/{tag}", content, OCI_MANIFEST)
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_an_image_has_one_digest_under_its_tags(server: Server) -> None:
    digest = hold(server)
    registry = client(server)
    registry.tag("team/image", digest, "1.2.3")
    for reference in ("1", "1.2.3", digest):
        assert registry.digest_of("team/image", reference) == digest
    assert registry.digest_of("team/image", "2") is None


def test_files_are_attached_read_back_and_replaced_by_kind(server: Server) -> None:
    digest = hold(server)
    registry = client(server)
    assert attached(server.host, "team/image", digest) == {}
    first = registry.attach("team/image", digest, b"packages", SBOM)
    origin = registry.attach("team/image", digest, b"origin", ORIGIN)
    assert attached(server.host, "team/image", digest) == {SBOM: first, ORIGIN: origin}
    assert read_attachment(server.host, "team/image", first) == b"packages"
    second = registry.attach("team/image", digest, b"other packages", SBOM)
    assert attached(server.host, "team/image", digest) == {SBOM: second, ORIGIN: origin}
    assert read_attachment(server.host, "team/image", second) == b"other packages"
    subject = json.loads(server.registry[f"/v2/team/image/manifests/{second}"])["subject"]
    assert subject["digest"] == digest


def test_a_blob_that_is_there_is_not_sent_again(server: Server) -> None:
    digest = hold(server)
    client(server).attach("team/image", digest, b"packages", SBOM)
    server.requests.clear()
    client(server).attach("team/image", digest, b"packages", SBOM)
    assert [method for method, _ in server.requests if method in ("POST", "PATCH")] == []


def test_a_registry_that_lists_referrers_itself_gets_no_tag_for_them(server: Server) -> None:
    server.lists_referrers = True
    digest = hold(server)
    own = client(server).attach("team/image", digest, b"packages", SBOM)
    assert server.tags("team/image") == {"1": digest}
    assert f"/v2/team/image/manifests/{own}" in server.registry


def test_an_image_that_is_gone_is_neither_tagged_nor_given_files(server: Server) -> None:
    with pytest.raises(ServiceError, match=f"team/image@{NOWHERE} is not there to be tagged"):
        client(server).tag("team/image", NOWHERE, "1")
    with pytest.raises(ServiceError, match=f"team/image@{NOWHERE} is not there to attach a file to"):
        client(server).attach("team/image", NOWHERE, b"x", SBOM)
    assert server.registry == {}


@pytest.mark.parametrize(
    "read",
    [
        lambda registry, digest: registry.digest_of("team/image", digest),
        lambda registry, digest: registry.tag("team/image", digest, "2"),
        lambda registry, digest: registry.attach("team/image", digest, b"x", SBOM),
    ],
    ids=["digest", "tag", "attach"],
)
def test_a_manifest_of_other_bytes_is_never_taken_for_the_image(
    server: Server, read: Callable[[Registry, str], object]
) -> None:
    digest = hold(server)
    server.registry[f"/v2/team/image/manifests/{digest}"] += b" "
    with pytest.raises(VerificationError, match=f"the manifest of {digest} has the digest"):
        read(client(server), digest)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, PermissionRefusedError), (403, PermissionRefusedError), (400, ServiceError), (500, ServiceError)],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_refusal_names_the_registry_the_call_and_the_servers_words(
    server: Server, status: int, kind: type[Exception], method: str
) -> None:
    digest = hold(server)
    server.refuses[method] = status
    with pytest.raises(
        kind, match=f"{server.host} refuse.? ?{method}|{server.host} refused {method}"
    ) as caught:
        client(server).tag("team/image", digest, "2")
    assert type(caught.value) is kind
    assert str(caught.value).endswith(": the server says no")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_registry_is_asked_again_and_then_said_to_be_out_of_reach(server: Server, status: int) -> None:
    server.refuses["GET"] = status
    with pytest.raises(ServiceTroubleError, match=f"The registry {server.host} could not be reached"):
        client(server, attempts=2, seconds=5).digest_of("team/image", "1")
    assert len(server.requests) == 2


def test_a_registry_that_is_not_there_is_trouble() -> None:
    with pytest.raises(ServiceTroubleError, match=r"127\.0\.0\.1:1 could not be reached"):
        Registry(Login("127.0.0.1:1", "", ""), attempts=1, seconds=5).digest_of("team/image", "1")
