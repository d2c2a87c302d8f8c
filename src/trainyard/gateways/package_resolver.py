"""Run uv, which answers whether requirements can be installed together, and in which versions.

Nothing of the packages runs: only metadata is read, and nothing is built from source.
"""

import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.gateways.process import run_program

if TYPE_CHECKING:
    from trainyard.image.conflict.resolution import ResolverRequest

_SECONDS = 60.0
_PUBLISHED_SECONDS = 300.0
_FLAGS = ("--no-build", "--no-annotate", "--no-header", "--no-config", "--no-python-downloads", "--quiet")
_NAMES = ("EXTRA_INDEX_URL", "INDEX", "FIND_LINKS", "TORCH_BACKEND", "CONSTRAINT", "OVERRIDE")
_INDEXES = frozenset(f"UV_{name}" for name in _NAMES)


def compile_requirements(
    uv: Path, request: "ResolverRequest", *, index: str = ""
) -> tuple[int | None, str, str]:
    """Return uv's exit code, the versions that it chose as lines of a requirements file, and its messages.

    `index` is a URL or a folder of wheels; empty is uv's own.
    """
    where = ["--default-index", index] if "://" in index else ["--no-index", "--find-links", index]
    environment = {key: value for key, value in os.environ.items() if key not in _INDEXES}
    environment |= {"UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_RETRIES": "1"}
    with tempfile.TemporaryDirectory(prefix="trainyard-resolve-") as name:
        folder = Path(name)
        texts = {
            "requirements.in": request.requirements,
            "constraints.txt": request.constraints,
            "overrides.txt": [f"{one} ; sys_platform == 'never'" for one in sorted(request.dropped)],
            "chosen.txt": [f"{package}=={version}" for package, version in request.preferred],
        }
        for file, lines in texts.items():
            (folder / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [str(uv), "pip", "compile", "requirements.in", "--constraints", "constraints.txt"]
        # Without --python, uv starts every Python of the path to ask for its version.
        command += ["--python", sys.executable, "--overrides", "overrides.txt"]
        command += ["--output-file", "chosen.txt", *_FLAGS, *request.flags, *(where if index else ())]
        done = run_program(command, seconds=_SECONDS, cwd=folder, environment=environment)
        return done.exit_code, (folder / "chosen.txt").read_text(encoding="utf-8"), done.stderr


def published_digests(
    uv: Path, name: str, version: str, python: str, *, processor: str = "x86_64"
) -> dict[str, str] | str:
    """Return path -> SHA-256 of the files of a package as the index has it, for the Python of an image.

    Empty if the index has no such version; a text says why it is not known. uv keeps the wheel in its cache.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-published-") as folder:
        flags = ("--no-deps", "--no-build", "--no-config", "--no-python-downloads", "--quiet")
        where = ["--python-platform", f"{processor}-manylinux_2_40", "--target", folder]
        where += ["--python", sys.executable, *(["--python-version", python] if python else [])]
        done = run_program(
            [str(uv), "pip", "install", *flags, *where, f"{name}=={version}"], seconds=_PUBLISHED_SECONDS
        )
        if not done.ok:
            return _why_unpublished(" ".join(done.stderr.split()))
        files = (path for path in Path(folder).rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }


def _why_unpublished(messages: str) -> dict[str, str] | str:
    """Return an empty mapping if uv read the index and the version is not there, else what hindered it.

    uv also says "No solution found" for an index that refuses it, that it may not ask, or that has only a
    source: its hints tell these apart.
    """
    if "no usable wheels" in messages or "Wheels are required" in messages:
        return "the index has no wheel for this Python"
    unread = re.search(
        r"could not be queried|returned an? \d{3}|network was disabled|not found in the cache", messages
    )
    if "No solution found" not in messages or unread:
        return "the index could not be read"
    return {}
