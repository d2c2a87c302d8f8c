"""Find an image in ECR by its tag or digest, or the newest released one. Nothing is pulled or changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.errors import ConfigError, CredentialsRefusedError, PermissionRefusedError
from trainyard.gateways.aws_refusals import ask_aws, client_settings, unsent

_NO_REPOSITORY = "RepositoryNotFoundException"
_MISSING = ("ImageNotFoundException", _NO_REPOSITORY)
_NOT_RELEASED = ("build-", "sha256-")
"""Prefixes of tags that are set before the scan, and of lists of an image's attachments."""


def ecr_client(region: str, session: Any = None) -> Any:
    """Create the client for ECR. That takes a fifth of a second, so several questions share one.

    `session` is boto3's, if there is one already: it keeps the data of botocore that it has read. Raises
    ConfigError and ServiceError for settings or credentials that cannot be used.
    """
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        session = session or boto3.session.Session(region_name=region or None)
        return session.client("ecr", region_name=region or None, config=client_settings())
    except BotoCoreError as error:
        raise unsent(error, "use ECR", region=region) from None


def find_digest(
    *,
    account: str,
    region: str,
    repository: str,
    tag: str,
    digest: str,
    client: Any = None,
    needs_repository: bool = False,
) -> str | None:
    """The digest of an image named by tag or digest; None if the registry does not have it.

    Pass the `client` of `ecr_client` when several questions are asked. With `needs_repository`, a repository
    that does not exist is a ConfigError. Raises PermissionRefusedError when AWS refuses the caller,
    ServiceError when it refuses otherwise, ServiceTroubleError when it cannot be reached.
    """
    what = f"look for {repository} in ECR"
    wanted = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    absent = _MISSING[:1] if needs_repository else _MISSING
    no_repository = (
        f"ECR of {region} has no repository {repository}, so an image could not be pushed there. "
        f"Make it once with infrastructure/setup-codebuild.sh --ecr-repository {repository} "
        f"--region {region}, or name another with --image."
    )
    try:
        asked = client or ecr_client(region)
        answer = ask_aws(
            lambda: asked.describe_images(registryId=account, repositoryName=repository, imageIds=[wanted]),
            what,
            service="ecr",
            region=region,
            absent=absent,
            missing={_NO_REPOSITORY: no_repository},
        )
    except CredentialsRefusedError as error:
        # A look at a cluster does without ECR's answer, and ends only where the cluster refuses credentials.
        raise PermissionRefusedError(str(error)) from None
    except ValueError as error:
        raise ConfigError(f"cannot {what}: {error}") from None
    details = (answer or {}).get("imageDetails") or ()
    return str(details[0]["imageDigest"]) if details else None


def image_or_newest(named: str, environment: Mapping[str, str], *, region: str = "") -> str:
    """`named`, or the newest image of the repository in $ECR_REPOSITORY; empty if neither is given."""
    repository = environment.get("ECR_REPOSITORY", "")
    return named if named or not repository else newest_image(repository, region=region)


def newest_image(repository: str, *, region: str = "") -> str:
    """The URI, with its digest, of the released image pushed last. Raises ConfigError if there is none.

    `repository` is a name in the registry of the account. Also raises ServiceError and its subclasses when
    AWS refuses or cannot be reached.
    """
    what = f"look for the newest image of {repository} in ECR"
    missing = f"ECR has no repository {repository}; name the image with --image-uri"
    try:
        client = ecr_client(region)

        def look() -> tuple[str, list[dict[str, Any]]]:
            found = client.describe_repositories(repositoryNames=[repository])["repositories"][0]
            pages = client.get_paginator("describe_images").paginate(repositoryName=repository)
            return found["repositoryUri"], [
                image for page in pages for image in page.get("imageDetails") or ()
            ]

        uri, images = ask_aws(
            look,
            what,
            service="ecr",
            region=client.meta.region_name,
            missing=dict.fromkeys(_MISSING, missing),
        )
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
