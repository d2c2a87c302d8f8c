"""The record of the image that this process runs in: the commit of its code, and whether it was changed
since.

An image holds no git history, so git cannot be queried. `docker/write_image_record.py` writes the record when
the image is built. Only the standard library is imported here, because this runs in every image.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORD = Path("/run/image.json")
CODE = ("src", "scripts", "configs")
"""The folders of the repository that are in an image and determine what runs."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MADE_HERE = ("__pycache__",)


def code_facts(directory: Path, record: Path = RECORD) -> dict[str, Any]:
    """The commit and the state of the code in `directory`, in the form of `git_facts`; empty if unknown.

    The record names a commit only if the image was built from a clean tree. Code that was changed in the
    image since then (a derived image, a mounted folder) counts as a dirty tree, with the digest of the code
    instead of a difference. If there is a `.git`, query git instead.
    """
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        code, commit = found["code"], found["commit"]
        if not _COMMIT.fullmatch(commit) or Path(code["directory"]) != directory.resolve():
            return {}
        if (directory / ".git").exists():
            return {}
        expected = str(code["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    try:
        digest = code_sha256(directory)
    except OSError:
        return {"commit": commit}  # unknown is not clean
    return {"commit": commit} | (
        {"dirty": False} if digest == expected else {"dirty": True, "diff_sha256": digest}
    )


def runs_code_of(directory: Path, package: Path) -> bool:
    """Return whether `package`, the folder of the imported package, holds the code of the repository
    `directory`.
    """
    own = directory / "src" / package.name
    try:
        return package.resolve() == own.resolve() or code_sha256(package, ("",)) == code_sha256(own, ("",))
    except OSError:
        return False


def code_sha256(directory: Path, folders: tuple[str, ...] = CODE) -> str:
    """One digest of the names and contents of all files of the code. Raises OSError if one cannot be read."""
    digest = hashlib.sha256()
    for name in sorted(_files(directory, folders)):
        path = directory / name
        if path.is_symlink():
            content = f"-> {path.readlink()}"
        elif not path.is_file():
            content = "no file"  # such as a pipe, which would be waited for
        else:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{content} {name}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(directory: Path, tops: tuple[str, ...]) -> Iterator[str]:
    for top in tops:
        for folder, folders, names in os.walk(directory / top, onerror=_raise):
            folders[:] = [one for one in folders if one not in _MADE_HERE and not one.endswith(".egg-info")]
            links = [one for one in folders if Path(folder, one).is_symlink()]
            for name in (*names, *links):
                yield Path(folder, name).relative_to(directory).as_posix()


def _raise(error: OSError) -> None:
    raise error
