"""Files of this run and from outside: written completely or not at all, read as a usable value or refused."""

import hashlib
import json
import math
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.errors import DamagedFileError
from trainyard.run.atomic_files import (
    bytes_on_disk,
    sha256_of_file,
    write_bytes_atomically,
    write_json_atomically,
)
from trainyard.run.untrusted_files import (
    MOST_BYTES,
    iterate_json_lines,
    open_regular,
    parse_json,
    parse_json_line,
    parse_json_object,
    read_bytes,
    read_json_object,
    same_json,
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


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(VALUES)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert parse_json(json.dumps(value), "x.json") == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode(), "x.json") == value


@given(
    st.binary(max_size=200)
    | st.text(max_size=200)
    | st.text('[]{}":,0123456789eE+-.\\udDabcf8 \n', max_size=120)
)
@QUICK
def test_whatever_the_bytes_are_the_answer_is_a_value_or_damaged(content: bytes | str) -> None:
    for parse in (parse_json, parse_json_object):
        try:
            value = parse(content, "the name")
        except DamagedFileError as error:
            assert "the name" in str(error)
        else:
            str(value)


@given(st.lists(st.binary(max_size=60), max_size=8))
@QUICK
def test_lines_are_objects_or_none(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(lines))
    found = list(iterate_json_lines(path))
    assert all(row is None or isinstance(row, dict) for row in found)
    assert len(found) == len(path.read_bytes().splitlines(keepends=True)) or b"\r" in path.read_bytes()


WRONG = {
    "not a number": "NaN",
    "infinite": "-Infinity",
    "a whole number of thousands of digits": "9" * 5000,
    "deep lists": "[" * 101 + "]" * 101,
    "very deep": "[" * 200_000,
    "deep objects": '{"a":' * 101 + "1" + "}" * 101,
    "nothing": "",
    "half": '{"run_id": "a',
    "two": "{} {}",
}


@each_case("text", WRONG.values(), ids=WRONG.keys())
def test_what_nobody_could_use_is_damaged(text: str) -> None:
    with pytest.raises(DamagedFileError, match=r"^run\.json:.*damaged"):
        parse_json(text, "run.json")
    with pytest.raises(DamagedFileError, match=r"^run\.json:.*damaged"):
        parse_json('{"a": 1, "b": ' + text, "run.json")


def test_the_line_is_named() -> None:
    with pytest.raises(DamagedFileError, match=r"^a\.json:3: damaged, not readable as JSON"):
        parse_json('{\n"a": 1,\n"b" 2}', "a.json")
    with pytest.raises(DamagedFileError, match=r"^a\.json:2: damaged: byte 0xff is not UTF-8"):
        parse_json(b'{\n"a": "\xff"}', "a.json")


@pytest.mark.parametrize("text", ["[1]", "null", "7", '"a"', "true"])
def test_another_value_is_no_object(text: str) -> None:
    with pytest.raises(DamagedFileError, match="not an object"):
        parse_json_object(text, "a.json")


def test_a_row_may_hold_what_is_no_finite_number_and_nothing_else_of_that() -> None:
    row = parse_json_line(b'{"loss": NaN, "step": 3}')
    assert row is not None
    assert math.isnan(row["loss"])
    for text in (b'"\\ud800"', b"[" * 5000, b"[" * 101 + b"]" * 101):
        assert parse_json_line(b'{"loss": %s}' % text) is None


@given(st.dictionaries(TEXTS, VALUES))
def test_a_row_is_read_as_it_was_written(row: dict[str, Any]) -> None:
    assert parse_json_line(json.dumps(row).encode()) == row
    assert repr(parse_json_line(json.dumps(row, ensure_ascii=False).encode())) == repr(row)


@pytest.mark.parametrize(
    ("line", "is_good"),
    [
        ('{"loss": NaN, "step": 3, "loss": 2.1}', False),
        ('{"loss" : NaN, "step": 3, "loss":2.1}', False),
        ('{"step": 3, "events": {"a": 1, "a": 2}}', False),
        ('{"step": 3, "events": {"a": 1, "b": 2}}', True),
        ('{"step": 3, "why": "a: b: c"}', True),
    ],
)
def test_a_line_with_a_key_twice_is_no_line(line: str, is_good: bool) -> None:
    assert (parse_json_line(line.encode()) is not None) is is_good


def test_a_line_without_end_is_damage_and_is_not_read_to_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    os.truncate(path, 1 << 40)
    rows = iterate_json_lines(path)
    assert next(rows) == {"step": 1}
    with pytest.raises(DamagedFileError, match=r"rows\.jsonl: damaged: a line of more than 16,777,216 bytes"):
        next(rows)


def test_the_bytes_that_pass_are_those_of_the_file(tmp_path: Path) -> None:
    path, passed = tmp_path / "rows.jsonl", bytearray()
    path.write_bytes(b'{"step": 1}\n\xff\nhalf')
    assert list(iterate_json_lines(path, passing=passed.extend)) == [{"step": 1}, None, None]
    assert bytes(passed) == path.read_bytes()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, folder, circle, endless])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "run.json"
    make(path)
    for read in (read_bytes, read_json_object, open_regular):
        with pytest.raises(DamagedFileError, match=r"run\.json: "):
            read(path)
    with pytest.raises(DamagedFileError, match=r"run\.json: "):
        list(iterate_json_lines(path))


def test_a_link_is_refused_where_links_are(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("{}")
    (tmp_path / "link").symlink_to("own")
    assert read_json_object(tmp_path / "link") == {}
    with pytest.raises(DamagedFileError, match="link: a symbolic link"):
        read_bytes(tmp_path / "link", links=False)


@pytest.mark.parametrize("name", ["absent", "file/below", "a" * 300, "a\0b"])
def test_what_is_not_there_is_missing_and_no_more(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((FileNotFoundError, DamagedFileError)):
        read_bytes(tmp_path / name)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(DamagedFileError, match="more than"):
        read_json_object(path)


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), (1, 1.0), ({"a": [1]}, {"a": [True]}), ("", None)]
)
def test_what_python_takes_for_the_same_is_not_the_same_record(one: Any, other: Any) -> None:
    assert not same_json(one, other)
    assert same_json(one, json.loads(json.dumps(one)))
    assert same_json({"a": 1, "b": other}, {"b": other, "a": 1})
