"""List EKS clusters, and find how to reach one. `kubernetes.eks_token` makes the tokens.

Every call has a time limit and botocore's bounded retries. Nothing is changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, ServiceTroubleError
from trainyard.gateways.aws_refusals import client_settings, code_of
from trainyard.gateways.aws_session import boto3_session

_DENIED = ("UnauthorizedOperation", "UnrecognizedClientException", "SignatureDoesNotMatch")
"""Codes of refused callers, besides those with `AccessDenied` or `Token` in them."""
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
    """API, API_AND_CONFIG_MAP or CONFIG_MAP; empty if EKS does not report it."""

    @property
    def region(self) -> str:
        """Region, read from its ARN."""
        return self.arn.split(":")[3] if self.arn.count(":") >= 5 else ""

    def record(self) -> dict[str, str]:
        """Return the cluster as plain data."""
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
    client = cluster_client("eks", region)
    pages = client.get_paginator("list_clusters").paginate()
    names = _call(lambda: [name for page in pages for name in page["clusters"]], "list its clusters")
    found = (_describe(client, name) for name in names[:_MOST_CLUSTERS])
    return tuple(cluster for cluster in found if cluster is not None)


def describe_cluster(name: str, region: str = "") -> EksCluster | None:
    """One cluster by its name; None if there is none of this name."""
    return _describe(cluster_client("eks", region), name)


def _describe(client: Any, name: str) -> EksCluster | None:
    found = _call(lambda: client.describe_cluster(name=name)["cluster"], f"describe the cluster {name}")
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


def _call(work: Callable[[], Any], what: str) -> Any:
    """Return the answer of `work`; None if there is no such cluster."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return work()
    except (BotoCoreError, ClientError) as error:
        if isinstance(error, ClientError) and code_of(error)[0] == "ResourceNotFoundException":
            return None
        raise cluster_refusal(error, what) from None


def cluster_client(service: str, region: str) -> Any:
    """boto3's client for `eks` or `sagemaker`. Raises ConfigError for AWS settings that cannot be used."""
    from botocore.exceptions import BotoCoreError

    try:
        return boto3_session(region=region).client(service, config=client_settings())
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"{str(error).rstrip('.')}; name a region with --region") from None


def cluster_refusal(error: Exception, what: str) -> ServiceError:
    """Return the error for a call that AWS refused or did not answer; `what` completes "AWS refused to …"."""
    from botocore.exceptions import ClientError, NoCredentialsError

    if isinstance(error, ClientError):
        code, message = code_of(error)
        if code in _DENIED or "AccessDenied" in code or "Token" in code:
            return PermissionRefusedError(f"AWS does not allow to {what} ({code}): {message}")
        return ServiceError(f"AWS refused to {what} ({code}): {message}")
    if isinstance(error, NoCredentialsError):
        return PermissionRefusedError(
            f"There are no AWS credentials to {what} with; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    return ServiceTroubleError(f"AWS could not be reached to {what}: {error}")
