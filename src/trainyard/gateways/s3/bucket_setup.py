"""Check a bucket's settings: versioning, encryption, the removal of aborted uploads, no public access.

Each setting is read, compared with docs/runbooks/permissions.md, and fixed only on request. A setting that
the store does not support, or that the role may not read, is reported as unknown and is not an error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ServiceError
from trainyard.gateways.s3.bucket import Bucket

_BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_ABORT_DAYS, _OLD_VERSION_DAYS = 7, 30
_UNKNOWN = ("NotImplemented", "501", "MethodNotAllowed", "405", "404", "NotFound", "UnsupportedOperation")
_DENIED = ("AccessDenied", "403", "Forbidden")
_NOT_SET = (
    "NoSuchPublicAccessBlockConfiguration",
    "ServerSideEncryptionConfigurationNotFoundError",
    "NoSuchLifecycleConfiguration",
)
_Answer = dict[str, Any]


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
        self._algorithm = "AES256" if encryption == "none" else encryption

    def findings(self, *, fix: bool) -> Iterator[BucketFinding]:
        """Yield a finding per setting; with `fix`, settings that are not good are fixed first."""
        for name, read, judge, correct in self._checks():
            yield self._check_setting(name, read, judge, correct=correct if fix else None)
        yield self._check_setting(
            "no expiry", "get_bucket_lifecycle_configuration", self._expiry, correct=None
        )
        yield self._check_setting("owner pays", "get_bucket_request_payment", _payer, correct=None)

    def _checks(self) -> tuple[tuple[str, str, "_Judge", Callable[[_Answer], None]], ...]:
        return (
            ("public access block", "get_public_access_block", _public, self._block_public),
            ("encryption", "get_bucket_encryption", _encryption, self._encrypt),
            ("versioning", "get_bucket_versioning", _versioning, self._keep_versions),
            ("aborted uploads", "get_bucket_lifecycle_configuration", self._abort_rule, self._sweep),
        )

    def _check_setting(
        self, name: str, read: str, judge: "_Judge", *, correct: Callable[[_Answer], None] | None
    ) -> BucketFinding:
        answer, code = self._bucket.about(read)
        if code in _UNKNOWN:
            return BucketFinding(name, None, f"the store does not know this setting ({code})")
        if code in _DENIED:
            return BucketFinding(name, None, f"may not be read: {_permission(read)} is missing")
        if code and code not in _NOT_SET:
            return BucketFinding(name, None, f"the store answers {code}")
        found = judge(answer or {})
        if found is None:
            return BucketFinding(name, True, "as it should be")
        if correct is None:
            return BucketFinding(name, False, found)
        try:
            correct(answer or {})
        except ServiceError as error:
            return BucketFinding(name, False, f"{found}; could not be fixed: {error}")
        again, _ = self._bucket.about(read)
        still = judge(again or {})
        return BucketFinding(
            name,
            still is None,
            found if still is None else f"{still}, even after the correction",
            still is None,
        )

    def _change(self, operation: str, **arguments: Any) -> None:
        _, code = self._bucket.about(operation, **arguments)
        if code:
            words = f"{_permission(operation)} is missing" if code in _DENIED else f"the store answers {code}"
            raise ServiceError(words)

    def _block_public(self, _: _Answer) -> None:
        blocks = dict.fromkeys(_BLOCKS, True)
        self._change("put_public_access_block", PublicAccessBlockConfiguration=blocks)

    def _encrypt(self, _: _Answer) -> None:
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": self._algorithm}}
        self._change("put_bucket_encryption", ServerSideEncryptionConfiguration={"Rules": [rule]})

    def _keep_versions(self, _: _Answer) -> None:
        self._change("put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"})

    def _sweep(self, answer: _Answer) -> None:
        """Add our rule to the existing ones, because S3 replaces all rules at once."""
        rules = [rule for rule in answer.get("Rules", []) if rule.get("ID") != "abort-incomplete-uploads"]
        abort = {"DaysAfterInitiation": _ABORT_DAYS}
        rules.append(
            {
                "ID": "abort-incomplete-uploads",
                "Status": "Enabled",
                "Filter": {"Prefix": ""},
                "AbortIncompleteMultipartUpload": abort,
            }
        )
        self._change("put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": rules})

    def _abort_rule(self, answer: _Answer) -> str | None:
        rules = (rule for rule in _enabled_rules(answer) if "AbortIncompleteMultipartUpload" in rule)
        if any(self._bucket.prefix.startswith(_prefix(rule)) for rule in rules):
            return None
        return f"no rule aborts uploads that were never completed; {_ABORT_DAYS} days are advised"

    def _expiry(self, answer: _Answer) -> str | None:
        """Report a rule that removes or moves current objects; people wrote it, so it is not fixed."""
        ours = self._bucket.prefix
        for rule in _enabled_rules(answer):
            removes = {"Days", "Date"} & set(rule.get("Expiration", {})) or rule.get("Transitions")
            theirs = _prefix(rule)
            if removes and (theirs.startswith(ours) or ours.startswith(theirs)):
                name = rule.get("ID", "without a name")
                return f"the rule {name} expires or moves current objects; a manifest vouches for them"
        return None


_Judge = Callable[[_Answer], str | None]


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


def _permission(operation: str) -> str:
    verb, _, rest = operation.partition("_")
    names = {
        "public_access_block": "BucketPublicAccessBlock",
        "bucket_encryption": "EncryptionConfiguration",
        "bucket_versioning": "BucketVersioning",
        "bucket_lifecycle_configuration": "LifecycleConfiguration",
        "bucket_request_payment": "BucketRequestPayment",
    }
    return f"s3:{verb.capitalize()}{names[rest]}"
