"""EKS and HyperPod clusters of an AWS account: list them, find how to reach one, make tokens for EKS.

A token is a signed address of STS's GetCallerIdentity, made without the aws CLI. EKS opens this address, and
STS answers who signed it. So it proves our identity and holds no secret key. It is signed for 60 seconds, and
EKS accepts it for 15 minutes (github.com/kubernetes-sigs/aws-iam-authenticator). Every call has a time limit
and botocore's bounded retries. Nothing is changed.
"""

import base64
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError, PermissionRefusedError
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.aws_session import boto3_session

_PREFIX = "k8s-aws-v1."
_HEADER = "x-k8s-aws-id"
_SIGNED_SECONDS = 60
_UNKNOWN = ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")


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
    names = aws.pages("eks", "list_clusters", "clusters", what="list its clusters")
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


class HyperPod:
    """HyperPod in one region."""

    def __init__(self, region: str = "") -> None:
        """Raises ConfigError for AWS settings that cannot be used."""
        self._aws = AwsAccount(region)
        self.region = self._aws.region

    def clusters(self) -> list[dict[str, Any]]:
        """Return the clusters, as `DescribeCluster` returns them."""
        found = self._aws.pages("sagemaker", "list_clusters", "ClusterSummaries", what="list clusters")
        return [self.describe(str(summary["ClusterName"])) for summary in found]

    def describe(self, name: str) -> dict[str, Any]:
        """One cluster, as `DescribeCluster` returns it. Raises ConfigError if there is none of this name."""
        found: dict[str, Any] = self._aws.call(
            "sagemaker",
            "describe_cluster",
            what=f"describe the HyperPod cluster {name}",
            missing=self._unknown(name),
            ClusterName=name,
        )
        return found

    def nodes(self, name: str) -> list[dict[str, Any]]:
        """Return the nodes of a cluster, as `ListClusterNodes` returns them."""
        words: dict[str, Any] = {"what": "list cluster nodes", "missing": self._unknown(name)}
        return self._aws.pages(
            "sagemaker", "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=name, **words
        )

    def _unknown(self, name: str) -> dict[str, str]:
        return dict.fromkeys(_UNKNOWN, f"SageMaker of {self.region} has no HyperPod cluster {name}")


def eks_token(cluster: str, *, region: str = "") -> str:
    """Return a token for `cluster`, with the AWS credentials of this process.

    Raises ConfigError if the AWS settings cannot be used, PermissionRefusedError without credentials.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, NoCredentialsError

    def name_cluster(request: Any, **_: object) -> None:
        request.headers[_HEADER] = cluster

    limits = Config(signature_version="v4", connect_timeout=5, read_timeout=10)
    try:
        sts = boto3_session(region=region).client("sts", config=limits)
        sts.meta.events.register("before-sign.sts.GetCallerIdentity", name_cluster)
        url = sts.generate_presigned_url("get_caller_identity", ExpiresIn=_SIGNED_SECONDS, HttpMethod="GET")
        return _PREFIX + base64.urlsafe_b64encode(str(url).encode()).rstrip(b"=").decode()
    except NoCredentialsError:
        raise PermissionRefusedError(
            f"There are no AWS credentials to sign a token for the EKS cluster {cluster} with; set "
            "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"The AWS settings cannot be used: {error}") from None
