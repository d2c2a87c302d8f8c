"""A repository in ECR: its login, whether its tags can move, and the findings of its scan.

The set-up creates the repository. A push does not, because a misspelt name would create a new one.
"""

import base64
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trainyard.errors import ConfigError
from trainyard.gateways.aws_refusals import ask_aws, client_settings, unsent
from trainyard.gateways.images.local_builder import Login

_POLL_SECONDS = 3.0
_HOST = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", re.ASCII)


def login_to(host: str) -> Login | None:
    """The login for the registry `host`; None if it is not ECR and so needs no login from here."""
    match = _HOST.fullmatch(host)
    return EcrRepository("", match[1]).login() if match else None


@dataclass(frozen=True)
class Scan:
    """The state and findings of a scan."""

    status: str
    """COMPLETE, ACTIVE, IN_PROGRESS, FAILED, …; NONE if there is none."""
    counts: Mapping[str, int]
    """Severity in capital letters -> findings."""
    names: Mapping[str, str]
    """CVE -> severity, from the first page."""
    completed: bool = False
    """Whether ECR reports when the findings were completed."""

    @property
    def runs(self) -> bool:
        """Whether waiting can help. Enhanced scanning is ACTIVE before its findings and after them."""
        return self.status in ("IN_PROGRESS", "PENDING", "NONE") or (
            self.status == "ACTIVE" and not self.completed
        )


class EcrRepository:
    """One repository of the account's registry in a region."""

    def __init__(self, name: str, region: str) -> None:
        import boto3
        from botocore.exceptions import BotoCoreError

        try:
            session = boto3.session.Session(region_name=region or None)
            self._client = session.client("ecr", config=client_settings(attempts=4))
        except BotoCoreError as error:
            raise unsent(error, "use ECR", region=region) from None
        except ValueError as error:
            raise ConfigError(f"{str(error).rstrip('.')}; name a region with --region") from None
        self.name, self.region = name, str(self._client.meta.region_name)

    def fixed_tags(self) -> Callable[[str], bool]:
        """Whether a tag, once set, cannot be set again. Raises ConfigError if there is no such repository."""
        found = self._asked(
            lambda: self._client.describe_repositories(repositoryNames=[self.name])["repositories"],
            f"describe the repository {self.name} in ECR",
        )[0]
        said = str(found.get("imageTagMutability", ""))
        filters = [str(one["filter"]) for one in found.get("imageTagMutabilityExclusionFilters") or ()]
        # IMMUTABLE_WITH_EXCLUSION: tags that match a filter may move; MUTABLE_WITH_EXCLUSION: they may not.
        excluded = re.compile("|".join(re.escape(one).replace(r"\*", ".*") for one in filters) or r"(?!)")
        return lambda tag: said.startswith("IMMUTABLE") != bool(excluded.fullmatch(tag))

    def login(self) -> Login:
        """The login for the registry, which is valid for some hours."""
        data = self._asked(
            lambda: self._client.get_authorization_token()["authorizationData"][0], "log in to ECR"
        )
        user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
        return Login(urlsplit(data["proxyEndpoint"]).netloc, user, password)

    def scan(self, digest: str, *, seconds: float, pause: Callable[[float], None] = time.sleep) -> Scan:
        """The findings of an image's scan, once it has ended or the time is over."""
        end = time.monotonic() + seconds
        while True:
            found = self._scan(digest)
            if not found.runs or time.monotonic() > end:
                return found
            pause(_POLL_SECONDS)

    def _scan(self, digest: str) -> Scan:
        image = {"repositoryName": self.name, "imageId": {"imageDigest": digest}}
        answer = self._asked(
            lambda: self._client.describe_image_scan_findings(**image),
            f"read the scan of {self.name}@{digest} in ECR",
            absent=("ScanNotFoundException",),
        )
        return scan_of(answer or {})

    def _asked(self, work: Callable[[], Any], what: str, *, absent: tuple[str, ...] = ()) -> Any:
        missing = (
            f"ECR of {self.region} has no repository {self.name}. Make it once with "
            f"infrastructure/setup-codebuild.sh --ecr-repository {self.name} --region {self.region}"
        )
        return ask_aws(
            work,
            what,
            service="ecr",
            region=self.region,
            absent=absent,
            missing={"RepositoryNotFoundException": missing},
        )


def scan_of(answer: Mapping[str, Any]) -> Scan:
    """The scan in ECR's answer; basic scanning lists `findings`, enhanced scanning `enhancedFindings`."""
    findings = answer.get("imageScanFindings") or {}
    named = {str(f.get("name", "")): str(f.get("severity", "")) for f in findings.get("findings") or ()}
    for one in findings.get("enhancedFindings") or ():
        details = one.get("packageVulnerabilityDetails") or {}
        named[str(details.get("vulnerabilityId") or one.get("title", ""))] = str(one.get("severity", ""))
    status = str((answer.get("imageScanStatus") or {}).get("status") or "NONE")
    completed = bool(findings.get("imageScanCompletedAt"))
    return Scan(status, findings.get("findingSeverityCounts") or {}, named, completed)
