"""SHA-256 of files, compared with a store's checksum."""

import base64
import hashlib

from trainyard.artifacts.store.object_store import (
    checksum_agrees,
)


def test_a_full_object_checksum_speaks_for_the_bytes() -> None:
    value = base64.b64encode(hashlib.sha256(b"abc").digest()).decode()
    checksum = {"algorithm": "SHA256", "type": "FULL_OBJECT", "value": value}
    assert checksum_agrees(checksum, hashlib.sha256(b"abc").hexdigest()) is True
    assert checksum_agrees(checksum, hashlib.sha256(b"abd").hexdigest()) is False


def test_another_checksum_speaks_only_when_it_is_on_record() -> None:
    checksum = {"algorithm": "CRC64NVME", "type": "FULL_OBJECT", "value": "x"}
    sha256 = hashlib.sha256(b"abc").hexdigest()
    assert checksum_agrees(checksum, sha256) is None
    assert checksum_agrees({}, sha256) is None
    assert checksum_agrees(checksum, sha256, checksum) is True
    assert checksum_agrees(checksum, sha256, checksum | {"value": "y"}) is False
    assert checksum_agrees(checksum, sha256, checksum | {"algorithm": "CRC32"}) is None
