"""List EKS clusters, and find how to reach one. `kubernetes.eks_token` makes the tokens.

Every call has a time limit and botocore's bounded retries. Nothing is changed.
"""

from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, ServiceTroubleError

_REFUSED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_UNKNOWN_CALLER = (
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "ExpiredToken",
    "ExpiredTokenException",
    "SignatureDoesNotMatch",
)
_MOST_CLUSTERS = 500


@dataclass(frozen=True)
class EksCluster:
    """One cluster as EKS describes it."""

    name: str
    arn: str
    status: str
    """ACTIVE, CREATING, UPDATING, DELETING, FAILED."""
    version: str
    endpoint: str
    authority: str
    """The certificate of its API server, in base64."""
    authentication: str
    """API, API_AND_CONFIG_MAP or CONFIG_MAP; empty if EKS does not say."""

    @property
    def region(self) -> str:
        """From its ARN."""
        return self.arn.split(":")[3] if self.arn.count(":") >= 5 else ""

    def record(self) -> dict[str, str]:
        """The cluster as plain data."""
        return {
            "name": self.name,
            "type": "eks",
            "status": self.status,
            "region": self.region,
            "version": self.version,
            "authentication": self.authentication,
        }


def list_clusters(region: str = "") -> tuple[EksCluster, ...]:
    """The clusters of the account in a region. Raises ServiceError when AWS refuses or cannot be reached."""
    client = _client(region)
    with_names = _asked(lambda: [n for page in _pages(client) for n in page["clusters"]], "list its clusters")
    found = (_described(client, name) for name in with_names[:_MOST_CLUSTERS])
    return tuple(cluster for cluster in found if cluster is not None)


def describe_cluster(name: str, region: str = "") -> EksCluster | None:
    """One cluster by its name; None if there is none of this name."""
    return _described(_client(region), name)


def _described(client: Any, name: str) -> EksCluster | None:
    found = _asked(lambda: client.describe_cluster(name=name)["cluster"], f"describe the cluster {name}")
    if found is None:
        return None
    return EksCluster(
        name=name,
        arn=str(found.get("arn", "")),
        status=str(found.get("status", "")),
        version=str(found.get("version", "")),
        endpoint=str(found.get("endpoint") or ""),
        authority=str((found.get("certificateAuthority") or {}).get("data") or ""),
        authentication=str((found.get("accessConfig") or {}).get("authenticationMode") or ""),
    )


def _pages(client: Any) -> Any:
    return client.get_paginator("list_clusters").paginate()


def _client(region: str) -> Any:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    retries = {"mode": "standard", "total_max_attempts": 3}
    settings = Config(connect_timeout=5, read_timeout=20, retries=retries)
    try:
        return boto3.session.Session(region_name=region or None).client("eks", config=settings)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"{error}; name a region with --region") from None


def _asked(work: Any, what: str) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        return work()
    except ClientError as error:
        details = error.response.get("Error", {})
        code, said = str(details.get("Code", "")), str(details.get("Message", ""))
        if code == "ResourceNotFoundException":
            return None
        if code in (*_REFUSED, *_UNKNOWN_CALLER):
            raise PermissionRefusedError(f"AWS does not allow to {what} ({code}): {said}") from None
        raise ServiceError(f"AWS refused to {what} ({code}): {said}") from None
    except NoCredentialsError:
        raise PermissionRefusedError(
            f"There are no AWS credentials to {what} with; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        ) from None
    except BotoCoreError as error:
        raise ServiceTroubleError(f"AWS could not be reached to {what}: {error}") from None
