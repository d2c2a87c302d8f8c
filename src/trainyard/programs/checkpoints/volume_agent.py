"""The program that reads checkpoints inside a pod: its source is sent there, and run by the pod's own Python.

    look ROOT          a JSON line per file below ROOT: name, size, time, and what shows that it is complete
    send ROOT F START  the bytes of a file from START on, to stdout; then its digest as JSON, to stderr

It changes nothing, needs Python 3.8 and no package, and follows no link. `volume_source` sends its text, and
`volume_listing` uses its list for a folder of this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import pickletools
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

PIECE = 1 << 20
MOST_FILES = 200_000
MOST_TEXT, MOST_INDEX, MOST_HEADER = 8 << 20, 128 << 20, 100 << 20
ARCHIVE_BEGINS, ARCHIVE_ENDS, END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
TEXTS = ("manifest.json", "latest_checkpointed_iteration.txt", "latest", "metadata.json")
JSONS = re.compile(
    r"(trainer_state|config|adapter_config|fsdp_config|metadata|\.metadata|meta_\d{6})\.json", re.ASCII
)
ARCHIVES = (".pt", ".pth", ".tar", ".bin", ".pkl", ".ckpt", ".npz", ".keras")
SIZED = ("_model_states.pt", "model_optim_rng.pt")
"""Endings of files in which DeepSpeed and Megatron-LM record how many ranks wrote them."""
COUNTS = (
    *("dp_world_size", "mp_world_size", "stage", "mics_shard_size"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("use_distributed_optimizer", "no_save_optim"),
)
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json", ".metadata")
NO_HEADER = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
OPTIMIZER = re.compile(r"optim|exp_avg|momentum", re.IGNORECASE)
# Names of an optimizer and its tensors, as programs give them to torch's distributed checkpoint.
STEPS = ("global_step", "step", "iteration", "iter_num", "global_steps", "epoch")
# Keys under which programs save the optimizer steps and the epochs done.


def list_below(root: Path, out: BinaryIO) -> None:
    """Write a line per file. Files that disappear meanwhile are omitted, because the pod may be writing."""
    count = 0
    for count, entry in enumerate(entries_below(root), 1):
        if count > MOST_FILES:
            raise SystemExit(f"more than {MOST_FILES:,} files below {root}; name the folder of one run")
        write_line(out, entry)
    write_line(out, {"end": count})


def entries_below(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the facts about each regular file below the folder, with its path there."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            try:
                entry = entry_of(path)
            except OSError:
                continue
            if entry is not None:
                yield {"path": path.relative_to(root).as_posix(), **entry}


def entry_of(path: Path) -> dict[str, Any] | None:
    """Return the facts about a file; None for links and anything else that is not a regular file."""
    if path.is_symlink() or not path.is_file():
        return None
    found = path.stat()
    entry: dict[str, Any] = {"size": found.st_size, "modified": found.st_mtime}
    if JSONS.fullmatch(path.name) and found.st_size <= MOST_TEXT:
        content = json_in(path)
        entry["whole"] = isinstance(content, dict)
        entry["counts"] = steps_in(members_of(content))
    if path.name in TEXTS and found.st_size <= MOST_TEXT:
        entry["text"] = path.read_bytes().decode("utf-8", "replace")
    elif path.name == ".metadata" and found.st_size <= MOST_INDEX:
        entry.update(metadata_facts(path))
    elif path.name in INDEXES and found.st_size <= MOST_INDEX:
        names = members_of(json_in(path)).get("weight_map")
        entry["names"] = sorted(set(map(str, names.values()))) if isinstance(names, dict) else None
    elif path.suffix in ARCHIVES:
        entry["whole"] = is_whole_archive(path, found.st_size)
        if entry["whole"] and path.name.endswith(SIZED):
            entry["counts"] = counts_in(path)
    elif path.suffix == ".safetensors":
        try:
            with path.open("rb") as file:
                begin, tensors = safetensors_header(file)
            ends = [tensor["data_offsets"][1] for tensor in tensors.values()]
            entry["whole"] = begin + max([0, *ends]) == found.st_size
        except NO_HEADER:
            entry["whole"] = False
    return entry


def json_in(path: Path) -> Any:
    """Return the content of a JSON file; None if it cannot be read."""
    try:
        return json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError):
        return None


def metadata_facts(path: Path) -> dict[str, Any]:
    """Return the files that a `.metadata` of torch names, and the size that each must have at least."""
    content = path.read_bytes()
    try:
        texts = {value for _, value, _ in pickletools.genops(io.BytesIO(content)) if isinstance(value, str)}
    except (ValueError, RecursionError):
        return {"names": None}
    facts: dict[str, Any] = {"names": sorted(text for text in texts if text.endswith(".distcp"))}
    ends: dict[str, int] = {}
    state = members_of(inert_content(io.BytesIO(content)))
    for place in members_of(state.get("storage_data")).values():
        known = members_of(place)
        name, offset, length = (known.get(key) for key in ("relative_path", "offset", "length"))
        if isinstance(name, str) and isinstance(offset, int) and isinstance(length, int) and length >= 0:
            ends[name] = max(ends.get(name, 0), offset + length)
    return {**facts, "ends": ends, "counts": {"optimizer": 1} if any(map(OPTIMIZER.search, texts)) else {}}


def counts_in(path: Path) -> dict[str, int]:
    """The numbers in a torch.save file that say how many ranks wrote the checkpoint; empty if unknown."""
    top = saved_members(path)
    zero = members_of(members_of(top.get("ds_config")).get("zero_optimization"))
    known = {**members_of(top.get("args")), **zero, **top}
    return {
        name: int(known[name]) for name in COUNTS if isinstance(known.get(name), int) and known[name] >= 0
    }


def saved_facts(path: Path) -> dict[str, Any]:
    """Return the keys at the top of a torch.save file or of JSON, those below `state` as `state.KEY`, and its
    step."""
    top = members_of(json_in(path)) if path.suffix == ".json" else saved_members(path)
    keys = [key for key in top if isinstance(key, str)]
    keys += [f"state.{key}" for key in members_of(top.get("state")) if isinstance(key, str)]
    return {"keys": sorted(keys), "counts": steps_in(top)}


def steps_in(top: dict[Any, Any]) -> dict[str, int]:
    """Return the numbers of optimizer steps among members."""
    return {name: top[name] for name in STEPS if type(top.get(name)) is int and top[name] >= 0}


def numpy_members(archive: zipfile.ZipFile) -> dict[Any, Any]:
    """Return the numbers of STEPS in a file of numpy.savez, which has a member for each array."""
    found = {}
    for name in STEPS:
        member = f"{name}.npy"
        if member in archive.namelist() and archive.getinfo(member).file_size < 1024:
            content = archive.read(member)
            scalar = re.match(rb"\x93NUMPY.{4}\{'descr': '<i([48])'.*'shape': \(\)", content, re.DOTALL)
            if scalar:
                found[name] = int.from_bytes(content[-int(scalar[1]) :], "little", signed=True)
    return found


def saved_members(path: Path) -> dict[Any, Any]:
    """Return the members of a file of torch.save or numpy.savez, without tensors; empty if they cannot be
    read."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
            if name is None:
                return numpy_members(archive)
            if archive.getinfo(name).file_size > MOST_INDEX:
                return {}
            with archive.open(name) as file:
                return members_of(inert_content(file))
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError):
        return {}


class Inert:
    """Stands for every class and function that a pickle names, and does nothing."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *_arguments: Any, **_named: Any) -> Inert:
        return Inert()

    def ignore(self, *_arguments: Any) -> None:
        return

    append = extend = add = __setitem__ = ignore


class InertMapping(dict):  # type: ignore[type-arg]  # Python 3.8 has no dict[Any, Any] at run time
    """Stands for an OrderedDict, which may have attributes of its own."""

    def __setstate__(self, _state: Any) -> None:
        return


class InertUnpickler(pickle.Unpickler):
    """Reads the structure of a pickle without importing or calling what it names."""

    def find_class(self, module: str, name: str) -> Any:
        is_mapping = (module, name) == ("collections", "OrderedDict")
        return InertMapping if is_mapping else type(name, (Inert,), {})

    def persistent_load(self, _identity: Any) -> Any:
        return Inert()


def inert_content(file: Any, unpickler: type[InertUnpickler] = InertUnpickler, unreadable: Any = None) -> Any:
    """Return the structure of a pickle; `unreadable` if it cannot be read."""
    try:
        return unpickler(file).load()
    except (pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError):
        return unreadable
    except (OverflowError, RecursionError, MemoryError, ImportError):
        return unreadable


def members_of(value: Any) -> dict[Any, Any]:
    """Return the members of an object in a pickle; empty for anything that has none."""
    found = value.state if isinstance(value, Inert) else value
    return found if isinstance(found, dict) else {}


def is_whole_archive(path: Path, size: int) -> bool | None:
    """Return whether a torch.save file has its end; None if it is not a zip archive."""
    if size == 0:
        return False
    with path.open("rb") as file:
        begins = file.read(len(ARCHIVE_BEGINS))
        if begins != ARCHIVE_BEGINS:
            return False if ARCHIVE_BEGINS.startswith(begins) else None
        file.seek(max(0, size - END_BYTES))
        return file.read(len(ARCHIVE_ENDS)) == ARCHIVE_ENDS


def safetensors_header(file: Any) -> tuple[int, dict[str, Any]]:
    """Return where the tensors of a file of safetensors begin, and their facts. Raises one of NO_HEADER."""
    length = int.from_bytes(file.read(8), "little")
    if length > MOST_HEADER:
        raise ValueError(f"it states {length:,} bytes")
    header = json.loads(file.read(length).decode())
    return 8 + length, {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def send_file(root: Path, name: str, start: int, *, out: BinaryIO, err: BinaryIO) -> None:
    """Write the file from `start` on. The digest covers the complete file, so all of it is read."""
    digest, done = hashlib.sha256(), 0
    with resolve_below(root, name).open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        while done < before.st_size:
            most = min(PIECE, before.st_size - done)
            piece = file.read(min(most, start - done) if done < start else most)
            if not piece:
                break
            digest.update(piece)
            if done >= start:
                out.write(piece)
            done += len(piece)
        out.flush()
        after = os.fstat(file.fileno())
    unchanged = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    same = unchanged and done == before.st_size
    write_line(err, {"sha256": digest.hexdigest(), "size": before.st_size, "same": same})


def resolve_below(root: Path, name: str) -> Path:
    """Return a file below the root. Raises SystemExit for a link, and a name that leads out of the root."""
    path = root / name
    if path.resolve() != root.resolve() / name or ".." in Path(name).parts:
        raise SystemExit(f"{name} leads out of {root}")
    return path


def write_line(out: BinaryIO, value: object) -> None:
    out.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
    out.flush()


def main(words: list[str], out: BinaryIO, err: BinaryIO) -> int:
    """Run the command in `words`; return the exit code."""
    command, root = words[0], Path(words[1])
    try:
        if not root.is_dir():
            raise SystemExit(f"there is no folder {root}")
        if command == "look":
            list_below(root, out)
        else:
            send_file(root, words[2], int(words[3]), out=out, err=err)
    except SystemExit as error:
        write_line(err, {"error": str(error)})
        return 3
    except OSError as error:
        write_line(err, {"error": f"{error.filename or root}: {error.strerror}"})
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout.buffer, sys.stderr.buffer))
