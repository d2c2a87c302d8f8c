"""Find out whether a registry still holds an image by its digest, so that it can be pulled again.

ECR answers through its API, any other registry to one request without a login. Name and digest come from a
run's record, which anybody may have written: the answer comes within seconds, whatever host they name.
"""

import hashlib
import re

from trainyard.errors import (
    ConfigError,
    ServiceError,
    VerificationError,
    WaitTimeoutError,
)
from trainyard.gateways.bounded_calls import within
from trainyard.gateways.http_requests import is_loopback, send_request
from trainyard.gateways.images.ecr import ecr_place, find_digest

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ATTEMPT_SECONDS = 3.0
# For the complete answer: a registry may send its bytes one by one, or redirect to others.
_SECONDS = 8.0
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?|\[[0-9a-fA-F:]{2,39}\](?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9._/-]{0,254}")
_Answer = tuple[str | None, str]


def find_held_image(name: str, digest: str, *, seconds: float = _SECONDS) -> _Answer:
    """Return why the image cannot be pulled again (None if no reason is known), and the observation.

    A registry that cannot be reached is not a reason; the observation states it.
    """
    host, slash, rest = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        return None, "the image's registry is not named (TRAINYARD_IMAGE_DIGEST), so it was not queried"
    repository, digits = rest.partition(":")[0], _DIGEST.fullmatch(digest)
    if not (_HOST.fullmatch(host) and _REPOSITORY.fullmatch(repository) and digits):
        return None, "the recorded name or digest of the image is not valid, so no registry was queried"
    digest, place = f"sha256:{digits[1]}", ecr_place(host)
    try:
        is_held = within(
            seconds,
            lambda: (
                _is_in_ecr(*place, repository, digest) if place else _has_manifest(host, repository, digest)
            ),
        )
    except VerificationError as error:
        return str(error), ""
    except (ConfigError, ServiceError, WaitTimeoutError) as error:
        cause = str(error) if host in str(error) else f"{host}: {error}"
        return None, f"the image's registry could not be queried: {cause}"
    if not is_held:
        return f"{host} holds no image {repository}@{digest}: it was deleted, or never pushed", ""
    return None, f"{host} holds the image under that digest"


def _is_in_ecr(account: str, region: str, repository: str, digest: str) -> bool:
    found = find_digest(account=account, region=region, repository=repository, tag="", digest=digest)
    return found is not None


def _has_manifest(host: str, repository: str, digest: str) -> bool:
    """Return whether a registry other than ECR has the manifest. Raises VerificationError for other bytes.

    https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
    """
    address = f"{'http' if is_loopback(host) else 'https'}://{host}/v2/{repository}/manifests/{digest}"
    headers = {"Accept": ", ".join(MANIFEST_TYPES), "User-Agent": "Trainyard"}

    answer = send_request("GET", address, seconds=_ATTEMPT_SECONDS, headers=headers)
    if answer.status not in (200, 404):
        raise ServiceError(f"{host} answered {answer.status}")
    found = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
    if answer.status == 200 and found != digest:
        raise VerificationError(f"{host}/{repository}: the manifest of {digest} has the digest {found}")
    return answer.status == 200
