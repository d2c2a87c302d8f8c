"""Scanning on this machine: which scanner, how it is called, and its report. A script stands in for it.

The reports are cut from the published examples of both programs' JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.shebang import interpreter_line

from trainyard.errors import ConfigError, ServiceError
from trainyard.gateways.images.local_builder import LocalBuilder
from trainyard.gateways.images.local_scanner import find_scanner, scan_image

LIBC = {"VulnerabilityID": "CVE-2023-1", "PkgName": "libc6", "Severity": "CRITICAL"}
ZLIB = {"VulnerabilityID": "CVE-2023-2", "PkgName": "zlib1g", "Severity": "LOW"}
TRIVY = {
    "SchemaVersion": 2,
    "Results": [
        {"Target": "image.tar (debian 12.1)", "Vulnerabilities": [LIBC, ZLIB]},
        {"Target": "Python", "Class": "lang-pkgs"},
    ],
}
GRYPE = {
    "matches": [
        {"vulnerability": {"id": "CVE-2023-1", "severity": "Critical"}, "artifact": {"name": "libc6"}},
        {"vulnerability": {"id": "CVE-2023-2", "severity": "Low"}, "artifact": {"name": "zlib1g"}},
    ]
}
UNNAMED: dict[str, Any] = {"Results": [{"Vulnerabilities": [{}]}]}


class Saves(LocalBuilder):
    """A builder whose images are one empty file."""

    def save(self, image: str, target: Path) -> None:
        target.write_bytes(b"")


def install(folder: Path, name: str, report: Any, code: int = 0) -> None:
    """Put a stand-in for a scanner into `folder`; it refuses to run without the archive that it must read."""
    (folder / name).write_text(
        interpreter_line(sys.executable) + "import pathlib, re, sys\n"
        "(archive,) = re.findall(r'(?:--input=|docker-archive:)(\\S+)', ' '.join(sys.argv))\n"
        "assert pathlib.Path(archive).is_file()\n"
        f"print({json.dumps(report)!r})\n"
        f"sys.exit({code})\n"
    )
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("name", "report"), [("trivy", TRIVY), ("grype", GRYPE)])
def test_the_findings_of_a_scanner_are_counted_by_severity(name: str, report: Any, programs: Path) -> None:
    install(programs, name, report)
    assert find_scanner("auto") == find_scanner(name) == name
    scan = scan_image(name, Saves("buildah"), "a:1", seconds=60)
    assert dict(scan.counts) == {"CRITICAL": 1, "LOW": 1}
    assert scan.names == {"CVE-2023-1": "CRITICAL", "CVE-2023-2": "LOW"}
    assert scan.completed and not scan.runs


def test_without_a_scanner_nothing_scans_and_a_named_one_is_refused(programs: Path) -> None:
    assert find_scanner("auto") == find_scanner("none") == ""
    with pytest.raises(ConfigError, match="grype is not installed"):
        find_scanner("grype")


@pytest.mark.parametrize(("report", "code"), [(TRIVY, 1), ([], 0), (UNNAMED, 0)])
def test_a_scan_without_a_result_is_no_clean_image(report: Any, code: int, programs: Path) -> None:
    install(programs, "trivy", report, code)
    with pytest.raises(ServiceError, match="trivy"):
        scan_image("trivy", Saves("buildah"), "a:1", seconds=60)
