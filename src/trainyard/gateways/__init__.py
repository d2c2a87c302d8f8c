"""The only code that touches the outside world: S3, local stores, Slack, GitHub, git, other processes.

`open_store` opens a store by its URL; adding a kind of store takes one module and one line here.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from trainyard.errors import ConfigError

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.gateways.s3.bucket_setup import BucketSetup

CALL_SECONDS = 30.0
"""Default time limit of one read or write on the connection to a store."""
_URL = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<rest>.*)", re.DOTALL)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX_BYTES = 700
"""An object's key has 1,024 bytes in S3; below the prefix come the run and the names of its files."""
_NAME_BYTES, _PATH_BYTES = 255, 3500
"""A name's and a path's on Linux, which has 4,095 bytes, less what is stored below the folder."""
_SHOWN = 80


def no_pace(count: int) -> None:
    """The default pace: never wait."""


def open_store(
    url: str,
    *,
    encryption: str = "AES256",
    call_seconds: float = CALL_SECONDS,
    pace: Callable[[int], None] = no_pace,
    checksum: str = "CRC64NVME",
    attempts: int | None = None,
) -> "Store":
    """The store at `url`, `s3://bucket/prefix` or `file:///folder`. It sends nothing yet.

    `encryption` is requested from S3 for every object: `AES256`, `aws:kms` or `none`. `pace` is called with
    the number of bytes before each block of a file is read, and may wait. `checksum` is the one that S3
    computes for multipart uploads: `CRC64NVME`, or `SHA256` (`gateways.s3.checksums`). `attempts` limits the
    attempts per call, below AWS_MAX_ATTEMPTS. Raises ConfigError for any other URL.
    """
    require_address(url)
    scheme, _, rest = url.partition("://")
    if scheme == "s3":
        from trainyard.gateways.s3.store import S3Store

        return S3Store(
            *_bucket_of(url, rest),
            encryption=encryption,
            call_seconds=call_seconds,
            pace=pace,
            checksum=checksum,
            attempts=attempts,
        )
    return _open_folder(url, rest, pace)


def require_address(url: str) -> None:
    """Raise ConfigError when `url` is no address of a store. Nothing is opened."""
    match = _URL.fullmatch(url)
    if match and match["scheme"] == "s3":
        _bucket_of(url, match["rest"])
    elif match and match["scheme"] == "file":
        _folder(url, match["rest"])
    else:
        raise ConfigError(
            f"{url[:_SHOWN] or '(empty)'}: not a store; write s3://bucket/prefix or file:///folder"
        )


def folder_of(url: str) -> Path | None:
    """The folder of a store at `file:///folder`; None for a bucket, or if `url` is no address of a store."""
    match = _URL.fullmatch(url)
    if not match or match["scheme"] != "file":
        return None
    try:
        return _folder(url, match["rest"])
    except ConfigError:
        return None


def names_a_store(url: str) -> bool:
    """Whether `url` is written as the address of a bucket or of a folder is."""
    if folder_of(url) is not None:
        return True
    match = _URL.fullmatch(url)
    if not match or match["scheme"] != "s3":
        return False
    return _BUCKET.fullmatch(match["rest"].partition("/")[0]) is not None


def open_setup(url: str, *, encryption: str, call_seconds: float) -> "BucketSetup":
    """The settings of the bucket in `url`. Raises ConfigError for a folder, which has no settings."""
    match = _URL.fullmatch(url)
    if not match or match["scheme"] != "s3":
        raise ConfigError(f"{url}: only a bucket has settings to check; write s3://bucket/prefix")
    from trainyard.gateways.s3.bucket_setup import BucketSetup

    bucket, prefix = _bucket_of(url, match["rest"])
    return BucketSetup(bucket, prefix, encryption=encryption, call_seconds=call_seconds)


def _bucket_of(url: str, rest: str) -> tuple[str, str]:
    if rest.startswith("arn:"):
        raise ConfigError(
            f"{url}: an ARN is not taken as a bucket. Write the alias of the access point, which ends in "
            "-s3alias or --ol-s3: s3://ALIAS/prefix"
        )
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{url[:_SHOWN]}: {bucket[:_SHOWN] or '(empty)'} is no name of a bucket "
            "(3 to 63 of a-z, 0-9, . and -)"
        )
    if len(prefix.encode(errors="surrogateescape")) > _PREFIX_BYTES:
        raise ConfigError(
            f"{url[:_SHOWN]}…: a prefix of {len(prefix):,} letters; "
            f"at most {_PREFIX_BYTES} leave room for names"
        )
    return bucket, prefix.strip("/")


def _open_folder(url: str, rest: str, pace: Callable[[int], None]) -> "Store":
    from trainyard.gateways.local_store.folder import LocalStore

    return LocalStore(_folder(url, rest), pace)


def _folder(url: str, rest: str) -> Path:
    path = rest.removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigError(f"{url}: a folder's path must be absolute, with three slashes: file:///{rest}")
    encoded = unquote_to_bytes(path.encode(errors="surrogateescape"))  # names are bytes, of any encoding
    if b"\0" in encoded:
        raise ConfigError(f"{url}: %00 stands for a byte that no path can hold")
    if len(encoded) > _PATH_BYTES or any(len(name) > _NAME_BYTES for name in encoded.split(b"/")):
        raise ConfigError(
            f"{url[:_SHOWN]}…: no path of a folder: a name has at most {_NAME_BYTES} bytes, "
            f"and a store's path at most {_PATH_BYTES:,}"
        )
    return Path(os.fsdecode(encoded))
