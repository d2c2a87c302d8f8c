"""Files made of stretches of shared memory and of fixed bytes, written with their digests.

It knows neither tensors nor torch, so that a process that does only this starts at once and is small.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.run.checkpoints import ManifestFile
from trainyard.run.digests import FileDigests
from trainyard.training.block_file import BlockFile
from trainyard.training.priority import Pieces

_CHUNK_BYTES = 1 << 20
Stretch = bytes | tuple[int, int]
"""Bytes as they are, or offset and length in the memory."""


@dataclass(frozen=True)
class FileStretches:
    """A file."""

    name: str
    stretches: tuple[Stretch, ...]


class AbandonedError(OSError):
    """Nobody waits for this write any more."""


def write_files(
    folder: Path, files: Sequence[FileStretches], memory: mmap.mmap, *, goes_on: Callable[[], bool]
) -> Pieces[tuple[ManifestFile, ...]]:
    """Write `files` below `folder`, fsynced. Raises OSError, AbandonedError once `goes_on()` is false."""
    written: tuple[ManifestFile, ...] = ()
    for file in files:
        written += ((yield from _write_file(folder, file, memory, goes_on=goes_on)),)
    return written


def _write_file(
    folder: Path, file: FileStretches, memory: mmap.mmap, *, goes_on: Callable[[], bool]
) -> Pieces[ManifestFile]:
    digests = FileDigests()
    with BlockFile(folder / file.name) as target, memoryview(memory) as view:
        for chunk in _chunks(file, view):
            if not goes_on():
                raise AbandonedError("the write was abandoned")
            digests.update(chunk)
            target.write(chunk)
            yield
        target.finish()
    return ManifestFile.of(file.name, digests)


def _chunks(file: FileStretches, memory: memoryview) -> Iterator[bytes | memoryview]:
    for stretch in file.stretches:
        if isinstance(stretch, bytes):
            yield stretch
            continue
        start, length = stretch
        for place in range(start, start + length, _CHUNK_BYTES):
            yield memory[place : min(place + _CHUNK_BYTES, start + length)]
