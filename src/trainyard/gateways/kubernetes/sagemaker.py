"""SageMaker HyperPod: its clusters, their instance groups and nodes. Nothing is changed.

Every call has a time limit and botocore's bounded retries. `cluster.hyperpod` interprets the answers.
"""

from typing import Any

from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, ServiceTroubleError

_UNKNOWN = ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")


class HyperPod:
    """HyperPod in one region."""

    def __init__(self, region: str = "") -> None:
        """Raises ConfigError for AWS settings that cannot be used."""
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        retries = {"mode": "standard", "total_max_attempts": 3}
        settings = Config(connect_timeout=5, read_timeout=20, retries=retries)
        try:
            session = boto3.session.Session(region_name=region or None)
            self._client: Any = session.client("sagemaker", config=settings)
            self.region = str(self._client.meta.region_name)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"{error}; name a region with --region") from None

    def clusters(self) -> list[dict[str, Any]]:
        """The clusters, as `DescribeCluster` returns them."""
        names = self._all("list_clusters", "ClusterSummaries")
        return [self.describe(str(summary["ClusterName"])) for summary in names]

    def describe(self, name: str) -> dict[str, Any]:
        """One cluster, as `DescribeCluster` returns it. Raises ConfigError if there is none of this name."""
        found: dict[str, Any] = self._asked(
            lambda: self._client.describe_cluster(ClusterName=name), f"describe the HyperPod cluster {name}"
        )
        return found

    def nodes(self, name: str) -> list[dict[str, Any]]:
        """The nodes of a cluster, as `ListClusterNodes` returns them."""
        return self._all("list_cluster_nodes", "ClusterNodeSummaries", ClusterName=name)

    def _all(self, operation: str, key: str, **arguments: str) -> list[dict[str, Any]]:
        def ask() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            token = ""
            while True:
                more = {"NextToken": token} if token else {}
                answer = getattr(self._client, operation)(**arguments, **more)
                found.extend(answer.get(key) or ())
                token = answer.get("NextToken") or ""
                if not token:
                    return found

        result: list[dict[str, Any]] = self._asked(ask, operation.replace("_", " "))
        return result

    def _asked(self, work: Any, what: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            return work()
        except ClientError as error:
            details = error.response.get("Error", {})
            code, said = str(details.get("Code", "")), str(details.get("Message", ""))
            if code in _UNKNOWN:
                raise ConfigError(f"SageMaker cannot {what}: {said}") from None
            kind = PermissionRefusedError if "AccessDenied" in code or "Token" in code else ServiceError
            raise kind(f"AWS refused to {what} ({code}): {said}") from None
        except NoCredentialsError:
            raise PermissionRefusedError(
                f"There are no AWS credentials to {what} with; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from None
        except BotoCoreError as error:
            raise ServiceTroubleError(f"AWS could not be reached to {what}: {error}") from None
