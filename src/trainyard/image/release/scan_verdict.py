"""Decide whether the findings of a registry's scan allow an image to be deployed."""

from collections.abc import Mapping
from dataclasses import dataclass

SEVERITIES = ("critical", "high", "medium", "low")


@dataclass(frozen=True)
class ScanVerdict:
    """The verdict."""

    ok: bool
    says: str


def judge_scan(
    status: str,
    counts: Mapping[str, int],
    names: Mapping[str, str],
    threshold: str,
    *,
    completed: bool = False,
) -> ScanVerdict:
    """Judge a scan: `status` is ECR's, `counts` its findings by severity, `names` CVE -> severity.

    The threshold `none` passes everything. With any other threshold a scan that did not complete fails.
    Enhanced scanning is always ACTIVE, so `completed` says whether its findings exist yet.
    """
    if threshold == "none":
        return ScanVerdict(True, "findings are not judged (--fail-on none)")
    if status != "COMPLETE" and not (status == "ACTIVE" and completed):
        told = "was not scanned" if status in ("", "NONE") else f"has a scan that is {status.lower()}"
        return ScanVerdict(
            False,
            f"the image {told}; turn on scan on push for the repository, or pass --fail-on none",
        )
    found = {key.lower(): count for key, count in counts.items()}
    for severity in map(str.lower, names.values()):  # a finding counts, whatever the counts say
        found[severity] = max(found.get(severity, 0), 1)
    bad = SEVERITIES[: SEVERITIES.index(threshold) + 1]
    over = {severity: found[severity] for severity in bad if found.get(severity)}
    if not over:
        return ScanVerdict(True, f"no finding of severity {threshold} or above")
    worst = [name for name, severity in sorted(names.items()) if severity.lower() in over][:5]
    listed = ", ".join(f"{count} {severity}" for severity, count in over.items())
    return ScanVerdict(False, f"the scan found {listed}: {', '.join(worst) or 'see the registry'}")
