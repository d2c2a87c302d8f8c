"""Ask ECR whether an image is in a registry, and by which digest. Nothing is pulled or changed."""

from typing import Any

from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, ServiceTroubleError

_MISSING = ("ImageNotFoundException", "RepositoryNotFoundException")


def ecr_client(region: str, session: Any = None) -> Any:
    """Create the client for ECR. That takes a fifth of a second, so several questions share one.

    `session` is boto3's, if there is one already: it keeps the data of botocore that it has read.
    """
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": 3}
    settings = Config(connect_timeout=5, read_timeout=20, retries=retries)
    session = session or boto3.session.Session(region_name=region)
    return session.client("ecr", region_name=region, config=settings)


def find_digest(
    *, account: str, region: str, repository: str, tag: str, digest: str, client: Any = None
) -> str | None:
    """The digest of an image named by tag or digest; None if the registry does not have it.

    Pass the `client` of `ecr_client` when several questions are asked. Raises PermissionRefusedError,
    ServiceError when AWS refuses, ServiceTroubleError when it cannot be reached.
    """
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    what = f"look for {repository} in ECR of {region}"
    wanted = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    try:
        client = client or ecr_client(region)
        answer = client.describe_images(registryId=account, repositoryName=repository, imageIds=[wanted])
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
