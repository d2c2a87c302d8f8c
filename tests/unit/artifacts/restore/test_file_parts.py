"""A file in parts arrives complete to the byte, and each part is requested only as often as needed."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from io import FileIO
from pathlib import Path

import pytest
from blake3 import blake3

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.restore.file_parts import PartedObject
from trainyard.artifacts.store.worker_threads import Workers
from trainyard.errors import ObjectChangedError, ServiceError
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.run.digests import PartDigests

PART = 1000
CONTENT = os.urandom(4 * PART + 321)
DIGESTS = tuple(blake3(CONTENT[at : at + PART]).hexdigest() for at in range(0, len(CONTENT), PART))


class Asked(LocalStore):
    """Records the start of each requested part, and spoils some of the answers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.starts: list[int] = []
        self.spoilt = 0
        """The number of next pieces that arrive with a bit flipped."""
        self.failures: list[Exception] = []
        """Each is raised after the first piece of one of the next answers."""

    def read_pieces(self, key: str, start: int, length: int, room: memoryview) -> Iterator[memoryview]:
        self.starts.append(start)
        for piece in super().read_pieces(key, start, length, room[:300]):
            if self.spoilt:
                self.spoilt -= 1
                piece[5] ^= 1
            yield piece
            if self.failures:
                raise self.failures.pop()


@pytest.fixture
def store(tmp_path: Path) -> Asked:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "key").write_bytes(CONTENT)
    return Asked(tmp_path / "store")


@pytest.fixture
def parted(store: Asked) -> PartedObject:
    entry = ManifestObject("key", len(CONTENT), "0" * 64)
    return PartedObject(store, entry, PartDigests(PART, DIGESTS))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[FileIO]:
    with (tmp_path / "file").open("x+b", buffering=0) as opened:
        yield opened


@pytest.fixture(params=[1, 3])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with closing(Workers(request.param)) as found:
        yield found


def fetch(parted: PartedObject, file: FileIO, workers: Workers) -> tuple[str | None, int]:
    """Return the problem, and the number of bytes that arrived."""
    landed: list[int] = []
    missing = parted.missing(file, workers)
    return parted.fetch(file, missing, workers, on_bytes=landed.append), sum(landed)


def content(file: FileIO) -> bytes:
    return Path(file.name).read_bytes()


def test_a_file_comes_in_parts(parted: PartedObject, file: FileIO, workers: Workers) -> None:
    assert fetch(parted, file, workers) == (None, len(CONTENT))
    assert content(file) == CONTENT
    assert parted.missing(file, workers) == []


def test_only_what_is_not_there_is_asked_for(
    parted: PartedObject, store: Asked, file: FileIO, workers: Workers
) -> None:
    left = bytearray(CONTENT + b"of a longer one")
    left[1200:1300] = bytes(100)
    left[4100] ^= 8
    file.write(left)
    assert fetch(parted, file, workers) == (None, 1321)
    assert sorted(store.starts) == [1000, 4000]
    assert content(file) == CONTENT


def test_a_beginning_with_a_hole_is_gone_on_with(
    parted: PartedObject, store: Asked, file: FileIO, workers: Workers
) -> None:
    os.pwrite(file.fileno(), CONTENT[2000:3500], 2000)
    assert fetch(parted, file, workers)[0] is None
    assert sorted(store.starts) == [0, 1000, 3000, 4000]
    assert content(file) == CONTENT


def test_damage_on_the_way_heals(parted: PartedObject, store: Asked, file: FileIO, workers: Workers) -> None:
    store.spoilt = 1
    assert fetch(parted, file, workers)[0] is None
    assert len(store.starts) == 6
    assert content(file) == CONTENT


def test_damage_in_the_store_is_named_with_its_place(
    parted: PartedObject, store: Asked, file: FileIO, workers: Workers
) -> None:
    damaged = bytearray(CONTENT)
    damaged[3999] ^= 1
    (store._root / "key").write_bytes(damaged)
    problem, _ = fetch(parted, file, workers)
    assert problem is not None
    assert "arrived of bytes 3,000 to 4,000, the checkpoint's manifest says" in problem
    assert DIGESTS[3][:12] in problem
    assert store.starts.count(3000) == 3
    (store._root / "key").write_bytes(CONTENT)
    assert parted.missing(file, workers) == [3]


def test_an_object_that_ends_too_early_is_named(
    parted: PartedObject, store: Asked, file: FileIO, workers: Workers
) -> None:
    (store._root / "key").write_bytes(CONTENT[:3500])
    problem, _ = fetch(parted, file, workers)
    assert problem == "ends at 3,500 bytes, the manifest says 4,321"


def test_an_object_that_is_not_there_is_named(
    parted: PartedObject, store: Asked, file: FileIO, workers: Workers
) -> None:
    (store._root / "key").unlink()
    assert fetch(parted, file, workers) == ("missing in the store", 0)


@pytest.mark.parametrize("times", [1, 99])
def test_an_object_that_is_replaced_meanwhile_is_read_again_and_named_in_the_end(
    parted: PartedObject, store: Asked, file: FileIO, workers: Workers, times: int
) -> None:
    store.failures = [ObjectChangedError("key")] * times
    problem, _ = fetch(parted, file, workers)
    assert problem == (None if times == 1 else "replaced while it was read")
    assert (content(file) == CONTENT) == (times == 1)


@pytest.mark.parametrize("failure", [ServiceError("the store is down"), OSError(errno.ENOSPC, "full")])
def test_what_landed_before_a_failure_stays(
    parted: PartedObject, store: Asked, file: FileIO, workers: Workers, failure: Exception
) -> None:
    store.failures = [failure]
    with pytest.raises(type(failure)):
        fetch(parted, file, workers)
    assert fetch(parted, file, workers)[0] is None
    assert content(file) == CONTENT


def test_when_one_part_fails_no_other_begins_and_none_is_at_work_any_more(
    parted: PartedObject, store: Asked, file: FileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that continued would write into a file that is closed, or whose descriptor is reused."""
    at_work, go_on, ended = threading.Event(), threading.Event(), []

    def slow_or_broken(key: str, start: int, length: int, room: memoryview) -> Iterator[memoryview]:
        store.starts.append(start)
        if start:
            assert at_work.wait(30)
            threading.Timer(0.3, go_on.set).start()
            raise ServiceError("the store is down")
        at_work.set()
        assert go_on.wait(30)
        yield from ()
        ended.append(start)

    monkeypatch.setattr(store, "read_pieces", slow_or_broken)
    with closing(Workers(2)) as workers, pytest.raises(ServiceError):
        try:
            parted.fetch(file, range(5), workers, on_bytes=lambda _count: None)
        finally:
            seen = list(ended)
    assert seen
    assert sorted(set(store.starts)) == [0, 1000]


@pytest.fixture
def long(store: Asked) -> PartedObject:
    """An object of 34 parts; the last one is short."""
    content = os.urandom(33 * PART + 5)
    (store._root / "long").write_bytes(content)
    parts = tuple(blake3(content[at : at + PART]).hexdigest() for at in range(0, len(content), PART))
    return PartedObject(store, ManifestObject("long", len(content), "0" * 64), PartDigests(PART, parts))


def spoil(store: Asked, *places: int) -> bytes:
    content = bytearray((store._root / "long").read_bytes())
    for place in places:
        content[place] ^= 1
    (store._root / "long").write_bytes(content)
    return bytes(content)


def test_a_long_file_is_asked_for_part_by_part(long: PartedObject, store: Asked, file: FileIO) -> None:
    with closing(Workers(8)) as workers:
        assert fetch(long, file, workers) == (None, 33_005)
    assert sorted(store.starts) == list(range(0, 33_005, PART))
    assert content(file) == (store._root / "long").read_bytes()


def test_of_several_parts_only_the_wrong_ones_are_asked_for_again(
    long: PartedObject, store: Asked, file: FileIO
) -> None:
    spoilt = spoil(store, 5_000, 6_999, 33_001)
    with closing(Workers(8)) as workers:
        problem, landed = fetch(long, file, workers)
        assert problem is not None
        assert "arrived of bytes 5,000 to 6,000" in problem
        again = [start for start in set(store.starts) if store.starts.count(start) > 1]
        assert sorted(again) == [5000, 6000, 33_000]
        assert len(store.starts) == 34 + 2 * 3
        assert landed == 33_005 + 2 * 2005
        assert content(file) == spoilt
        spoil(store, 5_000, 6_999, 33_001)
        assert long.missing(file, workers) == [5, 6, 33]
        assert fetch(long, file, workers) == (None, 2005)


def test_a_long_object_that_ends_too_early_is_named(long: PartedObject, store: Asked, file: FileIO) -> None:
    whole = (store._root / "long").read_bytes()
    (store._root / "long").write_bytes(whole[:30_500])
    with closing(Workers(8)) as workers:
        problem, _ = fetch(long, file, workers)
        assert problem == "ends at 30,500 bytes, the manifest says 33,005"
        assert long.missing(file, workers) == [30, 31, 32, 33]


def test_parts_that_are_written_short_are_written_on(
    parted: PartedObject, file: FileIO, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, piece, place: real(number, piece[:7], place))
    assert fetch(parted, file, workers)[0] is None
    assert content(file) == CONTENT
