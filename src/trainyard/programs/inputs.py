"""Inputs of a program: the lock of its packages, the packages that it imported, and its data by hash."""

import glob
import hashlib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from trainyard.errors import ConfigError
from trainyard.run.atomic_files import sha256_of_file

# Searched in this order. The tools of the first ones pin every package; people write the last ones.
_PINNED = ("uv.lock", "poetry.lock", "pdm.lock", "pixi.lock", "Pipfile.lock", "conda-lock.yml", "pylock.toml")
LOCKS = (*_PINNED, "requirements.lock", "requirements.txt", "environment.yml", "environment.yaml")
# Endings of what programs write, and of data: a file that is named and has one of them is not hashed by name.
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".npz", ".npy", ".onnx", ".h5")
_NO_NAMED_INPUTS = (*_WEIGHTS, ".log", ".out")
# In locks of uv, poetry, PDM and pylock: a package that lies in a folder, whose version may change with it.
_FOLDERS = {"editable", "directory", "virtual", "path"}
_MOST_NAMED_BYTES = 64 * 2**20
_SHELLS, _WRITERS = ("sh", "bash", "dash", "zsh"), ("tee",)


def named_files(command: Sequence[str], directory: Path, *, metrics: str = "") -> list[Path]:
    """Return the files that the arguments of a command name: as a word, or after the `=` of an option.

    So do the words of a text for a shell (`sh -c TEXT`), but for those that it writes. The file of `metrics`,
    which the program writes, is none.
    """
    found = []
    for word in (*command[1:], *_words_for_shell(command)):
        for text in (word, word.partition("=")[2]):
            path = directory / text
            with suppress(OSError, ValueError):
                is_input = bool(text) and not text.endswith(_NO_NAMED_INPUTS) and path.is_file()
                if is_input and path != directory / metrics and path.stat().st_size <= _MOST_NAMED_BYTES:
                    found.append(path)
    return found


def _words_for_shell(command: Sequence[str]) -> list[str]:
    """Return the words of the text after `-c` that a shell runs, without the targets of `>` and `tee`."""
    options = [at for at, word in enumerate(command[:-1]) if re.fullmatch(r"-[a-z]*c", word)]
    if Path(command[0]).name not in _SHELLS or not options:
        return []
    reader = shlex.shlex(command[options[0] + 1], posix=True, punctuation_chars=True)
    with suppress(ValueError):  # a quote that never ends: the shell refuses it, too
        words, before = [], ""
        for word in reader:
            if not before.endswith(">") and before not in _WRITERS:
                words.append(word)
            before = before if before in _WRITERS and word.startswith("-") else word
        return words
    return []


def find_lock(directory: Path) -> Path | None:
    """Return the lock in `directory` or the nearest folder above it, up to the root of its repository.

    A file that leaves the version of a package open, or names none, is none.
    """
    for folder in (directory, *directory.parents):
        for name in LOCKS:
            if (folder / name).is_file() and not lock_fault(folder / name):
                return folder / name
        if (folder / ".git").exists():
            return None
    return None


def lock_fault(lock: Path) -> str:
    """Return why the file is no lock, as the end of a sentence about it; empty if it pins each package.

    URLs, paths, and conda's own pip are not judged.
    """
    if lock.name in _PINNED:
        return "" if lock.stat().st_size else "is empty"
    is_empty = True
    for words in _requirements(lock, frozenset()):
        is_empty = False
        with suppress(InvalidRequirement):
            found = Requirement(words)
            exact = (one.operator in ("==", "===") and one.version[-1:] != "*" for one in found.specifier)
            if not found.url and not any(exact):
                return f"leaves the version of {words} open"
    return "names no package" if is_empty else ""


def imported_versions(installed: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the version by canonical name of each package that has one of the modules in `installed`.

    Those are paths without an ending, by the folder of the packages: `google/protobuf` in `site-packages`. A
    module of several packages is none's, and a package that is recorded with two versions has none.
    """
    found: dict[str, set[str]] = {}
    for folder, modules in installed.items():
        owners: dict[str, list[tuple[str, str]]] = {}
        for each in metadata.distributions(path=[folder]):
            with suppress(OSError, ValueError, TypeError, KeyError):  # the rest of an install that failed
                listed = each.read_text("RECORD") or each.read_text("top_level.txt") or ""
                one = (canonicalize_name(each.name, validate=True), str(Version(each.version)))
                paths = re.findall(r"^(([^/.,\n]+)(?:/[^/.,\n]+)?)", listed, flags=re.MULTILINE)
                for path in {path for pair in paths for path in pair}.intersection(modules):
                    owners.setdefault(path, []).append(one)
        for several in owners.values():
            if len({name for name, _ in several}) == 1:
                found.setdefault(several[0][0], set()).update(version for _, version in several)
    return {name: versions.pop() for name, versions in sorted(found.items()) if len(versions) == 1}


def other_versions(lock: Path, imported: Mapping[str, str]) -> list[str]:
    """Return which of the imported packages have another version than the lock pins.

    A lock of conda or pixi has names of its own and is not compared.
    """
    pins: dict[str, list[str]] = {}
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):  # what it pins is not known
        for name, exact in _pins(lock):
            pins.setdefault(canonicalize_name(name), []).append(exact)
    found = []
    for name in imported.keys() & pins.keys():
        with suppress(ValueError):  # a pin of another kind
            # A lock for several machines may pin several versions; an empty one is of a folder or an address.
            if not any(SpecifierSet(pin).contains(imported[name], prereleases=True) for pin in pins[name]):
                pinned = " or ".join(dict.fromkeys(pins[name])).replace("=", "")
                found.append(f"{name} {imported[name]}, not {pinned}")
    return sorted(found)


def _pins(lock: Path) -> Iterator[tuple[str, str]]:
    """Yield name and specifier of each package that a lock pins."""
    if lock.name == "Pipfile.lock":
        content = json.loads(lock.read_bytes())
        for name, facts in (content.get("default", {}) | content.get("develop", {})).items():
            yield name, facts.get("version", "")
    elif (lock.suffix == ".lock" and lock.name in _PINNED) or lock.suffix == ".toml":
        content = tomllib.loads(lock.read_text("utf-8"))
        for facts in content.get("package") or content["packages"]:
            source = facts.get("source", {})
            is_folder = not _FOLDERS.isdisjoint((*facts, *source, source.get("type")))
            yield facts["name"], f"=={facts['version']}" if "version" in facts and not is_folder else ""
    elif lock.name not in _PINNED and lock.suffix not in (".yml", ".yaml"):
        for words in _requirements(lock, frozenset()):
            with suppress(InvalidRequirement):
                wanted = Requirement(words)
                exact = (f"=={one.version}" for one in wanted.specifier if one.operator in ("==", "==="))
                yield wanted.name, next(exact, "")


def _requirements(lock: Path, included_by: frozenset[Path]) -> Iterator[str]:
    """Yield the requirements in a file of pip or conda, and in the files that it includes."""
    text = lock.read_text("utf-8", "replace").replace("\\\n", " ")
    if lock.suffix in (".yml", ".yaml"):
        text = re.sub(r"(?<=[\w.])=(?=\d)", "==", text.partition("dependencies:")[2])
        text = re.sub(r"^\s*-\s*(?:pip$)?", "", text, flags=re.MULTILINE)
    for line in text.splitlines():
        words = re.split(r"(?:^|\s)#|\s--", line)[0].strip()
        if included := re.fullmatch(r"(?:-r|--requirement)[\s=]*(\S+)", words):
            other, above = (lock.parent / included[1]).resolve(), included_by | {lock.resolve()}
            if other not in above and other.is_file():
                yield from _requirements(other, above)
        elif words and not words.startswith(("-", ".", "/")):  # options, and folders of the user's own
            yield words


def find_data(directory: Path, patterns: Sequence[str]) -> dict[str, Path]:
    """Return name -> path of the files that match `patterns` below `directory`; a folder gives all its files.

    Raises ConfigError for a pattern that matches nothing.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        wanted, matches = str(Path(pattern).expanduser()), dict[str, Path]()
        for name in glob.glob(wanted, root_dir=directory, recursive=True, include_hidden=True):  # noqa: PTH207
            path = directory / name  # Path.glob refuses an absolute pattern
            files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
            matches |= {os.path.relpath(file, directory): file for file in files}
        if not matches:
            raise ConfigError(
                f"program.data: {pattern} matches no file in {directory}. Name the files that the program "
                "reads, relative to program.directory, or [] if it reads none."
            )
        found |= matches
    return found


def read_data(directory: Path, patterns: Sequence[str]) -> dict[str, Any]:
    """Return the `fingerprint` of the files that match `patterns`, and the number of `files` and `bytes`.

    The fingerprint is the SHA-256 over the name and the SHA-256 of each file, in the order of the names.
    Raises ConfigError as `find_data` does, and OSError.
    """
    digest, found = hashlib.sha256(), find_data(directory, patterns)
    for name in sorted(found):
        digest.update(f"{name}\0{sha256_of_file(found[name])}\n".encode(errors="surrogateescape"))
    size = sum(path.stat().st_size for path in found.values())
    return {"fingerprint": digest.hexdigest(), "files": len(found), "bytes": size}


def fingerprint_of_data(program: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of the files that a recorded program reads; None if they are not here."""
    directory, patterns = program.get("directory"), program.get("data")
    if not isinstance(directory, str) or not isinstance(patterns, list) or not Path(directory).is_dir():
        return None
    try:
        return str(read_data(Path(directory), [str(pattern) for pattern in patterns])["fingerprint"])
    except (OSError, ConfigError):
        return None
