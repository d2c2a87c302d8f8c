"""Ask ECR whether an image is in a registry, and by which digest. Nothing is pulled or changed."""

from typing import Any

from trainyard.errors import ConfigError, CredentialsRefusedError, PermissionRefusedError
from trainyard.gateways.aws_refusals import code_of, refusal, unsent

_NO_REPOSITORY = "RepositoryNotFoundException"
_MISSING = ("ImageNotFoundException", _NO_REPOSITORY)


def ecr_client(region: str, session: Any = None) -> Any:
    """Create the client for ECR. That takes a fifth of a second, so several questions share one.

    `session` is boto3's, if there is one already: it keeps the data of botocore that it has read. Raises
    ConfigError and ServiceError for settings or credentials that cannot be used.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    retries = {"mode": "standard", "total_max_attempts": 3}
    settings = Config(connect_timeout=5, read_timeout=20, retries=retries)
    try:
        session = session or boto3.session.Session(region_name=region)
        return session.client("ecr", region_name=region, config=settings)
    except BotoCoreError as error:
        raise _for_a_cluster(unsent(error, "use ECR", region=region)) from None


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
    from botocore.exceptions import BotoCoreError, ClientError

    what = f"look for {repository} in ECR"
    wanted = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    try:
        client = client or ecr_client(region)
        answer = client.describe_images(registryId=account, repositoryName=repository, imageIds=[wanted])
    except ClientError as error:
        code, said = code_of(error)
        if code == _NO_REPOSITORY and needs_repository:
            raise ConfigError(
                f"ECR of {region} has no repository {repository}, so an image could not be pushed there. "
                f"Make it once with infrastructure/setup-codebuild.sh --ecr-repository {repository} --region "
                f"{region}, or name another with --image."
            ) from None
        if code in _MISSING:
            return None
        raise _for_a_cluster(refusal(code, said, what, service="ecr", region=region)) from None
    except BotoCoreError as error:
        raise _for_a_cluster(unsent(error, what, region=region)) from None
    except ValueError as error:
        raise ConfigError(f"cannot {what}: {error}") from None
    details = answer.get("imageDetails") or ()
    return str(details[0]["imageDigest"]) if details else None


def _for_a_cluster(error: Exception) -> Exception:
    """A look at a cluster does without ECR's answer, and ends only where the cluster refuses credentials."""
    return PermissionRefusedError(str(error)) if isinstance(error, CredentialsRefusedError) else error
