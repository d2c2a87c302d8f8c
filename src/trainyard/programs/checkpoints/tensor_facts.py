"""Read the tensors in the files of a checkpoint while they are hashed: checksums, NaN, infinity, equality.

    zip of torch.save   members and their CRC-32, data.pkl (read without running it), storages
    safetensors         header, sizes
    anything else       reported as unread; whether it has bytes of the trained parameters is searched

Each file is read once, in order, in constant memory. torch writes a zip with checksums or, after
`set_crc32_options(False)`, without: then none of them matches, and damage inside a file is not seen.
"""

import hashlib
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from struct import Struct
from typing import IO, Any, NamedTuple

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.volume_agent import (
    ARCHIVE_BEGINS,
    ARCHIVES,
    MOST_INDEX,
    NO_HEADER,
    Inert,
    InertUnpickler,
    inert_content,
    members_of,
    safetensors_header,
)
from trainyard.run.record_models import validate_record

_PIECE = 1 << 20
_LOCAL_HEADER = Struct("<4s22xHH")
_FLOATS = {
    "DoubleStorage ComplexDoubleStorage float64 complex128 F64": (8, 0x7FF << 52, (1 << 52) - 1),
    "FloatStorage ComplexFloatStorage float32 complex64 F32": (4, 0xFF << 23, (1 << 23) - 1),
    "HalfStorage float16 F16": (2, 0x1F << 10, (1 << 10) - 1),
    "BFloat16Storage bfloat16 BF16": (2, 0xFF << 7, (1 << 7) - 1),
    "float8_e4m3fn F8_E4M3": (1, 0x7F, 0x7F),  # no infinity: all bits of both are its only NaN
    "float8_e5m2 F8_E5M2": (1, 0x1F << 2, 3),
}
_KINDS = {name: kind for names, kind in _FLOATS.items() for name in names.split()}
"""Type in a pickle or a header of safetensors -> bytes of a number, and masks of its exponent and fraction.
Others are integers."""
_WEIGHTS = (*ARCHIVES, ".safetensors", ".distcp")
_MOST_NAMES = 100
_FEWEST_BYTES, _MOST_EXCERPT = 32, 1 << 10
"""The bytes of an excerpt of a parameter."""
_MOST_DEPTH = 50


@dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint that could be read."""

    count: int = 0
    sha256: str = ""
    """A digest of all of them: of names, types, shapes and bytes."""
    nan: tuple[str, ...] = ()
    """The names of those with a NaN, up to 100, as of the next."""
    infinite: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """The files whose tensors could not be read, with the reason."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, value: object) -> "Tensors | None":
        """Return the tensors that `to_json` recorded; None for anything else."""
        with suppress(ValueError):
            return validate_record(cls, value)
        return None


@dataclass
class _Range:
    """Bytes of a file that belong together: a member of a zip, or a tensor."""

    start: int
    end: int
    name: str = ""
    stored_crc: int | None = None
    kind: tuple[int, int, int] | None = None
    """How its numbers are read, as in _KINDS; None if they are integers or no numbers."""
    crc: int = 0
    has_nan: bool = False
    has_infinity: bool = False

    def update(self, content: bytes) -> None:
        self.crc = zlib.crc32(content, self.crc)
        if self.kind is not None:
            has_nan, has_infinity = _not_finite(self.kind, content)
            self.has_nan, self.has_infinity = self.has_nan or has_nan, self.has_infinity or has_infinity


@dataclass(frozen=True)
class _Tensor:
    """A tensor, or its view of a storage."""

    name: str
    place: _Range
    facts: str
    """Its type, shape and place in the storage, for comparisons."""
    view: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None
    """Offset, size and stride in numbers if it does not cover its storage."""


FileTensors = tuple[list[tuple[str, str, bool, bool]], str | None]
"""The tensors of a file by name, digest, whether it has a NaN, an infinity; and why they cannot be read."""


def read_tensors(path: Path, update: Callable[[bytes], None]) -> FileTensors:
    """Return the tensors of a file, whose bytes go through `update` in their order.

    Raises CheckpointError for a file that is damaged: a member of its zip differs from its CRC-32 while
    others do not, its header or directory is unreadable, or it has only zeros, as after a power cut.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        ranges, tensors, unread = _layout(path, file, size)
        file.seek(0)
        pieces = iter(partial(file.read, _PIECE), b"")
        if unread and size > 4096 and not any(piece.strip(b"\0") for piece in pieces):
            raise CheckpointError(f"{path.name} is damaged: it has only zeros")
        _read(file, size, sorted(ranges, key=lambda each: each.start), update)
        checked = [each for each in ranges if each.stored_crc is not None and each.end > each.start]
        wrong = [each for each in checked if each.crc != each.stored_crc]
        if wrong and len(wrong) < len(checked):
            raise CheckpointError(f"{path.name}: {wrong[0].name} is damaged: it differs from its CRC-32")
        found = list[tuple[str, str, bool, bool]]()
        for tensor in tensors:
            flags = tensor.place.has_nan, tensor.place.has_infinity
            if any(flags) and tensor.view is not None and tensor.place.kind is not None:
                flags = _not_finite(tensor.place.kind, _view_of(path, tensor))
            found.append((tensor.name, f"{tensor.facts}:{tensor.place.crc:08x}", *flags))
        return found, unread


def summary_of(files: Mapping[str, FileTensors]) -> Tensors:
    """Return the tensors of all files of a checkpoint; if several have some, names begin with the file's."""
    digest, nan, infinite, count = hashlib.sha256(), list[str](), list[str](), 0
    is_several = sum(bool(tensors) for tensors, _ in files.values()) > 1
    for file in sorted(files):
        for name, facts, has_nan, has_infinity in sorted(files[file][0]):
            shown, count = f"{file}: {name}" if is_several else name, count + 1
            digest.update(f"{shown}\0{facts}\n".encode(errors="replace"))
            nan += [shown] if has_nan else []
            infinite += [shown] if has_infinity else []
    unread = [f"{file}: {why}" for file, (_, why) in sorted(files.items()) if why]
    shown_names = (tuple(names[:_MOST_NAMES]) for names in (nan, infinite, unread))
    return Tensors(count, digest.hexdigest() if count else "", *shown_names)


def relation_of_files(paths: Iterable[Path], excerpts: Iterable[tuple[bytes, bytes]]) -> str:
    """Return `trained`, `given` or `unknown`: which weights files have, by excerpts of the parameters.

    An excerpt is bytes from before the training, and those at the same place after it. Files may have other
    bytes, as compressed ones or an average do: all first ones and no last one must be there for `given`.
    """
    changed = [(first, last) for first, last in excerpts if first != last and _is_telling(last)]
    firsts = {first for first, _ in changed if _is_telling(first)}
    missing = firsts
    for path in paths:
        with path.open("rb") as file:
            end = b""
            while piece := file.read(_PIECE):
                content = end + piece
                if any(last in content for _, last in changed):
                    return "trained"
                missing = {first for first in missing if first not in content}
                end = content[-_MOST_EXCERPT:]
    return "given" if firsts and not missing else "unknown"


def _is_telling(excerpt: bytes) -> bool:
    """Return whether bytes are in no file by chance: enough of them, and not one number again and again."""
    return len(excerpt) >= _FEWEST_BYTES and excerpt != excerpt[:8] * (len(excerpt) // 8)


def _layout(path: Path, file: IO[bytes], size: int) -> tuple[list[_Range], list[_Tensor], str | None]:
    """Return the ranges and the tensors of a file, and why its tensors cannot be read."""
    file.seek(0)
    begins = file.read(len(ARCHIVE_BEGINS))
    if path.suffix == ".safetensors":
        return *_safetensors(path, file, size), None
    # Its name may have any ending; of others an unfinished zip is none.
    if begins == ARCHIVE_BEGINS and (path.suffix in ARCHIVES or zipfile.is_zipfile(file)):
        ranges = list(_members(path, file))
        tensors = _tensors_of_pickle(file, ranges)
        is_of_torch = any(each.name.endswith("/data.pkl") for each in ranges)
        why = "its pickle cannot be read" if is_of_torch else "not a zip of torch.save"
        return ranges, tensors or [], None if tensors is not None else why
    is_read = path.suffix not in _WEIGHTS or not size
    return [], [], None if is_read else "not a zip of torch.save or safetensors"


def _members(path: Path, file: IO[bytes]) -> Iterator[_Range]:
    """Yield the members of a zip. Raises CheckpointError if its directory or a header cannot be read."""
    try:
        members = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path.name}: its zip is damaged: {error}") from None
    for member in members:
        file.seek(member.header_offset)
        head = file.read(_LOCAL_HEADER.size)
        if len(head) < _LOCAL_HEADER.size or not head.startswith(ARCHIVE_BEGINS):
            raise CheckpointError(f"{path.name}: {member.filename} is damaged: its header cannot be read")
        _, name, extra = _LOCAL_HEADER.unpack(head)
        start = member.header_offset + _LOCAL_HEADER.size + name + extra
        is_stored = member.compress_type == zipfile.ZIP_STORED
        yield _Range(
            start, start + member.compress_size, member.filename, stored_crc=member.CRC if is_stored else None
        )


class _View(Inert):
    """Stands for a tensor in a pickle: a view of a storage."""

    def __init__(self, *given: Any, **_named: Any) -> None:
        super().__init__()
        self.given = given


class _Storage(NamedTuple):
    """Stands for the storage of tensors, which is a member of the zip."""

    kind: str
    key: str


class _TensorUnpickler(InertUnpickler):
    """Reads the structure of a pickle of torch with its tensors, without importing or calling anything."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name.startswith("_rebuild_tensor"):
            return _View
        if module == "torch._utils" and name.startswith("_rebuild_parameter"):
            return lambda tensor=None, *_: tensor
        return super().find_class(module, name)

    def persistent_load(self, identity: Any) -> Any:
        match identity:
            case ("storage", kind, str(key), *_):
                return _Storage(getattr(kind, "__name__", str(kind)), key)
        return Inert()


def _tensors_of_pickle(file: IO[bytes], members: Iterable[_Range]) -> list[_Tensor] | None:
    """Return the tensors that data.pkl of a zip of torch names; None if it cannot be read."""
    places = {each.name: each for each in members}
    pickle = next((each for each in members if each.name.endswith("/data.pkl")), None)
    if pickle is None or pickle.end - pickle.start > MOST_INDEX:
        return None
    file.seek(pickle.start)
    unreadable = object()  # the pickle of a program may hold nothing but None
    content = inert_content(BytesIO(file.read(pickle.end - pickle.start)), _TensorUnpickler, unreadable)
    if content is unreadable:
        return None
    root, tensors = pickle.name.removesuffix("/data.pkl"), list[_Tensor]()
    for name, tensor in _views_in(content):
        match tensor.given:
            case (_Storage() as storage, int(offset), tuple(shape), tuple(stride), *rest):
                place = places.get(f"{root}/data/{storage.key}")
                if place is not None and all(isinstance(n, int) and n >= 0 for n in (*shape, *stride)):
                    kind = getattr(rest[2], "__name__", "") if len(rest) > 2 else ""
                    kind = kind or storage.kind
                    place.kind = place.kind or _KINDS.get(kind)
                    width, is_complex = place.kind[0] if place.kind else 1, "omplex" in kind
                    covers = math.prod(shape) * width == place.end - place.start and offset == 0
                    view = None if covers or is_complex else (offset, shape, stride)
                    tensors.append(_Tensor(name, place, f"{kind}:{shape}:{offset}:{stride}", view))
    return tensors


def _views_in(content: Any) -> Iterator[tuple[str, _View]]:
    """Yield the tensors below an object of a pickle, with the keys that lead to each."""
    waiting, seen = [("", content, 0)], set[int]()
    while waiting:
        name, value, depth = waiting.pop()
        if isinstance(value, _View):
            yield name, value
            continue
        if id(value) in seen or depth > _MOST_DEPTH:
            continue
        inner = value if isinstance(value, dict | list | tuple) else members_of(value)
        if inner:
            seen.add(id(value))
        pairs = inner.items() if isinstance(inner, dict) else enumerate(inner)
        waiting += [(f"{name}.{key}" if name else f"{key}", each, depth + 1) for key, each in pairs]


def _safetensors(path: Path, file: IO[bytes], size: int) -> tuple[list[_Range], list[_Tensor]]:
    """Return the tensors by the header. Raises CheckpointError if it or the size of the file is wrong."""
    file.seek(0)
    try:
        begin, header = safetensors_header(file)
        tensors = []
        for name, each in header.items():
            start, end = (int(number) + begin for number in each["data_offsets"])
            place = _Range(start, end, name, kind=_KINDS.get(each["dtype"]))
            tensors.append(_Tensor(name, place, f"{each['dtype']}:{each['shape']}"))
    except NO_HEADER as error:
        raise CheckpointError(f"{path.name}: its header of safetensors cannot be read: {error}") from None
    if (end := max((each.place.end for each in tensors), default=begin)) != size:
        raise CheckpointError(f"{path.name}: {size:,} bytes, its header says {end:,}")
    return [each.place for each in tensors], tensors


def _read(file: IO[bytes], size: int, ranges: Iterable[_Range], update: Callable[[bytes], None]) -> None:
    """Read the file once, from its beginning to its end; each range gets its bytes."""
    at = file.seek(0)
    for each in (*ranges, _Range(size, size)):
        if each.start < at:  # overlaps the one before: no program writes that
            continue
        for place, end in ((None, each.start), (each, each.end)):
            while at < end and (piece := file.read(min(_PIECE, end - at))):
                update(piece)
                at += len(piece)
                if place is not None:
                    place.update(piece)


def _view_of(path: Path, tensor: _Tensor) -> bytes:
    """Return the numbers of a tensor that is a part of its storage."""
    import numpy as np

    assert tensor.view is not None and tensor.place.kind is not None
    offset, shape, stride = tensor.view
    width = tensor.place.kind[0]
    numbers = (tensor.place.end - tensor.place.start) // width
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if 0 in shape or len(shape) != len(stride) or last >= numbers:
        return b""
    storage = np.memmap(path, f"<u{width}", mode="r", offset=tensor.place.start, shape=(numbers,))
    strides = [step * width for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, strides).tobytes()


def _not_finite(kind: tuple[int, int, int], content: bytes) -> tuple[bool, bool]:
    import numpy as np

    width, exponent, fraction = kind
    bits = np.frombuffer(content, f"<u{width}", len(content) // width)
    special = bits[(bits & exponent) == exponent] & fraction
    return bool((special != 0).any()), bool((special == 0).any())
