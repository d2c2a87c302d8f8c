"""Read the layers of an image that was saved as a docker archive: the path and content of every file."""

import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from trainyard.errors import DamagedFileError

_LARGEST_LOOKED_AT = 1 << 20
"""Secrets are short. Of a larger file only the name is checked."""
_DAMAGE = (
    *(tarfile.TarError, EOFError, zlib.error),
    *(LookupError, TypeError, AttributeError, ValueError, AssertionError),
)
"""The archive is cut off, or its manifest is not a list of images with layers."""


def secrets_in_layers(
    archive: Path, judge: Callable[[str, bytes], str | None]
) -> Iterator[tuple[str, str, str]]:
    """Layer, path and kind of every file that `judge` recognises as a secret.

    Raises DamagedFileError if it is not an archive of an image.
    """
    try:
        with tarfile.open(archive) as image:
            manifest = image.extractfile("manifest.json")
            assert manifest is not None
            for name in json.load(manifest)[0]["Layers"]:
                layer = image.extractfile(name)
                assert layer is not None
                yield from _in_layer(layer, Path(name).name, judge)
    except _DAMAGE as error:
        raise DamagedFileError(f"{archive.name}: is not an archive of an image ({error})") from None


def _in_layer(
    layer: IO[bytes], name: str, judge: Callable[[str, bytes], str | None]
) -> Iterator[tuple[str, str, str]]:
    with tarfile.open(fileobj=layer, mode="r|*") as files:
        for entry in files:
            if not entry.isreg():
                continue
            content = files.extractfile(entry) if 0 < entry.size <= _LARGEST_LOOKED_AT else None
            if what := judge(entry.name.removeprefix("./"), content.read() if content else b""):
                yield name.removesuffix(".tar"), entry.name, what
