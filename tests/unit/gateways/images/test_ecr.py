"""A repository in ECR: its login, its tags, its scan, and the errors when AWS refuses."""

from typing import Any

import pytest
from tests.integration.scripted_aws import REGION
from tests.unit.gateways.images.conftest import Server

from trainyard.errors import ConfigError, CredentialsRefusedError, ServiceTroubleError
from trainyard.gateways.images.ecr import (
    EcrRepository,
    Scan,
    login_to,
    newest_digest,
    newest_image,
    scan_of,
)
from trainyard.gateways.images.local_builder import Login

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
