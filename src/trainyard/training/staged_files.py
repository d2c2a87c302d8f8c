"""Files that lie in shared memory as they are to be, written with their digests.

It knows neither tensors nor torch, so that a process that does only this starts at once and is small.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.run.checkpoints import ManifestFile
from trainyard.run.digests import FileDigests
from trainyard.training.block_file import BLOCK_BYTES, BlockFile
from trainyard.training.priority import Pieces

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class StagedFile:
    """A file, and where in the memory it is."""

    name: str
    start: int
    """Of a page: its blocks go from there to the disk."""
    size: int


class AbandonedError(OSError):
    """Nobody waits for this write any more."""


def write_files(
    folder: Path, files: Sequence[StagedFile], memory: mmap.mmap, *, goes_on: Callable[[], bool]
) -> Pieces[tuple[ManifestFile, ...]]:
    """Write `files` below `folder`, fsynced. Raises OSError, AbandonedError once `goes_on()` is false."""
    written: tuple[ManifestFile, ...] = ()
    for file in files:
        with memoryview(memory) as view, view[file.start : file.start + file.size] as content:
            written += ((yield from _write_file(folder / file.name, content, goes_on=goes_on)),)
    return written


def _write_file(path: Path, content: memoryview, *, goes_on: Callable[[], bool]) -> Pieces[ManifestFile]:
    digests = FileDigests()
    with BlockFile(path) as target:
        for block in _cut(content, BLOCK_BYTES):
            for chunk in _cut(block, _CHUNK_BYTES):
                if not goes_on():
                    raise AbandonedError("the write was abandoned")
                digests.update(chunk)
                yield
            target.write(block)
            yield
        target.finish()
    return ManifestFile.of(path.name, digests)


def _cut(content: memoryview, size: int) -> Iterator[memoryview]:
    """In pieces of `size`; the last one may be smaller."""
    return (content[start : start + size] for start in range(0, len(content), size))
