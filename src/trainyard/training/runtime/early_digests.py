"""Hash the checkpoint that a run resumes from while the program still imports its packages.

    start --thread: SHA-256 of the newest checkpoint's files--> used later, if the file has not changed

This module neither chooses nor verifies a checkpoint; the caller does both later. A file that changed since,
or was not hashed, is hashed when its digest is requested.
"""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory

_CHUNK_BYTES = 16 << 20
"""Large, because between two chunks the thread waits for the interpreter, which the imports keep busy."""
Signature = tuple[int, int, int, int, int]


def digests_begun(run_dir: Path | None, resume: str) -> Callable[[Path], str]:
    """Return a faster `sha256_of_file` for the checkpoint that `resume` (`none`, `auto` or a path) names."""
    files: list[Path] = []
    with suppress(OSError):  # the search for the checkpoint reports the problem
        folder = _folder(run_dir, resume)
        files = sorted(path for path in folder.iterdir() if path.is_file()) if folder else []
    if not files:
        return sha256_of_file
    digests: dict[Path, Future[tuple[Signature, str]]] = {path.resolve(): Future() for path in files}
    threading.Thread(target=_hash_all, args=(digests,), name="early-digests", daemon=True).start()
    return lambda path: _digest_of(path, digests)


def _folder(run_dir: Path | None, resume: str) -> Path | None:
    if resume not in ("none", "auto"):
        return Path(resume) if Path(resume).is_dir() else None
    if run_dir is None or resume == "none":
        return None
    directory = RunDirectory(run_dir)
    steps = directory.checkpoint_steps()
    return directory.checkpoint(steps[-1]) if steps else None


def _hash_all(digests: dict[Path, "Future[tuple[Signature, str]]"]) -> None:
    """Hash all files; on any failure, the remaining futures fail too, so that nobody waits for them."""
    try:
        for path, digest in digests.items():
            try:
                digest.set_result(_hashed(path))
            except (OSError, MemoryError) as error:
                digest.set_exception(error)
    finally:
        for path, digest in digests.items():
            if not digest.done():
                digest.set_exception(OSError(f"{path} was not hashed"))


def _hashed(path: Path) -> tuple[Signature, str]:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        before = _signature(os.fstat(file.fileno()))
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
        after = _signature(os.fstat(file.fileno()))
    if before != after:
        raise OSError(f"{path} changed while it was read")
    return after, digest.hexdigest()


def _digest_of(path: Path, digests: dict[Path, "Future[tuple[Signature, str]]"]) -> str:
    begun = digests.get(path.resolve())
    if begun is None or begun.exception() is not None:
        return sha256_of_file(path)
    signature, digest = begun.result()
    return digest if signature == _signature(path.stat()) else sha256_of_file(path)


def _signature(status: os.stat_result) -> Signature:
    """Return the file attributes that change when the file is replaced or written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
