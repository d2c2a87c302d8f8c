"""Values that are wrong, or strange but valid, by the kind of the option."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from tests.scripts.command_lines.grounds import GOOD, Grounds
from tests.scripts.command_lines.options import Kind, Option

DIGITS = "9" * 5000
RAW = "caf\udce9"
"""A name that is not UTF-8."""


class Expected(Enum):
    """The answer that a script must give."""

    REFUSED = auto()
    """Exit code 2, and the option is named."""
    ANSWERED = auto()
    """Any code but 3; where it is not 0, the option or the value is named."""
    AS_USUAL = auto()
    """The value is strange but valid: the same exit code as for a plain one."""


@dataclass(frozen=True)
class Value:
    """One thing to give to an option."""

    name: str
    text: str
    expected: Expected = Expected.ANSWERED


def values_for(option: Option, grounds: Grounds) -> Iterator[Value]:
    makers = {
        Kind.NUMBER: numbers,
        Kind.DURATION: numbers,
        Kind.PATH: paths,
        Kind.ADDRESS: addresses,
        Kind.SETTING: settings,
        Kind.CHOICE: choices,
        Kind.TEXT: texts,
    }
    if option.kind in makers:
        yield from makers[option.kind](option, grounds)


def numbers(option: Option, _: Grounds) -> Iterator[Value]:
    unit = "s" if option.kind is Kind.DURATION else ""
    for text in (DIGITS, "inf", "-inf", "nan", "1e400", "-1", "text", "१२", "0x10", "1_000", " 7", RAW):
        if (option.script, text) != ("explain", "-1"):  # a process that signal 1 ended
            yield Value(text[:8], text + unit, Expected.REFUSED)
    if unit:
        yield Value("no unit", "7", Expected.REFUSED)
    if not option.may_be_empty:
        yield Value("empty", "", Expected.REFUSED)
    yield Value("zero", f"0{unit}")
    yield Value("as much as can be said", "9" * 18 + unit)


def choices(option: Option, _: Grounds) -> Iterator[Value]:
    for text in (
        "nonsense",
        DIGITS,
        RAW,
        " ",
        "" if not option.action.choices or "" not in option.action.choices else "x",
    ):
        yield Value(text[:8] or "empty", text, Expected.REFUSED)


def paths(option: Option, grounds: Grounds) -> Iterator[Value]:
    yield Value("empty", "", Expected.REFUSED)
    yield Value("300 letters", "a" * 300, Expected.REFUSED)
    yield Value("300 letters below", f"{grounds.path}/{'a' * 300}/b", Expected.REFUSED)
    yield Value("5,000 letters", "a/" * 2500, Expected.REFUSED)
    for name, text in odd_things(grounds):
        yield Value(name, text)
    yield Value("no UTF-8", copied(option, grounds), Expected.AS_USUAL)


def odd_things(grounds: Grounds) -> Iterator[tuple[str, str]]:
    """Paths to nothing, or to the wrong kind of thing."""
    odd = grounds.path / "odd"
    shutil.rmtree(odd, ignore_errors=True)
    (odd / "folder").mkdir(parents=True)
    (odd / "file").write_bytes(b"\xff\x00 no words\n" * 9)
    os.mkfifo(odd / "pipe")
    (odd / "dangling").symlink_to("nowhere")
    (odd / "loop").symlink_to("loop")
    names = (
        "file",
        "folder",
        "pipe",
        "dangling",
        "loop",
        "missing",
        RAW,
        "file/below",
        "missing/below",
        "nowhere/below",
        "pipe/x",
    )
    yield from ((name, str(odd / name)) for name in names)
    yield "/dev/null", os.devnull
    yield "the root", "/"


def copied(option: Option, grounds: Grounds) -> str:
    """Copy a valid file to a path that is not UTF-8, and return the path."""
    there = grounds.path / RAW / str(id(option))
    there.parent.mkdir(exist_ok=True)
    good = Path(GOOD.get(option.name, GOOD["output"])(grounds))
    if os.path.lexists(there):
        shutil.rmtree(there) if there.is_dir() else there.unlink()
    if good.is_dir():
        shutil.copytree(good, there, dirs_exist_ok=True)
    elif good.is_file():
        shutil.copy(good, there)
    return str(there)


def addresses(option: Option, grounds: Grounds) -> Iterator[Value]:
    for text in (
        "nonsense",
        "http://a/b",
        "file://relative",
        "s3://",
        "s3://A_B/c",
        "file:///%00",
        "://",
        "s3:/bucket",
    ):
        yield Value(text, text, Expected.REFUSED)
    yield Value("5,000 letters", "file:///" + "a/" * 2500, Expected.REFUSED)
    yield Value("300 letters", "file:///" + "a" * 300)
    yield Value("a bucket of 5,000 letters", "s3://" + "a" * 5000, Expected.REFUSED)
    yield Value("a prefix of 5,000 letters", "s3://bucket/" + "a" * 5000, Expected.REFUSED)
    for name, path in odd_things(grounds):
        yield Value(name, f"file://{path}")
    yield Value("no UTF-8 in percent", f"file://{grounds.path}/caf%E9")


def settings(option: Option, _: Grounds) -> Iterator[Value]:
    key = "training.max_steps"
    for text in ("", "=", "=1", "key", " ", DIGITS, f"{'a' * 5000}=1", "a." * 5000 + "=1", f"{RAW}=1"):
        yield Value(text[:9] or "empty", text, Expected.REFUSED)
    deep, twice = "[" * 5000, "{a: &x [1], b: *x}"
    for text in (
        DIGITS,
        f"-{DIGITS}",
        ".inf",
        ".nan",
        "1e400",
        "-1",
        "१२",
        "x",
        deep,
        twice,
        RAW,
        "&a [*a]",
        "!!python/object:x",
    ):
        yield Value(f"{key}={text[:9]}", f"{key}={text}", Expected.REFUSED)
    for text in ("", "0", "0x10", "1_000", "null"):
        yield Value(f"{key}={text}", f"{key}={text}")


def texts(_: Option, grounds: Grounds) -> Iterator[Value]:
    for text in (RAW, "", "=", "two\nlines", "\x1b[31m", DIGITS, "[" * 5000, "../x", str(grounds.run)):
        yield Value(repr(text[:9]), text)
