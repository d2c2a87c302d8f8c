"""SageMaker HyperPod: its clusters, their instance groups and nodes. Nothing is changed.

Every call has a time limit and botocore's bounded retries. `cluster.hyperpod` interprets the answers.
"""

from collections.abc import Callable
from typing import Any

from trainyard.errors import ConfigError
from trainyard.gateways.aws_refusals import code_of
from trainyard.gateways.kubernetes.eks import cluster_client, cluster_refusal

_UNKNOWN = ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")


class HyperPod:
    """HyperPod in one region."""

    def __init__(self, region: str = "") -> None:
        """Raises ConfigError for AWS settings that cannot be used."""
        self._client = cluster_client("sagemaker", region)
        self.region = str(self._client.meta.region_name)

    def clusters(self) -> list[dict[str, Any]]:
        """Return the clusters, as `DescribeCluster` returns them."""
        names = self._list_all("list_clusters", "ClusterSummaries")
        return [self.describe(str(summary["ClusterName"])) for summary in names]

    def describe(self, name: str) -> dict[str, Any]:
        """One cluster, as `DescribeCluster` returns it. Raises ConfigError if there is none of this name."""
        found: dict[str, Any] = self._call(
            lambda: self._client.describe_cluster(ClusterName=name), f"describe the HyperPod cluster {name}"
        )
        return found

    def nodes(self, name: str) -> list[dict[str, Any]]:
        """Return the nodes of a cluster, as `ListClusterNodes` returns them."""
        return self._list_all("list_cluster_nodes", "ClusterNodeSummaries", ClusterName=name)

    def _list_all(self, operation: str, key: str, **arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more = dict(arguments)
        while True:
            answer = self._call(lambda: getattr(self._client, operation)(**more), operation.replace("_", " "))
            found.extend(answer.get(key) or ())
            if not answer.get("NextToken"):
                return found
            more["NextToken"] = answer["NextToken"]

    def _call(self, work: Callable[[], Any], what: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return work()
        except (BotoCoreError, ClientError) as error:
            code, message = code_of(error) if isinstance(error, ClientError) else ("", "")
            if code in _UNKNOWN:
                raise ConfigError(f"SageMaker cannot {what}: {message}") from None
            raise cluster_refusal(error, what) from None
