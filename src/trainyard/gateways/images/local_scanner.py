"""Scan an image on this machine with trivy or grype, for registries that do not scan.

The scanner keeps its own database and loads it when it is old, which needs the network.
https://trivy.dev/latest/docs/target/container_image/ https://github.com/anchore/grype
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, ServiceError
from trainyard.gateways.images.ecr import Scan
from trainyard.gateways.images.local_builder import LocalBuilder, last_line
from trainyard.gateways.process import run_program

SCANNERS = ("trivy", "grype")


def find_scanner(wanted: str) -> str:
    """Return the scanner to use: `wanted`, or with `auto` the first that is installed; empty for none.

    Raises ConfigError if the wanted scanner is not installed.
    """
    if wanted == "none":
        return ""
    here = [name for name in SCANNERS if shutil.which(name)]
    if wanted == "auto":
        return here[0] if here else ""
    if wanted not in here:
        raise ConfigError(f"--scanner {wanted}: {wanted} is not installed; install it, or use none")
    return wanted


def scan_image(scanner: str, builder: LocalBuilder, image: str, *, seconds: float) -> Scan:
    """Return what the scanner finds in an image of this machine. Raises ServiceError if it fails."""
    with tempfile.TemporaryDirectory(prefix="trainyard-scan-") as folder:
        archive = Path(folder, "image.tar")
        builder.save(image, archive)
        words = {
            "trivy": ["trivy", "image", "--quiet", "--format=json", "--scanners=vuln", f"--input={archive}"],
            "grype": ["grype", f"docker-archive:{archive}", "--quiet", "--output=json"],
        }
        done = run_program(words[scanner], seconds=seconds)
    if not done.ok:
        raise ServiceError(f"{scanner} could not scan {image}: {last_line(done)}")
    try:
        found = dict(_FINDINGS[scanner](json.loads(done.stdout)))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ServiceError(f"{scanner} scanned {image}, but its output cannot be read: update it") from None
    return Scan("COMPLETE", Counter(found.values()), found, completed=True)


def _trivy_findings(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    # trivy omits `Results` for an image that holds nothing which it can scan.
    for result in report.get("Results") or ():
        for one in result.get("Vulnerabilities") or ():
            yield str(one["VulnerabilityID"]), str(one["Severity"]).upper()


def _grype_findings(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for match in report["matches"]:
        one = match["vulnerability"]
        yield str(one["id"]), str(one["severity"]).upper()


_FINDINGS = {"trivy": _trivy_findings, "grype": _grype_findings}
