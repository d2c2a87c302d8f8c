"""Read a configuration file as UTF-8 text of limited size, or say why that fails. It does not parse YAML."""

import difflib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 32 << 20
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Fault:
    """The reason why a file is not text."""

    message: str
    line: int | None = None
    opened: bool = True
    """False when the file name is wrong, so that the error is shown where the file was named."""


def read_source(path: Path) -> str | Fault:
    """Return the content of `path`: UTF-8, at most MAX_BYTES, no control characters."""
    if os.path.isdir(path):  # noqa: PTH112 - unlike Path.is_dir it never raises
        return Fault(f"is a directory; name a file in it{_files_in(path)}", opened=False)
    try:
        # A pipe or a device would be waited for, or never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Fault("is not a regular file; name a file", opened=False)
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = _nearest(path)
        return Fault(f"no such file; did you mean {near}?" if near else "no such file", opened=False)
    except (OSError, ValueError) as error:
        return Fault(f"cannot be read ({getattr(error, 'strerror', None) or error})", opened=False)
    if len(content) > MAX_BYTES:
        return Fault(f"more than {MAX_BYTES >> 20} MB; a configuration is some kilobytes")
    return _decode(content)


def _decode(content: bytes) -> str | Fault:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Fault("encoded as UTF-16; save it as UTF-8", 1)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Fault(
            f"byte 0x{content[error.start]:02x} is not UTF-8; is this a YAML file?",
            content.count(b"\n", 0, error.start) + 1,
        )
    if control := _CONTROL.search(text):
        return Fault(
            f"control character 0x{ord(control[0]):02x}; is this a YAML file?",
            text.count("\n", 0, control.start()) + 1,
        )
    return text


def _files_in(folder: Path) -> str:
    """Return the YAML files in `folder`, at most three, as the end of a sentence."""
    try:
        names = sorted(each.name for each in folder.iterdir() if each.suffix in (".yaml", ".yml"))
    except OSError:
        return ""
    return f", such as {', '.join(str(folder / name) for name in names[:3])}" if names else ""


def _nearest(path: Path) -> Path | None:
    """Return the YAML file of that name below configs/, else the one whose path is most similar to `path`."""
    named = f"{path.name.removesuffix('.yml').removesuffix('.yaml')}.yaml"
    for below in ("configs", "configs/models", "models"):
        if (there := path.parent / below / named).is_file():
            return there
    folder = path.parent if path.parent.is_dir() else _nearest_entry(path.parent, folders=True)
    return _nearest_entry(folder / path.name, folders=False) if folder else None


def _nearest_entry(path: Path, *, folders: bool) -> Path | None:
    if not path.parent.is_dir():
        return None
    with os.scandir(path.parent) as entries:
        names = [
            entry.name
            for entry in entries
            if (entry.is_dir() if folders else entry.name.endswith((".yaml", ".yml")))
        ]
    if path.name in names:
        return path
    near = difflib.get_close_matches(path.name, sorted(names), n=1)
    return path.parent / near[0] if near else None
