"""Read the layers of an image that was saved as a docker archive: the path and content of every file.

Beside what a caller looks for it reads the records of installed packages, which list their files.
"""

import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from trainyard.errors import DamagedFileError

_LARGEST_LOOKED_AT = 1 << 20
"""Secrets are short. Of a larger file only the name is checked."""
_LARGEST_RECORD = 64 << 20
"""torch's lists 15,000 files in 1.5 MB."""
_DAMAGE = (
    *(tarfile.TarError, EOFError, zlib.error),
    *(LookupError, TypeError, AttributeError, ValueError, AssertionError),
)
"""The archive is cut off, or its manifest is not a list of images with layers."""


@dataclass(frozen=True)
class FoundFile:
    """A file in a layer that was recognised."""

    layer: str
    path: str
    kind: str
    sha256: str


@dataclass
class LayerFiles:
    """What was recognised in the layers of an image."""

    found: list[FoundFile] = field(default_factory=list)
    records: dict[str, str] = field(default_factory=dict)
    """The RECORD of each package by its folder, such as lib/python3.12/site-packages/x-1.dist-info."""
    of_a_url: set[str] = field(default_factory=set)
    """The folders of packages that were installed from a URL or a folder, not from an index."""


def read_layers(archive: Path, judge: Callable[[str, bytes], str | None]) -> LayerFiles:
    """Return every file that `judge` recognises by path and content, and the records of packages.

    Raises DamagedFileError if it is not an archive of an image.
    """
    read = LayerFiles()
    try:
        with tarfile.open(archive) as image:
            manifest = image.extractfile("manifest.json")
            assert manifest is not None
            for name in json.load(manifest)[0]["Layers"]:
                layer = image.extractfile(name)
                assert layer is not None
                _read_layer(layer, Path(name).name.removesuffix(".tar"), judge, read)
    except _DAMAGE as error:
        raise DamagedFileError(f"{archive.name}: is not an archive of an image ({error})") from None
    return read


def _read_layer(
    layer: IO[bytes], name: str, judge: Callable[[str, bytes], str | None], read: LayerFiles
) -> None:
    with tarfile.open(fileobj=layer, mode="r|*") as files:
        for entry in files:
            if not entry.isreg():
                continue
            path = entry.name.removeprefix("./")
            folder, _, file = path.rpartition("/")
            is_record = file == "RECORD" and folder.endswith(".dist-info") and entry.size <= _LARGEST_RECORD
            wanted = 0 < entry.size <= _LARGEST_LOOKED_AT or is_record
            content = files.extractfile(entry) if wanted else None
            data = content.read() if content else b""
            if is_record:
                read.records[folder] = data.decode(errors="replace")
            if file == "direct_url.json":
                read.of_a_url.add(folder)
            if what := judge(path, data):
                read.found.append(FoundFile(name, path, what, hashlib.sha256(data).hexdigest()))
