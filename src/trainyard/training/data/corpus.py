"""Choose the files of the training corpus, their order, and what is held out for validation.

A corpus is a list of files: the source code of the running interpreter's standard library, or the files below
a path of the configuration. The order and the split depend on the relative paths alone, so they are the same
on every machine. This module opens no file; `document_reader` reads them.

Skipped files and rows are counted, with the first few names; errors and reports quote the tally.
"""

import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainyard.errors import DataError

_EXAMPLES = 3


@dataclass(frozen=True)
class SkipCount:
    """The files or rows that were skipped for one reason."""

    reason: str
    """The kind of skipped files or rows, such as `binary files`."""
    count: int
    examples: tuple[str, ...]
    """The first few, by name; a row is `file:line`."""

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.examples) else ""
        return f"{self.reason}: {self.count:,} ({', '.join(self.examples)}{more})"


class SkipTally:
    """Counts skipped files and rows; the reasons are in order of first appearance."""

    def __init__(self, known: Sequence[SkipCount] = ()) -> None:
        """`known` are earlier counts to start from."""
        self._counted = {skipped.reason: skipped for skipped in known}

    def add(self, reason: str, example: str) -> None:
        """Count one more for `reason`; keep `example` if there are few yet."""
        printable = os.fsencode(example).decode("utf-8", "replace")
        self.include([SkipCount(reason, 1, (printable,))])

    def include(self, others: Sequence[SkipCount]) -> None:
        """Add the counts of another tally."""
        for other in others:
            known = self._counted.get(other.reason, SkipCount(other.reason, 0, ()))
            examples = (*known.examples, *other.examples)[:_EXAMPLES]
            self._counted[other.reason] = SkipCount(other.reason, known.count + other.count, examples)

    def summary(self) -> tuple[SkipCount, ...]:
        return tuple(self._counted.values())


def skip_sentence(skipped: tuple[SkipCount, ...]) -> str:
    """A sentence about skipped files for the end of an error; empty if there are none."""
    return f" Skipped: {'; '.join(map(str, skipped))}." if skipped else ""


OTHER_SUFFIX = "files with another suffix"
NOT_UTF8 = "files that are not UTF-8"
_FIXES = {
    NOT_UTF8: " Save it as UTF-8 (iconv -f latin1 -t utf-8 OLD.txt > NEW.txt).",
    OTHER_SUFFIX: " Convert PDF and Word documents to .txt first.",
}
SUFFIXES = (".txt", ".py", ".md", ".jsonl", ".parquet", ".bin")
# Distributors (Debian, the official container images) leave the tests out. The corpus does too, so that the
# same Python version gives the same tokens on more machines. The other folders hold no library source.
_NOT_LIBRARY_FOLDERS = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "lib-dynload", "__pycache__")
)
_MACHINE_SPECIFIC = ("_sysconfigdata", "sitecustomize", "usercustomize")


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus."""

    path: Path
    relative: str
    """The path relative to the corpus' root, with forward slashes. It determines the order and the split."""
    size: int
    """In bytes."""
    modified_ns: int

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()


@dataclass(frozen=True)
class Corpus:
    """The files of one source of data, sorted by relative path."""

    name: str
    """The name shown to people."""
    files: tuple[CorpusFile, ...]


def standard_library(root: Path | None = None) -> Corpus:
    """The `.py` files of the running interpreter's standard library, without tests and installed packages.

    `root` overrides the library's folder. Raises DataError when it has no source files, as in an interpreter
    that ships its library as bytecode or in an archive.
    """
    skips = SkipTally()  # empty modules of the library are not worth reporting
    root = (root or Path(sysconfig.get_path("stdlib"))).resolve()
    paths = _paths_below(root, is_pruned=_is_not_library, skips=skips)
    files = _corpus_files(root, (p for p in paths if _is_library_source(p, root)), skips)
    if not files:
        raise DataError(
            f"{root}: the standard library of this Python has no source files."
            f"{skip_sentence(skips.summary())} Set data.train_path to a file or folder of your own."
        )
    return Corpus(f"Python {sys.version_info.major}.{sys.version_info.minor} standard library", files)


def corpus_at(
    key: str, path: Path, *, without: Sequence[Path], skips: SkipTally, bin_dtype: str = "uint16"
) -> Corpus:
    """Find the usable files at `path`, which is a file or a folder that is searched recursively.

    `key` (`data.train_path`) is for messages. Folders in `without`, names with a leading dot, and `.bin`
    files that cannot hold tokens of `bin_dtype` are left out. Links are followed, each folder once. Raises
    DataError when `path` is missing, has no usable file or holds a Megatron dataset.
    """
    if not path.exists():
        raise DataError(f"{key}: {path} does not exist. {_advice(key)}")
    if path.is_dir():
        excluded = {folder.resolve() for folder in without} - {path.resolve()}
        paths = _paths_below(path, is_pruned=lambda p: _is_hidden(p) or p.resolve() in excluded, skips=skips)
        files = _corpus_files(path, (p for p in paths if not _is_hidden(p)), skips, bin_dtype)
    else:
        files = _corpus_files(path.parent, [path], skips, bin_dtype)
    if not files:
        raise DataError(unusable_message(key, path, skips))
    return Corpus(str(path), files)


def unusable_message(key: str, path: Path | str, skips: SkipTally) -> str:
    """The message for a path without usable files."""
    reasons = [skipped.reason for skipped in skips.summary()]
    fix = next((fix for reason, fix in _FIXES.items() if reason in reasons), "")
    return f"{key}: {path} has no usable data.{skip_sentence(skips.summary())}{fix} {_advice(key)}"


def hold_out(
    files: tuple[CorpusFile, ...], fraction: float
) -> tuple[tuple[CorpusFile, ...], tuple[CorpusFile, ...]]:
    """Split into training and validation files by a hash of each relative path.

    About `fraction` of the files are held out, the same ones on every machine. No file is held out when one
    of the two sides would be empty.
    """
    held_out = tuple(file for file in files if _place(file.relative) < fraction)
    rest = tuple(file for file in files if _place(file.relative) >= fraction)
    return (rest, held_out) if rest and held_out else (files, ())


def _place(relative: str) -> float:
    """Map a path to [0, 1), with all paths evenly distributed."""
    return int.from_bytes(hashlib.sha256(os.fsencode(relative)).digest()[:6], "big") / 2**48


def _advice(key: str) -> str:
    kinds = ", ".join(SUFFIXES[:-1])
    held_out = key == "data.validation_path"
    instead = "hold out part of the training files" if held_out else "train on Python's standard library"
    return f"Put {kinds} or .bin files there, or set it to null to {instead}: --set {key}=null"


def _paths_below(root: Path, *, is_pruned: Callable[[Path], bool], skips: SkipTally) -> Iterator[Path]:
    """Yield all paths below `root` that are not folders, in a fixed order; enter no folder twice."""

    def count_unreadable(error: OSError) -> None:
        skips.add("unreadable folders", str(error.filename))

    seen = {_identity(root)}
    for folder, names, files in os.walk(root, followlinks=True, onerror=count_unreadable):
        kept = []
        for name in sorted(names):
            path = Path(folder, name)
            if not is_pruned(path) and (identity := _identity(path)) not in seen:
                seen.add(identity)
                kept.append(name)
        names[:] = kept
        yield from (Path(folder, name) for name in sorted(files))


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _is_not_library(folder: Path) -> bool:
    name = folder.name
    return folder.is_symlink() or name in _NOT_LIBRARY_FOLDERS or name.startswith(("config-", "."))


def _is_library_source(path: Path, root: Path) -> bool:
    if path.suffix != ".py" or path.name.startswith(_MACHINE_SPECIFIC):
        return False
    return not path.is_symlink() or path.resolve().is_relative_to(root)


def _corpus_files(
    root: Path, paths: Iterator[Path] | list[Path], skips: SkipTally, bin_dtype: str = "uint16"
) -> tuple[CorpusFile, ...]:
    """The non-empty files of `paths` with a known suffix, sorted; the others are counted in `skips`."""
    files = []
    for path in paths:
        relative = path.relative_to(root).as_posix()
        if path.suffix.lower() not in SUFFIXES:
            skips.add(OTHER_SUFFIX, relative)
        elif (status := _status(path)) is None:
            skips.add("unreadable files", relative)
        elif status.st_size == 0:
            skips.add("empty files", relative)
        elif path.suffix.lower() == ".bin" and status.st_size % np.dtype(bin_dtype).itemsize:
            skips.add(f".bin files that are not a multiple of {bin_dtype} in size", relative)
        else:
            if path.suffix == ".bin" and path.with_suffix(".idx").is_file():
                # Its integers are of the type in the index: read as another type, they would be wrong tokens.
                raise DataError(
                    f"{path}: a Megatron dataset (beside an .idx file), which is not read. Convert it to "
                    "text or JSON lines. Or move the .idx file away and set data.bin_dtype to what Megatron "
                    "wrote: uint16 for a vocabulary below 65,500 tokens, else uint32."
                )
            files.append(CorpusFile(path, relative, status.st_size, status.st_mtime_ns))
    return tuple(sorted(files, key=lambda file: os.fsencode(file.relative)))


def _status(path: Path) -> os.stat_result | None:
    """The status of a regular file; None for anything else, such as a dangling link or a pipe."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
