"""Use ECR through its API: find an image, log in, read whether tags can move and what a scan found.

It pulls and changes nothing. The set-up creates the repository. A push does not, because a misspelt name
would create a new one.
"""

import base64
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trainyard.errors import ConfigError, CredentialsRefusedError, PermissionRefusedError
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.images.local_builder import Login

_NO_REPOSITORY = "RepositoryNotFoundException"
_MISSING = ("ImageNotFoundException", _NO_REPOSITORY)
# Prefixes of tags that are set before the scan, and of lists of an image's attachments.
_NOT_RELEASED = ("build-", "sha256-")
_POLL_SECONDS = 3.0
_HOST = re.compile(r"(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", re.ASCII)


def no_repository(name: str, region: str) -> str:
    """Return the message for a repository that does not exist, with the command that makes one.

    Builds in CodeBuild may push to the first repository and to those named PROJECT/NAME.
    """
    made = name if "/" in name else f"trainyard/{name}"
    other = "" if made == name else ", and name that, to which builds in CodeBuild may push"
    return (
        f"ECR of {region} has no repository {name}, so an image could not be pushed there. Make one with "
        f"aws ecr create-repository --region {region} --repository-name {made} "
        f"--image-scanning-configuration scanOnPush=true{other}, or name another."
    )


def registry_host(account: str, region: str) -> str:
    """Return the name of ECR's registry in an account and region."""
    return f"{account}.dkr.ecr.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")


def find_digest(
    *,
    account: str,
    region: str,
    repository: str,
    tag: str,
    digest: str,
    aws: AwsAccount | None = None,
    needs_repository: bool = False,
) -> str | None:
    """Return the digest of an image named by tag or digest; None if the registry does not have it.

    Pass `aws` for several requests: making a client takes time. With `needs_repository`, a repository that
    does not exist is a ConfigError. Raises PermissionRefusedError when AWS refuses the caller, ServiceError
    when it refuses otherwise, ServiceTroubleError when it cannot be reached.
    """
    try:
        answer = (aws or AwsAccount(region)).call(
            "ecr",
            "describe_images",
            what=f"find {repository} in ECR",
            absent=_MISSING[:1] if needs_repository else _MISSING,
            missing={_NO_REPOSITORY: no_repository(repository, region)},
            registryId=account,
            repositoryName=repository,
            imageIds=[{"imageDigest": digest} if digest else {"imageTag": tag or "latest"}],
        )
    except CredentialsRefusedError as error:
        # The check of a cluster does without ECR's answer, and ends only if the cluster refuses credentials.
        raise PermissionRefusedError(str(error)) from None
    details = (answer or {}).get("imageDetails") or ()
    return str(details[0]["imageDigest"]) if details else None


def image_or_newest(named: str, environment: Mapping[str, str], *, region: str = "") -> str:
    """`named`, or the newest image of the first repository in $ECR_REPOSITORY; empty if neither is given."""
    repository = (environment.get("ECR_REPOSITORY", "").split() or [""])[0]
    return named if named or not repository else newest_image(repository, region=region)


def newest_image(repository: str, *, region: str = "") -> str:
    """The URI, with its digest, of the released image pushed last. Raises ConfigError if there is none.

    `repository` is a name in the registry of the account. Also raises ServiceError and its subclasses when
    AWS refuses or cannot be reached.
    """
    aws = AwsAccount(region)
    words: dict[str, Any] = {"what": f"find the newest image of {repository} in ECR"}
    words["missing"] = dict.fromkeys(
        _MISSING, f"ECR has no repository {repository}; name the image with --image-uri"
    )
    found = aws.call("ecr", "describe_repositories", repositoryNames=[repository], **words)["repositories"][0]
    images = aws.pages("ecr", "describe_images", "imageDetails", repositoryName=repository, **words)
    digest = newest_digest(images)
    if digest is None:
        raise ConfigError(
            f"the repository {repository} in ECR holds no released image; push one, or use --image-uri"
        )
    return f"{found['repositoryUri']}@{digest}"


def newest_digest(images: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the digest of the released image that was pushed last; None if there is none.

    `images` are ECR's `imageDetails`. An image is released once it has a tag that `image push` sets after
    the scan. An image that failed its scan keeps only `build-…`.
    """
    released = [image for image in images if any(map(_releases, image.get("imageTags") or ()))]
    if not released:
        return None
    return str(max(released, key=lambda image: str(image["imagePushedAt"]))["imageDigest"])


def _releases(tag: str) -> bool:
    return not tag.startswith(_NOT_RELEASED) and "cache" not in tag


def login_to(host: str) -> Login | None:
    """Return the login for the registry `host`; None if it is not ECR and so needs no login from here."""
    place = ecr_place(host)
    return EcrRepository("", place[1]).login() if place else None


def ecr_place(host: str) -> tuple[str, str] | None:
    """Return the account and region of a registry of ECR; None for any other host."""
    match = _HOST.fullmatch(host)
    return (match[1], match[2]) if match else None


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
        """Return whether waiting can help. Enhanced scanning is ACTIVE before its findings and after them."""
        return self.status in ("IN_PROGRESS", "PENDING", "NONE") or (
            self.status == "ACTIVE" and not self.completed
        )


class EcrRepository:
    """One repository of the account's registry in a region."""

    def __init__(self, name: str, region: str) -> None:
        self._aws, self.name = AwsAccount(region), name
        self.region = self._aws.region

    def fixed_tags(self) -> Callable[[str], bool]:
        """Return a function that answers whether a tag, once set, cannot be moved.

        Raises ConfigError if there is no such repository.
        """
        what = f"describe the repository {self.name} in ECR"
        found = self._call("describe_repositories", what, repositoryNames=[self.name])["repositories"][0]
        mutability = str(found.get("imageTagMutability", ""))
        filters = [str(one["filter"]) for one in found.get("imageTagMutabilityExclusionFilters") or ()]
        # IMMUTABLE_WITH_EXCLUSION: tags that match a filter may move; MUTABLE_WITH_EXCLUSION: they may not.
        excluded = re.compile("|".join(re.escape(one).replace(r"\*", ".*") for one in filters) or r"(?!)")
        return lambda tag: mutability.startswith("IMMUTABLE") != bool(excluded.fullmatch(tag))

    def login(self) -> Login:
        """Return the login for the registry, which is valid for some hours."""
        data = self._call("get_authorization_token", "log in to ECR")["authorizationData"][0]
        user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
        return Login(urlsplit(data["proxyEndpoint"]).netloc, user, password)

    def scan(self, digest: str, *, seconds: float, pause: Callable[[float], None] = time.sleep) -> Scan:
        """Return the findings of an image's scan, once it has ended or the time is over."""
        end, what = time.monotonic() + seconds, f"read the scan of {self.name}@{digest} in ECR"
        image = {"repositoryName": self.name, "imageId": {"imageDigest": digest}}
        while True:
            answer = self._call(
                "describe_image_scan_findings", what, absent=("ScanNotFoundException",), **image
            )
            found = scan_of(answer or {})
            if not found.runs or time.monotonic() > end:
                return found
            pause(_POLL_SECONDS)

    def _call(self, operation: str, what: str, **arguments: Any) -> Any:
        missing = {_NO_REPOSITORY: no_repository(self.name, self.region)}
        return self._aws.call("ecr", operation, what=what, missing=missing, **arguments)


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
