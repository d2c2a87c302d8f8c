"""S3 buckets and their policies. Rules and statements that others added are kept."""

import json
from collections.abc import Collection
from typing import Any

from trainyard.errors import PermissionRefusedError
from trainyard.gateways.aws_setup.account import Call

_ABSENT = ("404", "NoSuchBucket", "NotFound")
_NOT_SET = (
    "NoSuchPublicAccessBlockConfiguration",
    "ServerSideEncryptionConfigurationNotFoundError",
    "NoSuchLifecycleConfiguration",
    "OwnershipControlsNotFoundError",
    "NoSuchBucketPolicy",
)


class S3Bucket:
    """`AWS::S3::Bucket`."""

    def __init__(self, call: Call, *, region: str, account: str) -> None:
        self._call, self._region, self._account = call, region, account

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        encryption = p["BucketEncryption"]["ServerSideEncryptionConfiguration"][0]
        return {
            "versioning": p["VersioningConfiguration"]["Status"],
            "encryption": encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"],
            "publicAccessBlock": p["PublicAccessBlockConfiguration"],
            "ownership": p["OwnershipControls"]["Rules"][0]["ObjectOwnership"],
            "lifecycle": {rule["Id"]: _rule(rule) for rule in p["LifecycleConfiguration"]["Rules"]},
        }

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        name = p["BucketName"]
        try:
            if self._call("s3", "head_bucket", absent=_ABSENT, Bucket=name) is None:
                return None
        except PermissionRefusedError as error:
            raise PermissionRefusedError(
                f"{error}\nThe name {name} is taken by another account, or s3:ListBucket is missing. "
                "With another --project-name the bucket has another name."
            ) from None
        encryption = self._asked("get_bucket_encryption", name)
        rules = encryption.get("ServerSideEncryptionConfiguration", {}).get("Rules", [{}])
        controls = self._asked("get_bucket_ownership_controls", name).get("OwnershipControls", {})
        public_access = self._asked("get_public_access_block", name)
        lifecycle = self._asked("get_bucket_lifecycle_configuration", name)
        return {
            "versioning": self._asked("get_bucket_versioning", name).get("Status", "never switched on"),
            "encryption": rules[0].get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "none"),
            "publicAccessBlock": public_access.get("PublicAccessBlockConfiguration", {}),
            "ownership": controls.get("Rules", [{}])[0].get("ObjectOwnership", "none"),
            "lifecycle": {rule["ID"]: rule for rule in lifecycle.get("Rules", []) if "ID" in rule},
        }

    def create(self, p: dict[str, Any]) -> None:
        place: dict[str, Any] = {}
        if self._region != "us-east-1":
            place["CreateBucketConfiguration"] = {"LocationConstraint": self._region}
        self._call("s3", "create_bucket", Bucket=p["BucketName"], **place)
        self.change(p, self.wanted(p))

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        name, wanted = p["BucketName"], self.wanted(p)
        if "versioning" in keys:
            self._put("put_bucket_versioning", name, VersioningConfiguration={"Status": wanted["versioning"]})
        if "encryption" in keys:
            by_default = {"SSEAlgorithm": wanted["encryption"]}
            rules = [{"ApplyServerSideEncryptionByDefault": by_default, "BucketKeyEnabled": False}]
            self._put("put_bucket_encryption", name, ServerSideEncryptionConfiguration={"Rules": rules})
        if "publicAccessBlock" in keys:
            blocks = wanted["publicAccessBlock"]
            self._put("put_public_access_block", name, PublicAccessBlockConfiguration=blocks)
        if "ownership" in keys:
            rules = [{"ObjectOwnership": wanted["ownership"]}]
            self._put("put_bucket_ownership_controls", name, OwnershipControls={"Rules": rules})
        if "lifecycle" in keys:
            have = self._asked("get_bucket_lifecycle_configuration", name).get("Rules", [])
            theirs = [rule for rule in have if rule.get("ID") not in wanted["lifecycle"]]
            rules = [*theirs, *wanted["lifecycle"].values()]
            self._put("put_bucket_lifecycle_configuration", name, LifecycleConfiguration={"Rules": rules})

    def stays(self, p: dict[str, Any]) -> str:
        if _holds_something(self._call, p["BucketName"]):
            return "it holds objects or old versions; empty and remove it in the console of S3"
        return ""

    def remove(self, p: dict[str, Any]) -> None:
        self._put("delete_bucket", p["BucketName"])

    def _asked(self, operation: str, bucket: str) -> dict[str, Any]:
        """The setting; empty if it was never set."""
        return self._call("s3", operation, absent=_NOT_SET, Bucket=bucket) or {}

    def _put(self, operation: str, bucket: str, **arguments: Any) -> None:
        """Change the bucket only if it belongs to this account, because names of buckets are global."""
        self._call("s3", operation, Bucket=bucket, ExpectedBucketOwner=self._account, **arguments)


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    """Convert a lifecycle rule from CloudFormation's words to S3's."""
    found: dict[str, Any] = {
        "ID": rule["Id"],
        "Status": rule["Status"],
        "Filter": {"Prefix": rule.get("Prefix", "")},
    }
    if "ExpirationInDays" in rule:
        found["Expiration"] = {"Days": rule["ExpirationInDays"]}
    for key in ("AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration"):
        if key in rule:
            found[key] = rule[key]
    return found


def _holds_something(call: Call, bucket: str) -> bool:
    answer = call("s3", "list_object_versions", Bucket=bucket, MaxKeys=1)
    return bool(answer.get("Versions") or answer.get("DeleteMarkers"))


class S3BucketPolicy:
    """`AWS::S3::BucketPolicy`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        return {"statements": {each["Sid"]: each for each in p["PolicyDocument"]["Statement"]}}

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        statements = self._statements(p["Bucket"])
        return None if statements is None else {"statements": {s.get("Sid", ""): s for s in statements}}

    def _statements(self, bucket: str) -> list[dict[str, Any]] | None:
        absent = (*_NOT_SET, *_ABSENT)
        answer = self._call("s3", "get_bucket_policy", absent=absent, Bucket=bucket)
        return None if answer is None else list(json.loads(answer["Policy"])["Statement"])

    def create(self, p: dict[str, Any]) -> None:
        self.change(p, {"statements"})

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        assert "statements" in keys
        ours = p["PolicyDocument"]["Statement"]
        names = {each["Sid"] for each in ours}
        theirs = [each for each in self._statements(p["Bucket"]) or [] if each.get("Sid") not in names]
        policy = {**p["PolicyDocument"], "Statement": theirs + ours}
        self._call("s3", "put_bucket_policy", Bucket=p["Bucket"], Policy=json.dumps(policy))

    def stays(self, p: dict[str, Any]) -> str:
        return "its bucket stays" if _holds_something(self._call, p["Bucket"]) else ""

    def remove(self, p: dict[str, Any]) -> None:
        self._call("s3", "delete_bucket_policy", Bucket=p["Bucket"])
