"""Files that are not text, and the nearest name to a missing one."""

import os
from pathlib import Path

import pytest

from trainyard.config.yaml.sources import MAX_BYTES, Fault, read_source


def fault(path: Path) -> Fault:
    found = read_source(path)
    assert isinstance(found, Fault)
    return found


def test_text_is_read_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfname: \xc3\xa9\n")
    assert read_source(tmp_path / "a.yaml") == "name: é\n"


@pytest.mark.parametrize(
    ("content", "line", "word"),
    [
        (b"a: 1\nb: \xff\n", 2, "0xff is not UTF-8"),
        (b"a: 1\n\n\x00\x01", 3, "control character 0x00"),
        (b"\x7fELF\x02\x01", 1, "control character 0x7f"),
        ("a: 1\n".encode("utf-16"), 1, "UTF-16"),
        (b"\x80\x04\x95", 1, "0x80 is not UTF-8"),
    ],
)
def test_what_is_no_text_is_named_by_line(tmp_path: Path, content: bytes, line: int, word: str) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    found = fault(tmp_path / "a.yaml")
    assert found.line == line
    assert word in found.message
    assert found.opened


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert fault(tmp_path / "a.yaml").message.startswith("more than 32 MB")


def test_an_endless_file_is_refused() -> None:
    assert fault(Path("/dev/zero")).message.startswith("is not a regular file")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("configs/smok.yaml", "configs/smoke.yaml"),
        ("config/smoke.yaml", "configs/smoke.yaml"),
        ("configs/smoke", "configs/smoke.yaml"),
        ("configs/smoke.yml", "configs/smoke.yaml"),
        ("smoke", "configs/smoke.yaml"),
        ("smoke.yaml", "configs/smoke.yaml"),
        ("llama-3.1-8b", "configs/models/llama-3.1-8b.yaml"),
        ("configs/llama-3.1-8b", "configs/models/llama-3.1-8b.yaml"),
    ],
)
def test_a_missing_file_is_answered_with_the_nearest_name(folder: Path, asked: str, near: str) -> None:
    (folder / "configs/models").mkdir(parents=True)
    (folder / "configs/models/llama-3.1-8b.yaml").touch()
    (folder / "configs/smoke.yaml").touch()
    (folder / "configs/smoke.json").touch()
    found = fault(Path(asked))
    assert found == Fault(f"no such file; did you mean {near}?", opened=False)


@pytest.mark.parametrize("asked", ["zzz.yaml", "no/such/folder/a.yaml"])
def test_a_missing_file_without_a_near_one_is_only_missing(folder: Path, asked: str) -> None:
    assert fault(Path(asked)) == Fault("no such file", opened=False)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert fault(tmp_path).message == "is a directory; name a file in it"


def test_a_name_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    assert fault(tmp_path / ("a" * 5000)).message == "cannot be read (File name too long)"


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert fault(tmp_path / "a" / "b.yaml").message == "cannot be read (Not a directory)"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert fault(tmp_path / "pipe.yaml").message.startswith("is not a regular file")
