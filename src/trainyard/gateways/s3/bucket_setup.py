"""Check a bucket's settings: versioning, encryption, the removal of aborted uploads, no public access.

Each setting is read, compared with docs/runbooks/permissions.md, and fixed only on request. A setting that
the store does not support, or that the role may not read, is reported as unknown and is not an error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.gateways.s3.client import Bucket
from trainyard.gateways.s3.refusals import DENIED

_BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_BLOCKED = {"PublicAccessBlockConfiguration": dict.fromkeys(_BLOCKS, True)}
_VERSIONED = {"VersioningConfiguration": {"Status": "Enabled"}}
_ABORT_RULE, _ABORT_DAYS = "abort-incomplete-uploads", 7
_UNKNOWN = ("NotImplemented", "501", "MethodNotAllowed", "405", "404", "NotFound", "UnsupportedOperation")
_NOT_SET = (
    *("", "NoSuchPublicAccessBlockConfiguration", "NoSuchLifecycleConfiguration"),
    "ServerSideEncryptionConfigurationNotFoundError",
)
# A setting as boto3's operations name it -> as IAM's permissions do.
_PERMISSIONS = {
    "public_access_block": "BucketPublicAccessBlock",
    "bucket_encryption": "EncryptionConfiguration",
    "bucket_versioning": "BucketVersioning",
    "bucket_lifecycle_configuration": "LifecycleConfiguration",
    "bucket_request_payment": "BucketRequestPayment",
}
_Answer = dict[str, Any]
# Returns what is wrong with S3's answer; None if nothing is.
_Judge = Callable[[_Answer], str | None]
# Returns the arguments of the operation that fixes the setting.
_Fix = Callable[[_Answer], dict[str, Any]]


@dataclass(frozen=True)
class BucketFinding:
    """One setting of a bucket."""

    name: str
    good: bool | None
    """None when it could not be read."""
    found: str
    fixed: bool = False
    """It was not good and has been fixed."""

    def text(self) -> str:
        verdict = {True: "ok", False: "not ok", None: "not known"}[self.good]
        return f"{self.name:<20} {'fixed' if self.fixed else verdict:<10} {self.found}"


class BucketSetup:
    """The settings of the bucket `name`; lifecycle rules as far as they affect `prefix`."""

    def __init__(self, name: str, prefix: str, *, encryption: str, call_seconds: float) -> None:
        self._bucket = Bucket(name, prefix, encryption=encryption, call_seconds=call_seconds)
        self._encryption = encryption

    def findings(self, *, fix: bool) -> Iterator[BucketFinding]:
        """Yield a finding per setting; with `fix`, settings that are not good are fixed first."""
        settings: tuple[tuple[str, str, _Judge, _Fix | None], ...] = (
            ("public access block", "public_access_block", _public, lambda _: _BLOCKED),
            ("encryption", "bucket_encryption", _encryption, self._encrypt),
            ("versioning", "bucket_versioning", _versioning, lambda _: _VERSIONED),
            ("aborted uploads", "bucket_lifecycle_configuration", self._abort_rule, _abort_uploads),
            # People wrote these, so they are not fixed.
            ("no expiry", "bucket_lifecycle_configuration", self._expiry, None),
            ("owner pays", "bucket_request_payment", _payer, None),
        )
        for name, setting, judge, correct in settings:
            yield self._check(name, setting, judge, correct=correct if fix else None)

    def _check(self, name: str, setting: str, judge: _Judge, *, correct: _Fix | None) -> BucketFinding:
        answer, code = self._bucket.about(f"get_{setting}")
        if code not in _NOT_SET:
            return BucketFinding(name, None, _refusal(code, f"s3:Get{_PERMISSIONS[setting]}"))
        found = judge(answer or {})
        if found is None:
            return BucketFinding(name, True, "as it should be")
        if correct is None:
            return BucketFinding(name, False, found)
        _, code = self._bucket.about(f"put_{setting}", **correct(answer or {}))
        if code:
            reason = _refusal(code, f"s3:Put{_PERMISSIONS[setting]}")
            return BucketFinding(name, False, f"{found}; could not be fixed: {reason}")
        still = judge(self._bucket.about(f"get_{setting}")[0] or {})
        return BucketFinding(
            name, still is None, f"{still}, even after the correction" if still else found, still is None
        )

    def _encrypt(self, _: _Answer) -> dict[str, Any]:
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": self._encryption}}
        return {"ServerSideEncryptionConfiguration": {"Rules": [rule]}}

    def _abort_rule(self, answer: _Answer) -> str | None:
        rules = (rule for rule in _enabled_rules(answer) if "AbortIncompleteMultipartUpload" in rule)
        if any(self._bucket.prefix.startswith(_prefix(rule)) for rule in rules):
            return None
        return f"no rule aborts uploads that were never completed; {_ABORT_DAYS} days are advised"

    def _expiry(self, answer: _Answer) -> str | None:
        """Report a rule that removes or moves current objects."""
        ours = self._bucket.prefix
        for rule in _enabled_rules(answer):
            removes = {"Days", "Date"} & set(rule.get("Expiration", {})) or rule.get("Transitions")
            theirs = _prefix(rule)
            if removes and (theirs.startswith(ours) or ours.startswith(theirs)):
                name = rule.get("ID", "without a name")
                return f"the rule {name} expires or moves current objects; a manifest vouches for them"
        return None


def _refusal(code: str, permission: str) -> str:
    if code in _UNKNOWN:
        return f"the store does not know this setting ({code})"
    return f"not allowed: {permission} is missing" if code in DENIED else f"the store answers {code}"


def _public(answer: _Answer) -> str | None:
    blocks = answer.get("PublicAccessBlockConfiguration", {})
    open_ = [name for name in _BLOCKS if not blocks.get(name)]
    return f"not on: {', '.join(open_)}" if open_ else None


def _encryption(answer: _Answer) -> str | None:
    rules = answer.get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    return None if rules else "objects that are put without requesting it are not encrypted"


def _versioning(answer: _Answer) -> str | None:
    status = answer.get("Status")
    return None if status == "Enabled" else f"{status or 'never enabled'}: overwritten objects are lost"


def _abort_uploads(answer: _Answer) -> dict[str, Any]:
    """Return the existing rules and ours, because S3 replaces all rules at once."""
    rules = [rule for rule in answer.get("Rules", []) if rule.get("ID") != _ABORT_RULE]
    abort = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _ABORT_DAYS}}
    rules.append({"ID": _ABORT_RULE, "Status": "Enabled", "Filter": {"Prefix": ""}, **abort})
    return {"LifecycleConfiguration": {"Rules": rules}}


def _payer(answer: _Answer) -> str | None:
    if answer.get("Payer") != "Requester":
        return None
    return "the requester pays, which Trainyard does not support: make the bucket's owner pay (BucketOwner)"


def _enabled_rules(answer: _Answer) -> Iterator[_Answer]:
    return (rule for rule in answer.get("Rules", []) if rule.get("Status") == "Enabled")


def _prefix(rule: _Answer) -> str:
    """Return the prefix of the keys to which a rule applies."""
    chosen = rule.get("Filter", {})
    return str(chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or rule.get("Prefix") or "")
