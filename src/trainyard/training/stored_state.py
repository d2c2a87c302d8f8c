"""The digests of the state in a checkpoint, read tensor by tensor: what the outcome's `state_sha256` must be.

Memory holds one tensor at a time. A checkpoint may come from anywhere: its index is a pickle, which is read
with the few classes that an index consists of, so that reading it runs nobody's code.
"""

import hashlib
import io
import pathlib
import pickle
from collections.abc import Iterator
from enum import Enum, EnumType
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from trainyard.errors import CheckpointError, DamagedFileError
from trainyard.run.outside import open_regular, read_bytes

PARTS = ("model", "optimizer")


def _enum_member(kind: object, name: object) -> Enum:
    """Stand in for `getattr`, by which Python 3.11.0 to 3.11.3 pickle the members of an enum."""
    if not isinstance(kind, EnumType) or name not in kind.__members__:
        raise pickle.UnpicklingError(
            f"{INDEX_NAME} asks for {name!r:.40} of something that is no enum with it"
        )
    return cast(Enum, kind[str(name)])


INDEX_NAME = ".metadata"
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
    # Python 3.13 keeps these in a module of their own.
    **dict.fromkeys(
        product(("pathlib", "pathlib._local"), ("PosixPath", "PurePosixPath")), pathlib.PurePosixPath
    ),
    ("builtins", "getattr"): _enum_member,
}
_DAMAGED = (
    *(pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError),
    *(RuntimeError, OSError, OverflowError, ImportError, MemoryError, RecursionError),
)
"""What torch and pickle raise for bytes that are none of theirs."""


def state_digests(checkpoint: Path) -> dict[str, str]:
    """The digest of each part, as `state.digest` takes it of the live tensors.

    Raises CheckpointError when the checkpoint cannot be read.
    """
    try:
        index = _read_index(checkpoint)
        size = sum(path.stat().st_size for path in checkpoint.iterdir() if path.is_file())
        return {part: _digest(checkpoint, index, part, most=size) for part in PARTS}
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from None
    except _DAMAGED as error:
        why = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(f"{checkpoint}: its tensors cannot be read ({why})") from None


class _IndexReader(pickle.Unpickler):
    """Knows the classes of an index and no other."""

    def find_class(self, module: str, name: str) -> Any:
        found = _CLASSES.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise pickle.UnpicklingError(f"{INDEX_NAME} names {module}.{name}, which no index holds")
        return found


def _read_index(checkpoint: Path) -> Metadata:
    index = _IndexReader(io.BytesIO(read_bytes(checkpoint / INDEX_NAME, links=False))).load()
    if not isinstance(index, Metadata):
        raise TypeError(f"{INDEX_NAME} is no index")
    return index


def _digest(checkpoint: Path, index: Metadata, part: str, *, most: int) -> str:
    total = hashlib.sha256()
    for name, tensor in _tensors(checkpoint, index, f"{part}.", most=most):
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _tensors(checkpoint: Path, index: Metadata, prefix: str, *, most: int) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor, in order of name; `most` is what all files have together."""
    entries = index.state_dict_metadata
    for key in sorted(key for key in entries if key.startswith(prefix)):
        entry = entries[key]
        if not isinstance(entry, TensorStorageMetadata):
            raise TypeError(f"{key} is no tensor")
        dtype = entry.properties.dtype
        if torch.Size(entry.size).numel() * dtype.itemsize > most:
            raise ValueError(f"{key} is said to be larger than the checkpoint")
        yield key.removeprefix(prefix), _tensor(checkpoint, index, key, entry)


def _tensor(checkpoint: Path, index: Metadata, key: str, entry: TensorStorageMetadata) -> Tensor:
    whole = torch.empty(entry.size, dtype=entry.properties.dtype)
    filled = 0
    for number, chunk in enumerate(entry.chunks):
        place = index.storage_data[MetadataIndex(key, chunk.offsets, number)]
        piece = _piece(checkpoint, place)
        target = whole
        for axis, (start, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            target = target.narrow(axis, start, length)
        if piece.shape != target.shape or piece.dtype != whole.dtype:
            raise ValueError(f"{key} is stored in another shape or type than the index says")
        target.copy_(piece)
        filled += piece.numel()
    if filled != whole.numel():
        raise ValueError(f"{key} is not stored whole")
    return whole


def _piece(checkpoint: Path, place: Any) -> Tensor:
    """The tensor that a file has at its place."""
    name = pathlib.PurePosixPath(place.relative_path)
    if name.is_absolute() or ".." in name.parts or place.transform_descriptors:
        raise ValueError(f"{name} is no file of the checkpoint")
    with io.BufferedReader(open_regular(checkpoint / name, links=False)) as file:
        file.seek(place.offset)
        content = file.read(place.length)
    piece = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(piece, Tensor):
        raise TypeError(f"{name} holds something else than a tensor")
    return piece
