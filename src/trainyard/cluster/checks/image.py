"""Check that the image exists where the cluster pulls it from, and that no pod currently fails to pull it.

The function that asks ECR for a digest is passed in.
"""

import re
from collections.abc import Callable, Iterator

from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.snapshot import Image, MissingData
from trainyard.errors import ServiceError
from trainyard.plan.finding import Finding

_URI = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[a-z0-9][a-z0-9._/-]*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_PULL = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.job.image:
        yield Finding.skipped("no image is named (--image-uri)")
        return
    failing = list(_failing(facts))
    yield from failing
    image = facts.snapshot.image
    if isinstance(image, MissingData):
        yield Finding.skipped(f"the registry was not queried: {image.reason}")
        return
    found = list(_judge_image(image, facts))
    yield from found
    if not found and not failing:
        yield Finding.success(f"{image.uri} exists" + (f" ({image.digest[:19]}…)" if image.digest else ""))


def _judge_image(image: Image, facts: Facts) -> Iterator[Finding]:
    region = facts.snapshot.region
    if not image.found:
        yield Finding.error(
            f"{image.uri} does not exist in {image.registry}", "push it, or correct --image-uri"
        )
    if image.region and region and image.region != region:
        yield Finding.warning(
            f"{image.uri} is in {image.region}, the cluster in {region}: every node pulls it across regions",
            f"copy the image to ECR in {region}",
        )


def _failing(facts: Facts) -> Iterator[Finding]:
    pods = facts.snapshot.pods
    if isinstance(pods, MissingData):
        return
    wanted = facts.job.image
    failing = [f"{pod.namespace}/{pod.name}" for pod in pods if pod.waiting in _PULL and wanted in pod.images]
    if failing:
        yield Finding.error(
            f"{list_names(failing)}: cannot pull this image now",
            "see its events for the reason: kubectl describe pod; nodes need ecr:BatchGetImage and "
            "ecr:GetDownloadUrlForLayer, or imagePullSecrets",
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


CHECK = Check("image", "the image and its registry", judge)
