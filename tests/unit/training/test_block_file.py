"""training.block_file: the bytes are the same past the cache and through it, whatever their sizes."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.training import block_file
from trainyard.training.block_file import BlockFile

BLOCK = 1 << 12
direct = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no system call here knows O_DIRECT")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_file, "BLOCK_BYTES", BLOCK)


def written(path: Path, contents: Sequence[bytes]) -> bytes:
    with BlockFile(path) as file:
        for content in contents:
            file.write(memoryview(content))
        file.finish()
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, 511, 512, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 513])
def test_a_file_of_any_size_is_what_was_written(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)

    assert written(tmp_path / "file", [content]) == content


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 3 * BLOCK), max_size=12))
def test_pieces_of_any_sizes_follow_each_other(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    pieces = [os.urandom(size) for size in sizes]

    assert written(tmp_path_factory.mktemp("pieces") / "file", pieces) == b"".join(pieces)


def test_an_older_file_of_that_name_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5 * BLOCK))

    assert written(tmp_path / "file", [b"new"]) == b"new"


@direct
@pytest.mark.parametrize("refused", ["when it is opened", "when it is written"])
def test_a_file_system_without_such_writes_gets_them_through_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    opened, put, asked = os.open, os.write, []

    def strict_open(path: Path, flags: int, mode: int = 0o777) -> int:
        asked.append(flags & os.O_DIRECT)
        if flags & os.O_DIRECT and refused == "when it is opened":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opened(path, flags, mode)

    def strict_write(descriptor: int, content: memoryview) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return put(descriptor, content)

    content = os.urandom(2 * BLOCK + 7)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", strict_open)
        patch.setattr(os, "write", strict_write)
        with BlockFile(tmp_path / "file") as file:
            file.write(content)
            file.finish()

    assert asked[0]
    assert (tmp_path / "file").read_bytes() == content


@direct
def test_whole_blocks_go_past_the_cache_and_the_rest_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, ways = os.write, []

    def watched(descriptor: int, content: memoryview) -> int:
        ways.append((len(content), bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)))
        return put(descriptor, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", watched)
        with BlockFile(tmp_path / "file") as file:
            knows = bool(fcntl.fcntl(file._descriptor, fcntl.F_GETFL) & os.O_DIRECT)
            file.write(bytes(2 * BLOCK + 7))
            file.finish()

    assert ways == [(BLOCK, knows), (BLOCK, knows), (7, False)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_a_full_disk_is_an_error_and_not_a_short_file() -> None:
    with pytest.raises(OSError, match="No space left"), BlockFile(Path("/dev/full")) as file:
        file.write(bytes(2 * BLOCK))


def test_a_write_cut_short_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = os.write

    def short(descriptor: int, content: memoryview) -> int:
        return put(descriptor, content[:512])

    content = os.urandom(2 * BLOCK + 700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with BlockFile(tmp_path / "file") as file:
            file.write(content)
            file.finish()

    assert (tmp_path / "file").read_bytes() == content
