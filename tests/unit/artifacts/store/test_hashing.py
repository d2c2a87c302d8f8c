"""SHA-256 of files, compared with a store's checksum."""

import base64
import hashlib
import os
from pathlib import Path

import pytest

from trainyard.artifacts.store.hashing import (
    calculate_file_hash,
    checksum_agrees,
    composite_sha256,
    file_agrees,
    sha256_of_chunks,
)


def b64(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    content = os.urandom(3_000_001)
    (tmp_path / "f").write_bytes(content)
    assert calculate_file_hash(str(tmp_path / "f")) == hashlib.sha256(content).hexdigest()


def test_chunks_are_hashed_and_counted() -> None:
    assert sha256_of_chunks([b"ab", b"", b"c"]) == (hashlib.sha256(b"abc").hexdigest(), 3)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 35])
def test_the_composite_is_the_hash_of_the_parts_digests(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "f").write_bytes(content)
    digests = [hashlib.sha256(content[at : at + 10]).digest() for at in range(0, size, 10)]
    assert composite_sha256(tmp_path / "f", 10) == b64(b"".join(digests))


def test_a_full_object_checksum_speaks_for_the_bytes() -> None:
    checksum = {"algorithm": "SHA256", "type": "FULL_OBJECT", "value": b64(b"abc")}
    assert checksum_agrees(checksum, hashlib.sha256(b"abc").hexdigest()) is True
    assert checksum_agrees(checksum, hashlib.sha256(b"abd").hexdigest()) is False


def test_a_composite_speaks_only_when_the_same_parts_are_on_record() -> None:
    checksum = {"algorithm": "SHA256", "type": "COMPOSITE", "part_size": 10, "value": "x-2"}
    sha256 = hashlib.sha256(b"abc").hexdigest()
    assert checksum_agrees(checksum, sha256) is None
    assert checksum_agrees(checksum, sha256, checksum) is True
    assert checksum_agrees(checksum, sha256, checksum | {"value": "y-2"}) is False
    assert checksum_agrees(checksum, sha256, checksum | {"part_size": 20}) is None


@pytest.mark.parametrize("checksum", [{}, {"algorithm": "CRC64NVME", "value": "x"}])
def test_no_sha256_says_nothing(checksum: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    sha256 = hashlib.sha256(b"abc").hexdigest()
    assert checksum_agrees(checksum, sha256) is None
    assert file_agrees(checksum, tmp_path / "f", sha256) is None


@pytest.mark.parametrize("suffix", ["", "-2"])
def test_a_file_is_compared_with_a_composite_in_its_parts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 15)
    value = composite_sha256(path, 10) + suffix
    checksum = {"algorithm": "SHA256", "type": "COMPOSITE", "part_size": 10, "value": value}
    assert file_agrees(checksum, path, calculate_file_hash(str(path))) is True
    path.write_bytes(b"a" * 14 + b"b")
    assert file_agrees(checksum, path, calculate_file_hash(str(path))) is False
