"""The files of a build context: listed by git if the folder is in a repository, hashed, copied, archived.

Only files that git tracks are listed; a folder outside any repository is listed completely. A copy and an
archive of the same files have the same bytes on every machine: sorted, with modes 644 and 755 and one fixed
time.
"""

import hashlib
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.gateways.process import run_git

LISTING = ".trainyard-source.txt"
"""File in an archive with the names of its files, for the machine that unpacks it and has no git history."""
_GIT_SECONDS = 60
_THREADS = 4
_BLOCK = 1 << 20
_HEAD_OF_TEXT, _LARGEST_TEXT = 1024, 64 << 20
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can hold."""
_TOOLS = (
    *("buildspec.yml", "Makefile", "pyproject.toml", "README.md", "LICENSE", "requirements-"),
    *("scripts/", "src/", "configs/", "docker/probe/"),
)
_MOST_FILES = 50_000
"""Limit of files in a folder outside git. A home folder has more, a project has fewer."""
_NEVER_SENT = (".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules")
"""Folders that are skipped outside git."""


@dataclass(frozen=True)
class FileOnDisk:
    """A file of a context as listed."""

    name: str
    """Relative to the context, with `/`."""
    size: int
    mode: str
    """`file`, `executable` or `link`."""


@dataclass(frozen=True)
class HashedFile:
    """A file of a context after it was read."""

    name: str
    mode: str
    sha256: str
    secret: str | None
    """The kind of secret in it, as `examine` returned it."""


def list_files(context: Path) -> list[FileOnDisk]:
    """Return the files of a context.

    Raises ConfigError if there is no such folder. A deleted file that git still tracks is omitted.
    """
    if not context.is_dir():
        raise ConfigError(f"{context}: no such folder to build from. Name it with --context")
    names = _tracked_files(context)
    names = _listed_files(context) if names is None else names
    if names is None:
        found = list(islice(_walk_files(context), _MOST_FILES + 1))
        if len(found) > _MOST_FILES:
            raise ConfigError(
                f"{context}: more than {_MOST_FILES:,} files, and no git that lists those of the "
                "image. Name the project's own folder with --context, or put it into git."
            )
        return found
    return [file for name in names if (file := _file(context, name)) is not None]


def find_dockerfile(context: Path, given: Path) -> tuple[str, str, Path | None]:
    """A Dockerfile: its name in the context (absolute if it is elsewhere), its text, and its ignore file.

    `given` is relative to the working directory or to the context. Raises ConfigError if there is none.
    """
    path = given if given.is_file() else context / given
    if not path.is_file():
        raise ConfigError(f"{given}: there is no such Dockerfile. Name it with --dockerfile FILE")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a Dockerfile ({error})") from None
    inside = path.resolve().is_relative_to(context.resolve())
    name = path.resolve().relative_to(context.resolve()).as_posix() if inside else str(path.resolve())
    ignores = (path.with_name(f"{path.name}.dockerignore"), context / ".dockerignore")
    return name, text, next((one for one in ignores if one.is_file()), None)


def tool_files(root: Path, package: Path) -> dict[str, Path]:
    """Return the files that a build machine needs: the scripts, the locks, and the library as `src/`.

    `root` is the checkout, or the folder of the installed data; `package` is the folder of the library.
    """
    files = {file.name: root / file.name for file in list_files(root) if file.name.startswith(_TOOLS)}
    if not (root / "src").is_dir():
        files |= {f"src/{package.name}/{one.name}": package / one.name for one in _walk_files(package)}
    return files


def hash_files(
    context: Path,
    files: Iterable[tuple[str, str]],
    *,
    examine: Callable[[bytes, str], str | None],
) -> list[HashedFile]:
    """Read files, given as name and mode; `examine` returns the kind of secret in some bytes of a named file.

    It receives a text (no null byte in the first kilobyte) of up to 64 MiB, else nothing. Raises ConfigError
    for a file that cannot be read.
    """

    def read(file: tuple[str, str]) -> HashedFile:
        name, mode = file
        path, secret = context / name, None
        try:
            if mode == "link":
                return HashedFile(name, mode, hashlib.sha256(bytes(path.readlink())).hexdigest(), None)
            with path.open("rb") as stream:
                head = stream.read(_HEAD_OF_TEXT)
                if b"\0" not in head and path.stat().st_size <= _LARGEST_TEXT:
                    secret = examine(head + stream.read(), name)
                stream.seek(0)
                return HashedFile(name, mode, hashlib.file_digest(stream, "sha256").hexdigest(), secret)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; it belongs to the build context") from None

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, files))


def copy_files(sources: Mapping[str, Path], folder: Path) -> None:
    """Copy files, each to its own name below `folder`."""
    for name, path in sorted(sources.items()):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            continue
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def write_archive(sources: Mapping[str, Path], target: Path) -> str:
    """Write a zip file of the files by their names, and return its SHA-256 (CodeBuild takes zip)."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted((*sources, LISTING)):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED
            if name == LISTING:
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                archive.writestr(entry, "".join(f"{one}\n" for one in sorted(sources)))
                continue
            path = sources[name]
            if path.is_symlink():
                entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(entry, bytes(path.readlink()))
                continue
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            with path.open("rb") as source, archive.open(entry, "w") as sink:
                shutil.copyfileobj(source, sink, _BLOCK)
    with target.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _tracked_files(context: Path) -> list[str] | None:
    """Return the files that git tracks below the context; None outside a repository.

    Raises ConfigError if there is a repository that git cannot read, because its files must not be guessed.
    """
    listing = ("ls-files", "-z", "--cached", "--recurse-submodules")
    done = run_git(context, *listing, seconds=_GIT_SECONDS)
    if done.ok:
        return sorted({name for name in done.stdout.split("\0") if name})
    if any((folder / ".git").exists() for folder in (context.resolve(), *context.resolve().parents)):
        message = " ".join(done.stderr.split())[:300]
        raise ConfigError(f"{context}: git cannot list what it tracks here, so nothing is sent: {message}")
    return None


def _listed_files(context: Path) -> list[str] | None:
    """The files below the context according to the list in an unpacked archive; None without a list."""
    for folder in (context.resolve(), *context.resolve().parents):
        listing = folder / LISTING
        if listing.is_file() and not listing.is_symlink():
            below = context.resolve().relative_to(folder).as_posix()
            prefix = "" if below == "." else f"{below}/"
            names = listing.read_text(encoding="utf-8").splitlines()
            return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return None


def _walk_files(context: Path) -> Iterator[FileOnDisk]:
    for folder, folders, names in os.walk(context):
        folders[:] = sorted(name for name in folders if name not in _NEVER_SENT)
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted((*names, *links)):
            below = Path(folder, name).relative_to(context).as_posix()
            if (file := _file(context, below)) is not None:
                yield file


def _file(context: Path, name: str) -> FileOnDisk | None:
    """Return a file or link by its name; None if it is missing or something else."""
    try:
        facts = os.lstat(f"{context}/{name}")
    except OSError:
        return None
    if stat.S_ISLNK(facts.st_mode):
        return FileOnDisk(name, facts.st_size, "link")
    if not stat.S_ISREG(facts.st_mode):
        return None
    return FileOnDisk(name, facts.st_size, "executable" if facts.st_mode & 0o100 else "file")
