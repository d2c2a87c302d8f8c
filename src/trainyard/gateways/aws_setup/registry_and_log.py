"""ECR repositories and CloudWatch log groups."""

import json
from collections.abc import Collection
from typing import Any

from trainyard.gateways.aws_setup.account import Call

_NO_REPOSITORY = ("RepositoryNotFoundException",)


class EcrRepositorySetup:
    """`AWS::ECR::Repository`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        return {
            "imageTagMutability": p["ImageTagMutability"],
            "scanOnPush": p["ImageScanningConfiguration"]["ScanOnPush"],
            "lifecyclePolicy": json.loads(p["LifecyclePolicy"]["LifecyclePolicyText"]),
        }

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        name = p["RepositoryName"]
        answer = self._call("ecr", "describe_repositories", absent=_NO_REPOSITORY, repositoryNames=[name])
        if answer is None:
            return None
        has = answer["repositories"][0]
        no_policy = ("LifecyclePolicyNotFoundException",)
        policy = self._call("ecr", "get_lifecycle_policy", absent=no_policy, repositoryName=name)
        return {
            "imageTagMutability": has["imageTagMutability"],
            "scanOnPush": has.get("imageScanningConfiguration", {}).get("scanOnPush", False),
            "lifecyclePolicy": json.loads(policy["lifecyclePolicyText"]) if policy else {},
        }

    def create(self, p: dict[str, Any]) -> None:
        self._call(
            "ecr",
            "create_repository",
            repositoryName=p["RepositoryName"],
            imageTagMutability=p["ImageTagMutability"],
            imageScanningConfiguration={"scanOnPush": p["ImageScanningConfiguration"]["ScanOnPush"]},
            encryptionConfiguration={"encryptionType": p["EncryptionConfiguration"]["EncryptionType"]},
        )
        self.change(p, {"lifecyclePolicy"})

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        name = p["RepositoryName"]
        if "imageTagMutability" in keys:
            mutability = p["ImageTagMutability"]
            self._call("ecr", "put_image_tag_mutability", repositoryName=name, imageTagMutability=mutability)
        if "scanOnPush" in keys:
            scan = {"scanOnPush": p["ImageScanningConfiguration"]["ScanOnPush"]}
            operation = "put_image_scanning_configuration"
            self._call("ecr", operation, repositoryName=name, imageScanningConfiguration=scan)
        if "lifecyclePolicy" in keys:
            text = p["LifecyclePolicy"]["LifecyclePolicyText"]
            self._call("ecr", "put_lifecycle_policy", repositoryName=name, lifecyclePolicyText=text)

    def stays(self, p: dict[str, Any]) -> str:
        name = p["RepositoryName"]
        if self._call("ecr", "list_images", repositoryName=name, maxResults=1)["imageIds"]:
            return f"it holds images; aws ecr delete-repository --force --repository-name {name} removes both"
        return ""

    def remove(self, p: dict[str, Any]) -> None:
        self._call("ecr", "delete_repository", repositoryName=p["RepositoryName"])


class LogGroup:
    """`AWS::Logs::LogGroup`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        return {"retentionInDays": p["RetentionInDays"]}

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        answer = self._call("logs", "describe_log_groups", logGroupNamePrefix=p["LogGroupName"])
        groups = [each for each in answer["logGroups"] if each["logGroupName"] == p["LogGroupName"]]
        return {"retentionInDays": groups[0].get("retentionInDays", 0)} if groups else None

    def create(self, p: dict[str, Any]) -> None:
        self._call("logs", "create_log_group", logGroupName=p["LogGroupName"])
        self.change(p, {"retentionInDays"})

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        assert "retentionInDays" in keys
        days = p["RetentionInDays"]
        self._call("logs", "put_retention_policy", logGroupName=p["LogGroupName"], retentionInDays=days)

    def stays(self, p: dict[str, Any]) -> str:  # noqa: ARG002 - every kind takes the properties
        return ""

    def remove(self, p: dict[str, Any]) -> None:
        self._call("logs", "delete_log_group", logGroupName=p["LogGroupName"])
