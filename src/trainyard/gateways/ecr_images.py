"""Find the newest released image of a repository in ECR, by digest. Nothing is pulled or changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.errors import ConfigError
from trainyard.gateways.aws_refusals import code_of, refusal, unsent

_MISSING = ("RepositoryNotFoundException", "ImageNotFoundException")
_NOT_RELEASED = ("build-", "sha256-")
"""Prefixes of tags that are set before the scan, and of lists of an image's attachments."""


def image_or_newest(named: str, environment: Mapping[str, str], *, region: str = "") -> str:
    """`named`, or the newest image of the repository in $ECR_REPOSITORY; empty if neither is given."""
    repository = environment.get("ECR_REPOSITORY", "")
    return named if named or not repository else newest_image(repository, region=region)


def newest_image(repository: str, *, region: str = "") -> str:
    """The URI, with its digest, of the released image pushed last. Raises ConfigError if there is none.

    `repository` is a name in the registry of the account. Also raises ServiceError and its subclasses when
    AWS refuses or cannot be reached.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    what = f"look for the newest image of {repository} in ECR"
    retries = {"mode": "standard", "total_max_attempts": 3}
    settings = Config(connect_timeout=5, read_timeout=20, retries=retries)
    client: Any = None
    try:
        client = boto3.session.Session(region_name=region or None).client("ecr", config=settings)
        uri = client.describe_repositories(repositoryNames=[repository])["repositories"][0]["repositoryUri"]
        pages = client.get_paginator("describe_images").paginate(repositoryName=repository)
        images = [image for page in pages for image in page.get("imageDetails") or ()]
    except ClientError as error:
        code, said = code_of(error)
        if code in _MISSING:
            raise ConfigError(
                f"ECR has no repository {repository}; name the image with --image-uri"
            ) from None
        raise refusal(code, said, what, service="ecr", region=client.meta.region_name) from None
    except BotoCoreError as error:
        raise unsent(error, what, region=region) from None
    except ValueError as error:
        raise ConfigError(f"cannot {what}: {error}") from None
    digest = newest_digest(images)
    if digest is None:
        raise ConfigError(
            f"the repository {repository} in ECR holds no released image; push one, or use --image-uri"
        )
    return f"{uri}@{digest}"


def newest_digest(images: Iterable[Mapping[str, Any]]) -> str | None:
    """The digest of the released image that was pushed last; None if there is none.

    `images` are ECR's `imageDetails`. An image is released once it has a tag that push_image.py sets after
    the scan. An image that failed its scan keeps only `build-…`.
    """
    released = [image for image in images if any(map(_releases, image.get("imageTags") or ()))]
    if not released:
        return None
    return str(max(released, key=lambda image: str(image["imagePushedAt"]))["imageDigest"])


def _releases(tag: str) -> bool:
    return not tag.startswith(_NOT_RELEASED) and "cache" not in tag
