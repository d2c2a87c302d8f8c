"""Ask the registry of an image for its digest. The function that asks ECR is passed in."""

import re
from collections.abc import Callable

from trainyard.cluster.snapshot import Image, MissingData
from trainyard.errors import ServiceError

_URI = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[a-z0-9][a-z0-9._/-]*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


def find_image(uri: str, find_digest: Callable[..., str | None]) -> Image | MissingData:
    """Ask the registry about `uri`.

    `find_digest` returns the digest for `account`, `region`, `repository`, `tag` and `digest`, or None if
    there is no such image.
    """
    name = _URI.fullmatch(uri)
    if name is None:
        return MissingData("it is not in ECR" if uri else "no image is named", absent=True)
    try:
        digest = find_digest(**name.groupdict(""))
    except ServiceError as error:
        return MissingData(str(error))
    registry = f"ECR of {name['account']} in {name['region']}"
    return Image(uri, registry, name["region"], found=digest is not None, digest=digest or "")


def pin_digest(uri: str, seen: Image | MissingData) -> str:
    """Return `uri` with the digest from its registry; unchanged if the digest is not known."""
    if "@" in uri or isinstance(seen, MissingData) or not seen.digest:
        return uri
    folder, slash, last = uri.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{seen.digest}"
