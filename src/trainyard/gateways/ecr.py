"""ECR: whether an image is in a registry, and by which digest. Nothing is pulled or changed."""

import re
from dataclasses import dataclass

from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, ServiceTroubleError

_URI = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[a-z0-9][a-z0-9._/-]*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_MISSING = ("ImageNotFoundException", "RepositoryNotFoundException")


@dataclass(frozen=True)
class EcrImage:
    """The parts of an image's name in ECR."""

    account: str
    region: str
    repository: str
    tag: str
    digest: str


def parse_uri(uri: str) -> EcrImage | None:
    """The parts of `uri`; None where it is not in ECR."""
    match = _URI.fullmatch(uri)
    if match is None:
        return None
    found = {name: value or "" for name, value in match.groupdict().items()}
    return EcrImage(**found)


def find_digest(image: EcrImage) -> str | None:
    """The digest of the image; None where the registry does not have it.

    Raises PermissionRefusedError, ServiceError when AWS refuses, ServiceTroubleError when it cannot be
    reached.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    what = f"look for {image.repository} in ECR of {image.region}"
    retries = {"mode": "standard", "total_max_attempts": 3}
    settings = Config(connect_timeout=5, read_timeout=20, retries=retries)
    wanted = {"imageDigest": image.digest} if image.digest else {"imageTag": image.tag or "latest"}
    try:
        client = boto3.session.Session(region_name=image.region).client("ecr", config=settings)
        answer = client.describe_images(
            registryId=image.account, repositoryName=image.repository, imageIds=[wanted]
        )
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _MISSING:
            return None
        kind = PermissionRefusedError if "AccessDenied" in code or "Token" in code else ServiceError
        raise kind(f"AWS refused to {what} ({code})") from None
    except NoCredentialsError:
        raise PermissionRefusedError(f"there are no AWS credentials to {what} with") from None
    except ValueError as error:
        raise ConfigError(f"cannot {what}: {error}") from None
    except BotoCoreError as error:
        raise ServiceTroubleError(f"AWS could not be reached to {what}: {error}") from None
    details = answer.get("imageDetails") or ()
    return str(details[0]["imageDigest"]) if details else None
