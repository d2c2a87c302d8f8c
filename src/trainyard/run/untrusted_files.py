"""Read JSON, JSON lines and YAML from untrusted files: bounded, and without blocking.

    path --opened without blocking, a regular file--> bytes --size--> text --UTF-8--> value --depth, digits-->

For any file, the result is a value that can be used, shown and written again, or a DamagedFileError that
names the file and, if known, the line. The callers interpret the values.
"""

import hashlib
import io
import json
import math
import os
import re
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from trainyard.errors import ConfigError, DamagedFileError

MOST_BYTES = 256 << 20
"""Maximum size of a JSON document: the manifest of a million objects is smaller."""
MOST_LINE_BYTES = 16 << 20
"""Maximum size of one line of JSON lines."""
MOST_SKIPPED_BYTES = 64 << 20
"""Maximum size of a line that is too long and therefore skipped; a hole in a file can have a terabyte."""
MOST_YAML_BYTES = 4 << 20
MOST_DEPTH = 100
MOST_DIGITS = 100
"""Maximum number of digits of a whole number."""
MOST_YAML_VALUES = 100_000
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MAYBE_LARGE = re.compile(r"[0-9][eE]\+?[0-9]{3,}")
"""Fast, and also true of digests, in which 1e400 is usual."""
_LARGE_NUMBER = re.compile(r"""(?<![\w"])-?[0-9]+(?:\.[0-9]+)?[eE]\+?[0-9]{3,}""")
_LONG_RUN, _ZEROS = b"0" * (MOST_DIGITS + 1), bytes.maketrans(b"123456789", b"0" * 9)


class _EndlessLineError(Exception):
    """A line is so long that its end is not searched."""


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
        kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "no regular file")
        raise DamagedFileError(f"{path}: {kind}, where a file belongs")
    return open(descriptor, "rb")  # noqa: PTH123 - the caller closes it


def read_bytes(path: Path, *, most: int = MOST_BYTES, links: bool = True) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises as `open_regular` does."""
    with open_regular(path, links=links) as file:
        try:
            content = file.read() if _fits(file, most) else b""
        except OSError as error:
            raise DamagedFileError(f"{path}: cannot be read ({_words(error)})") from None
        if not _fits(file, most) or len(content) > most:
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

    Refuses NaN, infinity, duplicate keys, invalid Unicode, whole numbers of more than MOST_DIGITS digits and
    more than MOST_DEPTH levels. Raises DamagedFileError.
    """
    if len(content) > MOST_BYTES:
        raise DamagedFileError(f"{name}: damaged: more than {MOST_BYTES:,} bytes")
    text = decode_utf8(content, name) if isinstance(content, bytes) else content
    try:
        value = _DOCUMENT.decode(text)
    except json.JSONDecodeError as error:
        raise DamagedFileError(
            f"{name}:{error.lineno}: damaged, not readable as JSON ({error.msg})"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(f"{name}: damaged, not readable as JSON ({reason})") from None
    # The check of every value takes longer than the parser, so it runs only when one of them can be invalid.
    if (_MAYBE_LARGE.search(text) and _LARGE_NUMBER.search(text)) or _SURROGATE.search(text):
        _require_usable(value, name, finite=True)
    elif text.count("[") + text.count("{") > MOST_DEPTH:
        _require_flat(value, name)
    return value


def parse_json_object(content: bytes | str, name: str) -> dict[str, Any]:
    """Parse the object of a JSON document. Raises DamagedFileError when it is not an object."""
    value = parse_json(content, name)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{name}: damaged: holds {_kind(value)}, not an object")
    return value


def parse_json_line(content: bytes) -> dict[str, Any] | None:
    """Parse the object of one line like a document, but three times as fast; None if it is invalid.

    NaN and infinity are allowed, and a longer whole number counts as infinite; the proof reports them.
    """
    from jiter import from_json

    try:
        if _LONG_RUN in content.translate(_ZEROS):
            value = _LINE_WITH_LONG_NUMBERS.decode(decode_utf8(content, "line"))
            _require_usable(value, "line", finite=False)
        else:
            value = from_json(content.removeprefix(BOM_UTF8), catch_duplicate_keys=True, cache_mode="keys")
            if content.count(b"[") + content.count(b"{") > MOST_DEPTH:
                _require_flat(value, "line")
    except (ValueError, RecursionError, DamagedFileError):
        return None
    return value if isinstance(value, dict) else None


def iterate_json_lines(
    path: Path, *, links: bool = True, passing: Callable[[bytes], object] = bool
) -> Iterator[dict[str, Any] | None]:
    """Yield the object of each line in constant memory, None for an invalid line; nothing for a missing file.

    `passing` is called with the file's bytes in order. Raises DamagedFileError when the path is not a regular
    file.
    """
    try:
        opened = open_regular(path, links=links)
    except FileNotFoundError:
        return
    with opened as file:
        try:
            for line in _lines(file, passing):
                yield None if line is None else parse_json_line(line)
        except OSError as error:
            raise DamagedFileError(f"{path}: cannot be read ({_words(error)})") from None
        except _EndlessLineError:
            raise DamagedFileError(
                f"{path}: damaged: a line of more than {MOST_SKIPPED_BYTES:,} bytes"
            ) from None


def parse_json_lines(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the objects of the valid lines: parsed in one call where every line is a flat object."""
    from jiter import from_json

    content = b",".join(lines)
    if (
        content.count(b"{") == len(lines)
        and all(line[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in lines)
        and b"[" not in content
        and _LONG_RUN not in content.translate(_ZEROS)
    ):
        with suppress(ValueError):
            values: list[dict[str, Any]] = from_json(b"[" + content + b"]", cache_mode="keys")
            # A key that is given twice leaves fewer entries than the text has keys, if each is counted.
            is_counted = not any(blank in content for blank in (b" :", b"\t:", b"\r:"))
            if (
                is_counted
                and set(map(type, values)) == {dict}
                and sum(map(len, values)) == content.count(b'":')
            ):
                return values
    return [row for line in lines if (row := parse_json_line(line)) is not None]


def sha256_of_lines(path: Path) -> str:
    """Return the SHA-256 of a file of JSON lines, which are not parsed. Raises as `iterate_json_lines` does.

    Raises FileNotFoundError when the path does not exist.
    """
    digest = hashlib.sha256()
    with open_regular(path, links=False) as file:
        try:
            for _ in _lines(file, digest.update):
                pass
        except (OSError, _EndlessLineError):
            raise DamagedFileError(f"{path}: cannot be read to its end") from None
    return digest.hexdigest()


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file. Raises FileNotFoundError and DamagedFileError."""
    return parse_yaml(read_bytes(path, most=MOST_YAML_BYTES), str(path))


def parse_yaml(content: bytes | str, name: str) -> Any:
    """Parse a YAML document. Every use of an alias counts in full. Raises DamagedFileError."""
    nodes = compose_yaml(content, name)
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        raise DamagedFileError(f"{name}:{line}: not readable as YAML (another document starts here)")
    return _value_of_node(nodes[0], name) if nodes else None


def read_yaml_documents(path: str) -> list[Any]:
    """The documents of a YAML file, without empty ones. Raises DamagedFileError, also where there is none."""
    try:
        text = read_text(Path(path))
    except FileNotFoundError as error:
        raise DamagedFileError(str(error)) from None
    found = (_value_of_node(node, path) for node in compose_yaml(text, path))
    return [value for value in found if value is not None]


def compose_yaml(content: bytes | str, name: str) -> list[Any]:
    """Return the root node of each document of a YAML text. Raises DamagedFileError with the line.

    More than MOST_YAML_VALUES values or MOST_DEPTH levels are refused, with every use of an alias counted in
    full, and an alias that contains itself.
    """
    import yaml

    if len(content) > MOST_YAML_BYTES:
        raise DamagedFileError(f"{name}: damaged: more than {MOST_YAML_BYTES:,} bytes")
    text = decode_utf8(content, name) if isinstance(content, bytes) else content
    try:
        _require_shallow(text, name)
        nodes = [node for node in yaml.compose_all(text, Loader=_loader()) if node is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _yaml_error(error, name) from None
    for node in nodes:
        _require_few(node, name)
    return nodes


def _value_of_node(node: Any, name: str) -> Any:
    import yaml

    try:
        value = _loader()("").construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError) as error:
        raise _yaml_error(error, name) from None
    _require_usable(value, name, finite=False)
    return value


def _yaml_error(error: Exception, name: str) -> DamagedFileError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    line = f":{mark.line + 1}" if mark else ""
    return DamagedFileError(f"{name}{line}: not readable as YAML ({reason})")


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
        line = content.count(b"\n", 0, error.start) + 1
        raise DamagedFileError(
            f"{name}:{line}: damaged: byte 0x{content[error.start]:02x} is not UTF-8"
        ) from None


def _fits(file: io.BufferedReader, most: int) -> bool:
    return os.fstat(file.fileno()).st_size <= most


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _parse_integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(text):,} digits")
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twin[:80]!r} is given twice")
    return found


_DOCUMENT = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_int=_parse_integer, object_pairs_hook=_unique_keys
)
_LINE_WITH_LONG_NUMBERS = json.JSONDecoder(
    parse_int=lambda text: int(text) if len(text) <= MOST_DIGITS else math.inf,
    object_pairs_hook=_unique_keys,
)


def _require_flat(value: Any, name: str) -> None:
    """Raise DamagedFileError for more than MOST_DEPTH levels; only lists and objects are visited."""
    level = [value]
    for _ in range(MOST_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [found for each in inner for found in each if isinstance(found, dict | list)]
        if not level:
            return
    raise DamagedFileError(f"{name}: damaged: more than {MOST_DEPTH} levels deep")


def _require_usable(value: Any, name: str, *, finite: bool) -> None:
    """Raise DamagedFileError for values that could not be shown, written or traversed later."""
    waiting = [(value, 1)]
    while waiting:
        found, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise DamagedFileError(f"{name}: damaged: more than {MOST_DEPTH} levels deep")
        if isinstance(found, dict):
            waiting.extend((inner, depth + 1) for pair in found.items() for inner in pair)
        elif isinstance(found, list):
            waiting.extend((inner, depth + 1) for inner in found)
        elif isinstance(found, str) and not is_utf8(found):
            raise DamagedFileError(f"{name}: damaged: holds a text that is not Unicode (a lone surrogate)")
        elif isinstance(found, float) and finite and not math.isfinite(found):
            raise DamagedFileError(f"{name}: damaged: holds a number beyond every float")
        elif isinstance(found, int) and abs(found) >= 10**MOST_DIGITS:
            raise DamagedFileError(f"{name}: damaged: holds a whole number of more than {MOST_DIGITS} digits")


def _lines(file: IO[bytes], passing: Callable[[bytes], object]) -> Iterator[bytes | None]:
    """Yield each line, None for one that is too long, which is skipped in pieces."""
    while line := file.readline(MOST_LINE_BYTES):
        passing(line)
        if len(line) < MOST_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        skipped = len(line)
        while rest := file.readline(MOST_LINE_BYTES):
            passing(rest)
            if rest.endswith(b"\n"):
                break
            skipped += len(rest)
            if skipped > MOST_SKIPPED_BYTES:
                raise _EndlessLineError
        yield None


def _loader() -> Any:
    """PyYAML's safe loader, with the parser in C where there is one: it is some 30 times faster."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _require_shallow(text: str, name: str) -> None:
    """Check the parser's events before any value is built from them."""
    import yaml

    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_loader())
    for count, event in enumerate(events):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1
        if depth > MOST_DEPTH:
            raise DamagedFileError(f"{name}:{line}: damaged: more than {MOST_DEPTH} levels deep")
        if count > 2 * MOST_YAML_VALUES:
            raise DamagedFileError(f"{name}:{line}: damaged: more than {MOST_YAML_VALUES:,} values")


def _require_few(root: Any, name: str) -> None:
    """Count the values after expanding aliases; an alias that contains itself never ends."""
    import yaml

    waiting: list[tuple[Any, int]] = [(root, 1)]
    count = 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > MOST_YAML_VALUES or depth > MOST_DEPTH:
            raise DamagedFileError(
                f"{name}: damaged: an alias repeats itself, "
                f"more than {MOST_YAML_VALUES:,} values or {MOST_DEPTH} levels"
            )
        if isinstance(node, yaml.MappingNode):
            waiting.extend((inner, depth + 1) for pair in node.value for inner in pair)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend((inner, depth + 1) for inner in node.value)
