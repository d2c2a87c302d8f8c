"""Read JSON, JSON lines and YAML from files that came from outside: bounded, and without blocking.

    path --opened without blocking, a regular file--> bytes --size--> text --UTF-8--> value --depth

The result is a value, or a DamagedFileError that names the file and, if known, the line. The callers
interpret the values.
"""

import hashlib
import io
import json
import os
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from trainyard.errors import ConfigError, DamagedFileError

# The manifest of a million objects is smaller.
MOST_BYTES = 256 << 20
MOST_LINE_BYTES = 16 << 20
MOST_YAML_BYTES = 4 << 20
MOST_DEPTH = 100


def open_regular(path: Path, *, links: bool = True) -> io.BufferedReader:
    """Open a regular file for reading; refuse a pipe, a device or a folder without waiting for it.

    Without `links`, a symbolic link is refused, too. Raises FileNotFoundError when the path does not exist,
    and DamagedFileError for anything else that is not a readable regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        if not links and path.is_symlink():
            raise DamagedFileError(f"{path}: a symbolic link; put the file itself there")
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path}: missing") from None
    except (OSError, ValueError) as error:  # ValueError: the name contains a null character
        raise DamagedFileError(f"{path}: cannot be read ({_words(error)})") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise DamagedFileError(f"{path}: {kind}, where a file belongs")
    return open(descriptor, "rb")  # noqa: PTH123 - the caller closes it


def read_bytes(path: Path, *, most: int = MOST_BYTES, links: bool = True) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises as `open_regular` does."""
    with open_regular(path, links=links) as file:
        try:
            content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else b""
        except OSError as error:
            raise DamagedFileError(f"{path}: cannot be read ({_words(error)})") from None
        if len(content) > most or os.fstat(file.fileno()).st_size > most:
            raise DamagedFileError(f"{path}: damaged: more than {most:,} bytes")
    return content


def read_text(path: Path, *, most: int = MOST_BYTES) -> str:
    """Return the content of a regular file as UTF-8. Raises as `open_regular` does."""
    return decode_utf8(read_bytes(path, most=most), str(path))


def read_named_text(path: Path, hint: str) -> str:
    """Return the text of a file from the command line. Raises ConfigError with `hint`, which names it."""
    try:
        return read_text(path)
    except (FileNotFoundError, DamagedFileError) as error:
        raise ConfigError(f"{error}; {hint}") from None


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises as `open_regular`, and DamagedFileError for invalid JSON."""
    return parse_json(read_bytes(path), str(path))


def read_json_object(path: Path, *, links: bool = True) -> dict[str, Any]:
    """Return the object in a JSON file. Raises as `read_json` does."""
    return parse_json_object(read_bytes(path, links=links), str(path))


def parse_json(content: bytes | str, name: str) -> Any:
    """Parse a JSON document, called `name` in messages.

    Raises DamagedFileError, also for a key twice, NaN, infinity and more than MOST_DEPTH levels.
    """
    if len(content) > MOST_BYTES:
        raise DamagedFileError(f"{name}: damaged: more than {MOST_BYTES:,} bytes")
    text = decode_utf8(content, name) if isinstance(content, bytes) else content
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        place = f"{name}:{error.lineno}"
        raise DamagedFileError(f"{place}: damaged, not readable as JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(f"{name}: damaged, not readable as JSON ({reason})") from None
    if text.count("[") + text.count("{") > MOST_DEPTH:
        _require_flat(value, name)
    return value


def parse_json_object(content: bytes | str, name: str) -> dict[str, Any]:
    """Parse the object of a JSON document. Raises DamagedFileError when it is not an object."""
    value = parse_json(content, name)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{name}: damaged: not an object")
    return value


def parse_json_line(content: bytes) -> dict[str, Any] | None:
    """Parse the object of one line like a document, but three times as fast; None if it is invalid.

    NaN and infinity are allowed; the proof reports them.
    """
    from jiter import from_json

    try:
        value = from_json(content.removeprefix(BOM_UTF8), catch_duplicate_keys=True, cache_mode="keys")
        if content.count(b"[") + content.count(b"{") > MOST_DEPTH:
            _require_flat(value, "line")
    except (ValueError, DamagedFileError):
        return None
    return value if isinstance(value, dict) else None


def iterate_json_lines(
    path: Path, *, links: bool = True, passing: Callable[[bytes], object] = bool
) -> Iterator[dict[str, Any] | None]:
    """Yield the object of each line in constant memory, None for an invalid line; nothing for a missing file.

    `passing` is called with the file's bytes in order. Raises DamagedFileError when the path is not a regular
    file, or for a line of more than MOST_LINE_BYTES.
    """
    try:
        opened = open_regular(path, links=links)
    except FileNotFoundError:
        return
    with opened as file:
        try:
            while line := file.readline(MOST_LINE_BYTES):
                if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
                    raise DamagedFileError(f"{path}: damaged: a line of more than {MOST_LINE_BYTES:,} bytes")
                passing(line)
                yield parse_json_line(line)
        except OSError as error:
            raise DamagedFileError(f"{path}: cannot be read ({_words(error)})") from None


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a regular file that is no link. Raises as `open_regular` does."""
    with open_regular(path, links=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file. Raises FileNotFoundError and DamagedFileError."""
    from trainyard.config.yaml_reader import parse_yaml

    return parse_yaml(read_bytes(path, most=MOST_YAML_BYTES), str(path))


def same_json(one: object, other: object) -> bool:
    """Return whether two JSON values are the same. Python's `==` would treat true, 1 and 1.0 as equal."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def is_utf8(text: str) -> bool:
    """Return whether the text, which may be the name of a file, has no bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def decode_utf8(content: bytes, name: str) -> str:
    """Decode `content` as UTF-8. Raises DamagedFileError with the line of the first invalid byte."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        raise DamagedFileError(f"{name}:{line}: damaged: byte 0x{byte:02x} is not UTF-8") from None


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _require_flat(value: Any, name: str) -> None:
    """Raise DamagedFileError for more than MOST_DEPTH levels; only lists and objects are visited."""
    level = [value]
    for _ in range(MOST_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [found for each in inner for found in each if isinstance(found, dict | list)]
        if not level:
            return
    raise DamagedFileError(f"{name}: damaged: more than {MOST_DEPTH} levels deep")
