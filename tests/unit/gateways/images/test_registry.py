"""A registry through oras, a repository in ECR, and the layers of a saved image."""

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.integration.scripted_aws import REGION
from tests.unit.gateways.images.conftest import Install, Server

from trainyard.errors import (
    ConfigError,
    CredentialsRefusedError,
    DamagedFileError,
    ServiceError,
    ServiceTroubleError,
    VerificationError,
)
from trainyard.gateways.images.ecr import EcrRepository, Scan, login_to, newest_digest, newest_image, scan_of
from trainyard.gateways.images.image_layers import read_layers
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


def test_the_login_is_in_no_command_and_no_file(install: Install, server: Server, tmp_path: Path) -> None:
    install("oras")
    hold(server)
    Registry(Login(server.host, "AWS", "password")).digest_of("team/image", "1")
    ((words, logins),) = [json.loads(line) for line in (tmp_path / "oras-calls").read_text().splitlines()]
    assert set(logins) == {server.host} and "password" not in str(words)
    (file,) = [word.partition("=")[2] for word in words if word.startswith("--registry-config=")]
    assert not os.path.lexists(file)


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def saved_image(folder: Path, *layers: bytes, manifest: bytes | None = None) -> Path:
    names = [f"{number}/layer.tar" if number else "abc.tar" for number in range(len(layers))]
    listed = json.dumps([{"Layers": names}]).encode() if manifest is None else manifest
    path = folder / "image.tar"
    path.write_bytes(tar_of({"manifest.json": listed, **dict(zip(names, layers, strict=True))}))
    return path


def found(path: Path) -> list[tuple[str, str, str]]:
    def judge(name: str, head: bytes) -> str | None:
        if name.endswith(".pem"):
            return "a private key"
        return "a token" if head.startswith(b"token") else None

    return [(one.layer, one.path, one.kind) for one in read_layers(path, judge).found]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_secrets_of_every_layer_are_found_by_name_and_by_their_beginning(tmp_path: Path, mode: str) -> None:
    first = tar_of({"./home/key.pem": b"", "etc/passwd": b"root"}, mode)
    second = tar_of({"a/b": b"token of somebody", "c": b"xtoken"}, mode)
    assert found(saved_image(tmp_path, first, second)) == [
        ("abc", "home/key.pem", "a private key"),
        ("layer", "a/b", "a token"),
    ]


def test_of_a_large_file_only_the_name_is_looked_at(tmp_path: Path) -> None:
    content = b"token" + bytes(1 << 20)
    layer = tar_of({"large": content, "large.pem": content, "small": content[: 1 << 20]})
    assert [name for _, name, _ in found(saved_image(tmp_path, layer))] == ["large.pem", "small"]


def test_a_link_is_no_file(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("link.pem")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/key.pem"
        archive.addfile(entry)
    assert found(saved_image(tmp_path, made.getvalue())) == []


LAYER = tar_of({"a": b"1"})


def test_a_manifest_that_names_no_layers_is_damage(tmp_path: Path) -> None:
    listed = ('[{"Layers": null}]', '[{"Layers": [1]}]', '[{"Layers": ["b"]}]')
    for manifest in ("[]", "{}", "null", "[{}]", "[", "", *listed):
        with pytest.raises(DamagedFileError, match=r"image\.tar: is not an archive of an image"):
            found(saved_image(tmp_path, LAYER, manifest=manifest.encode()))


def test_a_file_that_is_no_image_is_damage(tmp_path: Path) -> None:
    torn = tar_of({"manifest.json": b"[{}]"}, "w:gz")[:-20]
    for content in (b"", b"no archive", tar_of({"other": b""}), torn):
        (tmp_path / "image.tar").write_bytes(content)
        with pytest.raises(DamagedFileError, match="is not an archive of an image"):
            found(tmp_path / "image.tar")


def test_a_layer_that_is_cut_off_is_damage(tmp_path: Path) -> None:
    for layer in (b"no archive", tar_of({"a": b"x" * 5000}, "w:gz")[:-20], LAYER[:700]):
        with pytest.raises(DamagedFileError, match="is not an archive of an image"):
            found(saved_image(tmp_path, layer))


DIGEST = "sha256:" + "a" * 64
URI = "1.dkr.ecr/trainer"


def repository() -> EcrRepository:
    return EcrRepository("trainer", REGION)


EXCEPT = [{"filterType": "WILDCARD", "filter": "latest*"}, {"filterType": "WILDCARD", "filter": "dev-*-x"}]
TAGS = {"1.2.3", "latest", "latest-2", "dev-1-x"}


def test_which_tags_are_set_once_is_what_ecr_says(server: Server) -> None:
    for said, filters, fixed in (
        ("IMMUTABLE", [], TAGS),
        ("MUTABLE", [], set()),
        ("", [], set()),
        ("IMMUTABLE_WITH_EXCLUSION", EXCEPT, {"1.2.3"}),
        ("MUTABLE_WITH_EXCLUSION", EXCEPT, TAGS - {"1.2.3"}),
    ):
        answer = {"imageTagMutability": said, "imageTagMutabilityExclusionFilters": filters}
        server.answers["DescribeRepositories"] = {"repositories": [answer]}
        is_fixed = repository().fixed_tags()
        assert {tag for tag in TAGS if is_fixed(tag)} == fixed, said


def test_a_registry_of_ecr_is_entered_with_its_token_and_no_other(server: Server) -> None:
    for host in (
        "ghcr.io",
        "127.0.0.1:5000",
        "1.dkr.ecr.us-west-2.amazonaws.com",
        "x.amazonaws.com.evil.org",
    ):
        assert login_to(host) is None
    assert server.calls == []
    for host in (
        "123456789012.dkr.ecr.us-west-2.amazonaws.com",
        "123456789012.dkr.ecr-fips.us-east-1.amazonaws.com",
        "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
    ):
        assert login_to(host) == Login(server.host, "AWS", "password")


ENDED = [("COMPLETE", None), ("FAILED", None), ("UNSUPPORTED_IMAGE", None), ("ACTIVE", 1.0)]
GOES_ON = [("ACTIVE", None), ("IN_PROGRESS", None), ("PENDING", None), (None, None)]


def test_a_scan_is_waited_for_until_it_has_ended_or_the_time_is_over(server: Server) -> None:
    ecr = repository()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        server.scan = {"imageScanStatus": {"status": "COMPLETE"}}

    for status, completed in (*ENDED, *GOES_ON):
        findings = {"imageScanCompletedAt": completed} if completed else {}
        given = {"imageScanFindings": findings} | ({"imageScanStatus": {"status": status}} if status else {})
        server.scan = given
        pauses.clear()
        found = ecr.scan(DIGEST, seconds=60, pause=pause)
        if (status, completed) in ENDED:
            assert (found.status, pauses) == (status, [])
            continue
        assert (found.status, len(pauses)) == ("COMPLETE", 1)
        server.scan = given
        assert ecr.scan(DIGEST, seconds=-1, pause=pause).status == (status or "NONE")
        assert len(pauses) == 1
    server.refusals["DescribeImageScanFindings"] = [("ScanNotFoundException", "none")]
    assert ecr.scan(DIGEST, seconds=-1) == Scan("NONE", {}, {}), "it was never scanned"


def test_the_findings_of_both_kinds_of_scans_are_named() -> None:
    enhanced = [
        {"packageVulnerabilityDetails": {"vulnerabilityId": "CVE-2"}, "severity": "HIGH"},
        {"title": "a finding without a package", "severity": "LOW"},
    ]
    findings = {
        "findings": [{"name": "CVE-1", "severity": "CRITICAL"}],
        "enhancedFindings": enhanced,
        "findingSeverityCounts": {"CRITICAL": 1, "HIGH": 1, "LOW": 1},
        "imageScanCompletedAt": 1,
    }
    scan = scan_of({"imageScanStatus": {"status": "ACTIVE"}, "imageScanFindings": findings})
    assert scan.names == {"CVE-1": "CRITICAL", "CVE-2": "HIGH", "a finding without a package": "LOW"}
    assert scan.counts == {"CRITICAL": 1, "HIGH": 1, "LOW": 1}
    assert scan.completed
    assert not scan.runs


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let botocore retry without a pause."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


@pytest.mark.usefixtures("server", "no_pauses")
def test_without_a_way_to_aws_or_credentials_the_cause_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ServiceTroubleError, match=f"AWS in {REGION} could not be reached to log in to ECR"):
        repository().login()
    with pytest.raises(ServiceTroubleError, match="could not be reached to find the newest image"):
        newest_image("trainer")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(CredentialsRefusedError, match="no AWS credentials to log in to ECR"):
        repository().login()
    with pytest.raises(CredentialsRefusedError, match="no AWS credentials to find the newest image"):
        newest_image("trainer")


def image(digest: str, pushed: int, *tags: str) -> dict[str, Any]:
    return {"imageDigest": digest, "imagePushedAt": pushed, "imageTags": list(tags)}


def test_the_newest_image_is_named_by_its_digest(server: Server) -> None:
    server.answers["DescribeRepositories"] = {"repositories": [{"repositoryUri": URI}]}
    released = [image("sha256:1", 100, "1.0"), image("sha256:2", 200, "1.1")]
    server.answers["DescribeImages"] = {"imageDetails": [*released, image("x", 300, "build-1")]}
    assert newest_image("trainer") == f"{URI}@sha256:2"
    server.answers["DescribeImages"] = {"imageDetails": [image("x", 300, "build-1")]}
    with pytest.raises(ConfigError, match="trainer in ECR holds no released image"):
        newest_image("trainer")
    for operation in ("DescribeRepositories", "DescribeImages"):
        server.refusals[operation] = [("RepositoryNotFoundException", "because")]
        with pytest.raises(ConfigError, match=r"ECR has no repository trainer; .*--image-uri"):
            newest_image("trainer")


def test_the_released_image_that_was_pushed_last_is_the_newest() -> None:
    old = {"imageDigest": "old", "imagePushedAt": "2026-01-01", "imageTags": ["build-1", "git-a"]}
    later = {"imageDigest": "new", "imagePushedAt": "2026-02-02"}
    for tags in (["1.2.3"], ["build-2", "content-a"], ["latest", "cache"]):
        assert newest_digest([later | {"imageTags": tags}, old]) == "new"
    for tags in (["build-2"], ["sha256-2"], ["buildcache"], ["build-2", "cache-main"], []):
        assert newest_digest([later | {"imageTags": tags}, old]) == "old"
        assert newest_digest([later | {"imageTags": tags}]) is None
