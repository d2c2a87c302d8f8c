"""Read a checkpoint: the trainer's record, and the index (`.metadata`) without executing its pickle.

    .metadata --the classes of an index, no others--> Metadata --types, files, sizes--> resume, export, prove

The index locates every tensor. It is a pickle, and torch's own reader executes whatever a pickle contains. A
checkpoint may come from anywhere, so every reader in Trainyard uses `read_checkpoint_index`. `state_digests`
compares the tensors with the outcome's `state_sha256`; nothing else here checks their contents.
"""

import hashlib
import io
import pathlib
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, EnumType
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from trainyard.errors import CheckpointError, DamagedFileError
from trainyard.run.checkpoint_manifest import read_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.untrusted_files import read_bytes, read_json_object
from trainyard.training.checkpoint.training_state import add_to_digest

INDEX_NAME = ".metadata"
STATE_NAME = "trainer_state.json"
# The errors that torch and pickle raise for invalid bytes.
_DAMAGED = (
    *(pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError),
    *(RuntimeError, OSError, OverflowError, ImportError, MemoryError, RecursionError),
)


def read_checkpoint_index(checkpoint: Path) -> Metadata:
    """Read the index of the checkpoint in a directory; no function that it names is called.

    The index may only name files that the checkpoint's manifest lists, and tensors that fit into them.
    Otherwise it raises CheckpointError.
    """
    path = checkpoint / INDEX_NAME
    sizes = {file.path: file.size for file in read_manifest(checkpoint).files}
    try:
        if INDEX_NAME not in sizes:
            raise ValueError("the checkpoint's manifest does not list it")
        index = IndexUnpickler(io.BytesIO(read_bytes(path, links=False))).load()
        _require_tensors(index, most=sum(sizes.values()))
        _require_places(index, sizes)
    except (FileNotFoundError, DamagedFileError) as error:
        raise CheckpointError(str(error)) from None
    except _DAMAGED as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(f"{path}: is not an index of a checkpoint ({reason})") from None
    return cast(Metadata, index)


def read_state(path: Path) -> dict[str, Any]:
    """The trainer's own record in the checkpoint at `path`. Raises CheckpointError when it is unreadable."""
    try:
        value = read_json_object(path / STATE_NAME, links=False)
    except (OSError, DamagedFileError) as error:
        raise CheckpointError(str(error)) from None
    if not {"step", "fits", "generators"} <= value.keys() or not isinstance(value["fits"], dict):
        raise CheckpointError(f"{path / STATE_NAME}: not the record of a trainer")
    return value


def tensors_in(index: Metadata) -> dict[str, TensorStorageMetadata]:
    """The entry of each tensor in an index from `read_checkpoint_index`, by name."""
    return cast(dict[str, TensorStorageMetadata], index.state_dict_metadata)


def load_tensors(
    checkpoint: Path, index: Metadata, tensors: dict[str, Any], *, group: ProcessGroup | None = None
) -> None:
    """Read `tensors` in place, with the other processes of `group` or alone.

    `index` is from `read_checkpoint_index`. Raises CheckpointError when a tensor cannot be read.
    """
    reader = _IndexedReader(checkpoint, index)
    try:
        with warnings.catch_warnings():
            # torch warns when a process reads alone, which is intended.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)
    except (OSError, CheckpointException) as error:
        names = ", ".join(tensors)
        raise CheckpointError(f"{checkpoint}: {names} could not be read ({error})") from error


class _IndexedReader(FileSystemReader):
    """torch's reader of a checkpoint, with an index from `read_checkpoint_index`."""

    def __init__(self, checkpoint: Path, index: Metadata) -> None:
        super().__init__(checkpoint)
        self._index = index

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        return self._index


def _enum_member(kind: object, name: object) -> Enum:
    """Replace `getattr`, which Python 3.11.0 to 3.11.3 use to pickle the members of an enum."""
    if not isinstance(kind, EnumType) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"{INDEX_NAME} names {name!r:.40} of a class that has no such member")
    return cast(Enum, kind[str(name)])


_CLASSES: dict[tuple[str, str], Any] = {
    ("torch.distributed.checkpoint.metadata", name): getattr(metadata, name)
    for name in (
        *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        *("TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch", "Size"): torch.Size,
    # In Python 3.13 these classes are in another module.
    **dict.fromkeys(
        product(("pathlib", "pathlib._local"), ("PosixPath", "PurePosixPath")), pathlib.PurePosixPath
    ),
    ("builtins", "getattr"): _enum_member,
}


class IndexUnpickler(pickle.Unpickler):
    """Loads only the classes of an index."""

    def find_class(self, module: str, name: str) -> Any:
        found = _CLASSES.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise pickle.UnpicklingError(f"{INDEX_NAME} names {module}.{name}, which no index holds")
        return found


def _require_tensors(index: Any, *, most: int) -> None:
    """Raise ValueError for an entry that is not a tensor, or is larger than all files together.

    Other kinds of entries are refused because torch unpickles them without any check.
    """
    if not isinstance(index, Metadata) or not isinstance(index.state_dict_metadata, dict):
        raise ValueError("it holds something else")
    for name, entry in index.state_dict_metadata.items():
        if not isinstance(name, str) or not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"{name!r:.80} is not a tensor")
        size, dtype = entry.size, entry.properties.dtype
        if not isinstance(size, torch.Size) or not isinstance(dtype, torch.dtype) or min(size, default=0) < 0:
            raise ValueError(f"{name!r:.80} is a tensor without a shape or type")
        if size.numel() * dtype.itemsize > most:
            raise ValueError(f"{name!r:.80} is declared larger than the checkpoint")


def _require_places(index: Metadata, sizes: Mapping[str, int]) -> None:
    """Raise ValueError for a location outside the files of the checkpoint, because no digest covers it."""
    if not isinstance(index.storage_data, dict):
        raise ValueError("it names no files")
    for key, place in index.storage_data.items():
        if not isinstance(key, MetadataIndex) or not isinstance(place, filesystem._StorageInfo):
            raise ValueError(f"{key!r:.80} has no place in a file")
        if place.relative_path not in sizes:
            raise ValueError(f"it names {place.relative_path!r:.80}, which is not a file of the checkpoint")
        has_range = isinstance(place.offset, int) and isinstance(place.length, int)
        if not has_range or place.offset < 0 or place.length < 0 or place.transform_descriptors:
            raise ValueError(f"it names no usable place in {place.relative_path}")


_PARTS = ("model", "optimizer")


def state_digests(checkpoint: Path, progress: Progress = UNSEEN) -> dict[str, str]:
    """The digest of each part, as `TrainingState.digests` computes it for live tensors.

    Raises CheckpointError when the checkpoint cannot be read.
    """
    index = read_checkpoint_index(checkpoint)
    sizes = {
        key: entry.size.numel() * entry.properties.dtype.itemsize for key, entry in tensors_in(index).items()
    }
    own = sum(size for key, size in sizes.items() if key.partition(".")[0] in _PARTS)
    progress.begin("reading the tensors of the last checkpoint", own)
    return {part: _digest(checkpoint, index, part, progress) for part in _PARTS}


def _digest(checkpoint: Path, index: Metadata, part: str, progress: Progress) -> str:
    total, prefix, entries = hashlib.sha256(), f"{part}.", tensors_in(index)
    for key in sorted(key for key in entries if key.startswith(prefix)):
        # Values that the files lack stay 0, so the digest differs.
        tensor = torch.zeros(entries[key].size, dtype=entries[key].properties.dtype)
        load_tensors(checkpoint, index, {key: tensor})
        add_to_digest(total, key.removeprefix(prefix), tensor)
        progress.advance(tensor.nbytes)
    return total.hexdigest()


@dataclass(frozen=True)
class ResumePoint:
    """A verified checkpoint that fits the run."""

    path: Path
    step: int
    manifest_sha256: str


def belongs_to(directory: RunDirectory, path: Path | None) -> bool:
    """Return whether the checkpoint at `path` is one of the run's own."""
    return path is not None and directory.checkpoints.resolve() in path.resolve().parents
