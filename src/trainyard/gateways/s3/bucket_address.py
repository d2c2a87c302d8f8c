"""The address of a store in S3, `s3://bucket/prefix`. boto3 is imported only when a store is opened."""

import re
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError
from trainyard.gateways import SHOWN_CHARACTERS

if TYPE_CHECKING:
    from trainyard.artifacts.store.store_address import StoreOptions
    from trainyard.gateways.s3.bucket_setup import BucketSetup
    from trainyard.gateways.s3.store import S3Store

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX_BYTES = 700
"""An object's key has 1,024 bytes in S3; below the prefix come the run and the names of its files."""


def open_at(url: str, rest: str, options: "StoreOptions") -> "S3Store":
    """Open the store; `rest` is `url` after `s3://`. Raises ConfigError for an invalid address."""
    from trainyard.gateways.s3.store import S3Store

    return S3Store(*bucket_of(url, rest), **options)


def open_setup(url: str, rest: str, encryption: str, call_seconds: float) -> "BucketSetup":
    """Return the settings of the bucket. Raises ConfigError for an invalid address."""
    from trainyard.gateways.s3.bucket_setup import BucketSetup

    return BucketSetup(*bucket_of(url, rest), encryption=encryption, call_seconds=call_seconds)


def require_address(url: str, rest: str) -> None:
    """Raise ConfigError when `rest` is not a bucket and prefix."""
    bucket_of(url, rest)


def names_a_store(rest: str) -> bool:
    """Return whether `rest` begins with the name of a bucket."""
    return _BUCKET.fullmatch(rest.partition("/")[0]) is not None


def bucket_of(url: str, rest: str) -> tuple[str, str]:
    """Return bucket and prefix. Raises ConfigError for an invalid address."""
    if rest.startswith("arn:"):
        raise ConfigError(
            f"{url}: an ARN is not taken as a bucket. Write the alias of the access point, which ends in "
            "-s3alias or --ol-s3: s3://ALIAS/prefix"
        )
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{url[:SHOWN_CHARACTERS]}: {bucket[:SHOWN_CHARACTERS] or '(empty)'} is not a name of a bucket "
            "(3 to 63 of a-z, 0-9, . and -)"
        )
    if len(prefix.encode(errors="surrogateescape")) > _PREFIX_BYTES:
        raise ConfigError(
            f"{url[:SHOWN_CHARACTERS]}…: a prefix of {len(prefix):,} letters; "
            f"at most {_PREFIX_BYTES} leave room for names"
        )
    return bucket, prefix.strip("/")
