"""training.block_file: the bytes are the same past the cache and through it, whatever their sizes."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.training import block_file
from trainyard.training.block_file import BlockFile

SHIPPED = block_file.BLOCK_BYTES
BLOCK = 1 << 12
DIRECT = getattr(os, "O_DIRECT", 0)
direct = pytest.mark.skipif(not DIRECT, reason="no system call here knows O_DIRECT")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_file, "BLOCK_BYTES", BLOCK)


class Calls:
    """The system's calls; each descriptor keeps the way it was opened for, as in a file system in user space.

    The files themselves go through the cache, so that no file system below has a say.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, int, bool]] = []
        """What was called, with how many bytes, and whether past the cache."""
        self.refused: Callable[[str, int], int | None] = lambda _call, _count: None
        """The error number that a call past the cache ends with, by its name and how many there were."""
        self._direct: dict[int, bool] = {}
        self._open, self._write, self._fsync = os.open, os.write, os.fsync
        patch.setattr(os, "open", self.open)
        patch.setattr(os, "write", self.write)
        patch.setattr(os, "fsync", self.fsync)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self._judge("open", is_direct := bool(flags & DIRECT))
        descriptor = self._open(path, flags & ~DIRECT, mode)
        self._direct[descriptor] = is_direct
        return descriptor

    def write(self, descriptor: int, content: memoryview) -> int:
        is_direct = self._direct[descriptor]
        self.seen.append(("write", len(content), is_direct))
        self._judge("write", is_direct)
        if is_direct and len(content) % 512:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._write(descriptor, content)

    def fsync(self, descriptor: int) -> None:
        self.seen.append(("fsync", 0, self._direct[descriptor]))
        self._fsync(descriptor)

    def _judge(self, call: str, is_direct: bool) -> None:
        if is_direct and (number := self.refused(call, sum(seen[0] == call for seen in self.seen))):
            raise OSError(number, os.strerror(number))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    with monkeypatch.context() as patch:
        yield Calls(patch)


def in_pages(content: bytes) -> memoryview:
    """A copy whose memory begins with a page."""
    memory = mmap.mmap(-1, max(len(content), 1))
    memory[: len(content)] = content
    return memoryview(memory)[: len(content)]


def written(path: Path, content: bytes, *, block: int = BLOCK) -> bytes:
    with BlockFile(path) as file:
        view = in_pages(content)
        for start in range(0, len(content), block):
            file.write(view[start : start + block])
        file.finish()
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, 511, 512, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 513])
def test_a_file_of_any_size_is_what_was_written(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)

    assert written(tmp_path / "file", content) == content


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 2 * BLOCK) | st.just(BLOCK), max_size=12))
def test_what_is_no_block_and_lies_anywhere_is_written_too(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    pieces, path = [os.urandom(size) for size in sizes], tmp_path_factory.mktemp("pieces") / "file"
    with BlockFile(path) as file:
        for piece in pieces:
            file.write(memoryview(piece))
        file.finish()

    assert path.read_bytes() == b"".join(pieces)


def test_blocks_of_the_shipped_size_are_of_whole_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_file, "BLOCK_BYTES", SHIPPED)
    content = os.urandom(2 * SHIPPED + (3 << 16) + 5)

    assert SHIPPED % mmap.PAGESIZE == 0
    assert written(tmp_path / "file", content, block=SHIPPED) == content


def test_an_older_file_of_that_name_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5 * BLOCK))

    assert written(tmp_path / "file", b"new") == b"new"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_it_may_be_read_by_whom_any_new_file_may(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        written(tmp_path / "file", b"new")
        (tmp_path / "other").write_bytes(b"new")
    finally:
        os.umask(before)

    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


@direct
def test_whole_blocks_go_past_the_cache_and_the_rest_through_it(tmp_path: Path, calls: Calls) -> None:
    written(tmp_path / "file", bytes(2 * BLOCK + 7))

    assert calls.seen == [
        ("write", BLOCK, True),
        ("write", BLOCK, True),
        ("write", 7, False),
        ("fsync", 0, False),
    ]


@direct
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize(("call", "after"), [("open", 0), ("write", 1), ("write", 3)])
def test_a_file_system_that_refuses_such_writes_gets_them_through_its_cache(
    tmp_path: Path, calls: Calls, call: str, after: int, number: int
) -> None:
    calls.refused = lambda name, count: number if name == call and count >= after else None
    content = os.urandom(4 * BLOCK + 7)

    assert written(tmp_path / "file", content) == content
    assert calls.seen[-1] == ("fsync", 0, False)


@direct
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_or_broken_is_an_error(tmp_path: Path, calls: Calls, number: int) -> None:
    calls.refused = lambda name, count: number if name == "write" and count > 1 else None

    with pytest.raises(OSError, match=os.strerror(number)):
        written(tmp_path / "file", bytes(4 * BLOCK))

    assert len(calls.seen) == 2


@direct
def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path, calls: Calls) -> None:
    with pytest.raises(FileNotFoundError):
        BlockFile(tmp_path / "none" / "file")

    assert not calls.seen


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_a_full_disk_is_an_error_through_the_cache_too() -> None:
    with pytest.raises(OSError, match="No space left"), BlockFile(Path("/dev/full")) as file:
        file.write(memoryview(bytes(2 * BLOCK)))


def test_a_write_cut_short_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = os.write
    content = os.urandom(2 * BLOCK + 700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, content: put(descriptor, content[:512]))
        written(tmp_path / "file", content)

    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing here lists open files")
def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    written(tmp_path / "file", bytes(2 * BLOCK + 7))
    with pytest.raises(ZeroDivisionError), BlockFile(tmp_path / "file") as file:
        file.write(memoryview(bytes(BLOCK)))
        raise ZeroDivisionError

    assert len(list(Path("/proc/self/fd").iterdir())) == before
