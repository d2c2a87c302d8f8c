import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from trainyard.run.atomic_files import (
    bytes_on_disk,
    sha256_of_file,
    write_bytes_atomically,
    write_json_atomically,
)


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes_atomically(path, b"old")
    write_bytes_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_bytes_atomically(path, b"old")

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_bytes_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_json_is_readable_by_people(tmp_path: Path) -> None:
    write_json_atomically(tmp_path / "a.json", {"name": "Bücher", "n": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "name": "Bücher",\n  "n": 1\n}\n'


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_digest_is_that_of_all_bytes(tmp_path: Path, size: int) -> None:
    content = bytes(i % 251 for i in range(size))
    (tmp_path / "f").write_bytes(content)
    assert sha256_of_file(tmp_path / "f") == hashlib.sha256(content).hexdigest()


def test_a_link_stays_and_the_file_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link = tmp_path / "link"
    link.symlink_to("far/file")
    for content in (b"new", b"newer"):
        write_bytes_atomically(link, content)
        assert link.is_symlink()
        assert (tmp_path / "far" / "file").read_bytes() == content
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "file", "link"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, content, read = tmp_path / "pipe", b"x" * 200_000, []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_bytes_atomically(pipe, content)
    reader.join(timeout=60)
    assert read == [content]
    assert pipe.is_fifo()


def test_a_device_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "device"
    link.symlink_to("/dev/full")
    monkeypatch.delattr(Path, "replace")  # this machine needs its device, also when the test fails
    with pytest.raises(OSError, match="No space left"):
        write_bytes_atomically(link, b"x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert link.is_symlink()


def test_holes_take_nothing_on_the_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        os.pwrite(file.fileno(), b"x" * 8192, 100 << 20)
    assert 8192 <= bytes_on_disk(tmp_path / "file") < 1 << 20
    (tmp_path / "short").write_bytes(b"x" * 10)
    assert bytes_on_disk(tmp_path / "short") == 10
    assert bytes_on_disk(tmp_path / "none") == 0
