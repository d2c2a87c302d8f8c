"""The states of a scan in ECR, and when to stop waiting for it."""

from typing import Any

import pytest

from trainyard.gateways.images.ecr import scan_of

DONE = {"imageScanCompletedAt": "2026-01-01", "findingSeverityCounts": {"HIGH": 1}}


@pytest.mark.parametrize(
    ("status", "findings", "runs"),
    [
        ("COMPLETE", DONE, False),
        ("ACTIVE", {}, True),
        ("ACTIVE", DONE, False),
        ("IN_PROGRESS", {}, True),
        ("PENDING", DONE, True),
        ("FAILED", {}, False),
    ],
)
def test_an_active_scan_is_waited_for_until_it_has_findings(
    status: str, findings: dict[str, Any], runs: bool
) -> None:
    scan = scan_of({"imageScanStatus": {"status": status}, "imageScanFindings": findings})
    assert scan.runs is runs
    assert scan.completed is bool(findings)
    assert scan_of({}).runs


def test_findings_of_enhanced_scanning_are_named() -> None:
    found = {"severity": "HIGH", "packageVulnerabilityDetails": {"vulnerabilityId": "CVE-1"}}
    assert scan_of({"imageScanFindings": DONE | {"enhancedFindings": [found]}}).names == {"CVE-1": "HIGH"}
