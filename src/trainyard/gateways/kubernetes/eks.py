"""List EKS clusters, and find how to reach one. `kubernetes.eks_token` makes the tokens.

Every call has a time limit and botocore's bounded retries. Nothing is changed.
"""

from dataclasses import dataclass

from trainyard.gateways.aws_refusals import AwsAccount, call_aws


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
    aws = AwsAccount(region)
    pages = aws.client("eks").get_paginator("list_clusters").paginate()
    names = call_aws(
        lambda: [name for page in pages for name in page["clusters"]],
        "list its clusters",
        service="eks",
        region=aws.region,
    )
    found = (_describe(aws, name) for name in names)
    return tuple(cluster for cluster in found if cluster is not None)


def describe_cluster(name: str, region: str = "") -> EksCluster | None:
    """One cluster by its name; None if there is none of this name."""
    return _describe(AwsAccount(region), name)


def _describe(aws: AwsAccount, name: str) -> EksCluster | None:
    what, absent = f"describe the cluster {name}", ("ResourceNotFoundException",)
    answer = aws.call("eks", "describe_cluster", what=what, absent=absent, name=name)
    if answer is None:
        return None
    found = answer["cluster"]
    return EksCluster(
        name=name,
        arn=str(found.get("arn", "")),
        status=str(found.get("status", "")),
        version=str(found.get("version", "")),
        endpoint=str(found.get("endpoint") or ""),
        authority=str((found.get("certificateAuthority") or {}).get("data") or ""),
        authentication=str((found.get("accessConfig") or {}).get("authenticationMode") or ""),
    )
