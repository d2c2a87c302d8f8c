"""SageMaker HyperPod: its clusters, their instance groups and nodes. Nothing is changed.

Every call has a time limit and botocore's bounded retries. `cluster.hyperpod` interprets the answers.
"""

from typing import Any

from trainyard.gateways.aws_refusals import AwsAccount

_UNKNOWN = ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")


class HyperPod:
    """HyperPod in one region."""

    def __init__(self, region: str = "") -> None:
        """Raises ConfigError for AWS settings that cannot be used."""
        self._aws = AwsAccount(region)
        self.region = self._aws.region

    def clusters(self) -> list[dict[str, Any]]:
        """Return the clusters, as `DescribeCluster` returns them."""
        names = self._list_all("list_clusters", "ClusterSummaries")
        return [self.describe(str(summary["ClusterName"])) for summary in names]

    def describe(self, name: str) -> dict[str, Any]:
        """One cluster, as `DescribeCluster` returns it. Raises ConfigError if there is none of this name."""
        what = f"describe the HyperPod cluster {name}"
        found: dict[str, Any] = self._call("describe_cluster", what, name, ClusterName=name)
        return found

    def nodes(self, name: str) -> list[dict[str, Any]]:
        """Return the nodes of a cluster, as `ListClusterNodes` returns them."""
        return self._list_all("list_cluster_nodes", "ClusterNodeSummaries", name, ClusterName=name)

    def _list_all(self, operation: str, key: str, name: str = "", **arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more = dict(arguments)
        while True:
            answer = self._call(operation, operation.replace("_", " "), name, **more)
            found.extend(answer.get(key) or ())
            if not answer.get("NextToken"):
                return found
            more["NextToken"] = answer["NextToken"]

    def _call(self, operation: str, what: str, name: str, **arguments: str) -> Any:
        missing = dict.fromkeys(_UNKNOWN, f"SageMaker of {self.region} has no HyperPod cluster {name}")
        return self._aws.call("sagemaker", operation, what=what, missing=missing, **arguments)
