"""The only code that touches the outside world: S3, local stores, Slack, GitHub, git, other processes.

`open_store` opens a store by its URL; adding a kind of store takes one module and one line in
`config.registries`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config.registries import STORE_SCHEMES, store_examples
from trainyard.errors import ConfigError, VerificationError

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.gateways.s3.bucket_setup import BucketSetup

CALL_SECONDS = 30.0
"""Default time limit of one read or write on the connection to a store."""
MOST_OBJECT_BYTES = 256 << 20
"""The most bytes of an object that is read as a whole: the manifest of a million objects is smaller."""
SHOWN_CHARACTERS = 80
"""The most characters of an address that a message repeats."""
_URL = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<rest>.*)", re.DOTALL)


def joined(key: str, chunks: Iterable[bytes]) -> bytes:
    """Return the bytes of a small object. Raises VerificationError when it is too large for a record."""
    pieces, size = list[bytes](), 0
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        require_small(key, size)
    return b"".join(pieces)


def require_small(key: str, size: int) -> None:
    """Raise VerificationError when an object of `size` bytes is too large for a record."""
    if size > MOST_OBJECT_BYTES:
        raise VerificationError(
            f"{key}: damaged: more than {MOST_OBJECT_BYTES:,} bytes, where a record belongs"
        )


def no_pace(count: int) -> None:
    """The default pace: never wait."""


@dataclass(frozen=True)
class StoreOptions:
    """The options of a store; a kind of store reads those that apply to it."""

    encryption: str = "AES256"
    """Requested from S3 for every object: `AES256`, `aws:kms` or `none`."""
    call_seconds: float = CALL_SECONDS
    pace: Callable[[int], None] = no_pace
    """Called with the number of bytes before each block of a file is read; it may wait."""
    checksum: str = "CRC64NVME"
    """The checksum that S3 computes for multipart uploads, or `SHA256` (`gateways.s3.checksums`)."""
    attempts: int | None = None
    """The most attempts per call, below AWS_MAX_ATTEMPTS."""
    part_bytes: int | None = None
    """Send every file above this size to S3 in parts of this size, for a check; None: as a run is stored."""


def open_store(
    url: str,
    *,
    encryption: str = "AES256",
    call_seconds: float = CALL_SECONDS,
    pace: Callable[[int], None] = no_pace,
    checksum: str = "CRC64NVME",
    attempts: int | None = None,
    part_bytes: int | None = None,
) -> "Store":
    """Open the store at `url`, such as `s3://bucket/prefix` or `file:///folder`. It sends nothing yet.

    `StoreOptions` says what the options mean. Raises ConfigError for any other URL.
    """
    module, rest = _kind_of_store(url)
    options = StoreOptions(encryption, call_seconds, pace, checksum, attempts, part_bytes)
    store: Store = module.open_at(url, rest, options)
    return store


def require_address(url: str) -> None:
    """Raise ConfigError when `url` is not an address of a store. Nothing is opened."""
    module, rest = _kind_of_store(url)
    module.require_address(url, rest)


def local_store_folder(url: str) -> Path | None:
    """The folder of a store at `file:///folder`; None for a bucket and for any other text."""
    match = _URL.fullmatch(url)
    if not match or match["scheme"] != "file":
        return None
    from trainyard.gateways.local_store.folder_address import folder_at

    try:
        return folder_at(url, match["rest"])
    except ConfigError:
        return None


def names_a_store(url: str) -> bool:
    """Whether `url` is written as the address of a store is."""
    try:
        module, rest = _kind_of_store(url)
    except ConfigError:
        return False
    return bool(module.names_a_store(rest))


def open_setup(url: str, *, encryption: str, call_seconds: float) -> "BucketSetup":
    """The settings of the bucket in `url`. Raises ConfigError for a folder, which has no settings."""
    match = _URL.fullmatch(url)
    if not match or match["scheme"] != "s3":
        raise ConfigError(f"{url}: only a bucket has settings to check; write s3://bucket/prefix")
    from trainyard.gateways.s3.bucket_address import bucket_of
    from trainyard.gateways.s3.bucket_setup import BucketSetup

    bucket, prefix = bucket_of(url, match["rest"])
    return BucketSetup(bucket, prefix, encryption=encryption, call_seconds=call_seconds)


def _kind_of_store(url: str) -> tuple[Any, str]:
    """Import the module for the scheme of `url`; also return what follows the scheme."""
    match = _URL.fullmatch(url)
    entry = STORE_SCHEMES.get(match["scheme"]) if match else None
    if match is None or entry is None:
        raise ConfigError(f"{url[:SHOWN_CHARACTERS] or '(empty)'}: not a store; write {store_examples()}")
    return import_module(entry.module), match["rest"]
