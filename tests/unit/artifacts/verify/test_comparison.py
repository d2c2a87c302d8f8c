"""A checksum that could be forged is believed only while the object is the one that was stored."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.verify.comparison import Depth, compare_objects
from trainyard.gateways import GatewayObject

CRC: Any = {"algorithm": "CRC64NVME", "type": "FULL_OBJECT", "value": "x"}


class OneObject:
    """A store with one object, whose CRC is always the same."""

    def __init__(self, content: bytes, etag: str) -> None:
        self.content, self.etag, self.reads = content, etag, 0

    def describe(self, key: str) -> GatewayObject:
        return GatewayObject(key, len(self.content), self.etag, CRC, identity=self.etag)

    def stream(self, key: str, start: int, size: int, *, identity: str = "") -> Iterator[bytes]:
        assert (start, size, identity) == (0, len(self.content), self.etag)
        self.reads += 1
        yield self.content


@pytest.mark.parametrize(
    ("content", "etag", "reads", "wrong"),
    [(b"good", "1", 0, False), (b"good", "2", 1, False), (b"evil", "2", 2, True)],
)
def test_bytes_are_read_where_only_a_crc_speaks_for_an_object_that_was_replaced(
    content: bytes, etag: str, reads: int, wrong: bool
) -> None:
    store: Any = OneObject(content, etag)
    entry = ManifestObject("k", 4, hashlib.sha256(b"good").hexdigest(), CRC, "1")
    listed: Any = {"k": ManifestObject("k", 4, "0" * 64, {}, etag)}
    found = compare_objects(store, [entry], listed, depth=Depth.LISTING)
    assert bool(found) is wrong
    assert store.reads == reads


def test_bytes_that_are_damaged_on_the_way_are_read_again(caplog: pytest.LogCaptureFixture) -> None:
    class DamagedOnce(OneObject):
        def stream(self, key: str, start: int, size: int, *, identity: str = "") -> Iterator[bytes]:
            for chunk in super().stream(key, start, size, identity=identity):
                yield chunk if self.reads > 1 else b"evil"

    store: Any = DamagedOnce(b"good", "1")
    entry = ManifestObject("k", 4, hashlib.sha256(b"good").hexdigest(), CRC, "1")
    listed: Any = {"k": ManifestObject("k", 4, "0" * 64, {}, "1")}
    assert compare_objects(store, [entry], listed, depth=Depth.FULL) == {}
    assert store.reads == 2
    assert "correct when read again: it was damaged in transit" in caplog.text
