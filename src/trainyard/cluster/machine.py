"""What the standard library can say of this machine: packages, compilers, memory, disk, sizes of folders.

GPUs are the gateway's, torch is the trainer's, the judgement is `preflight`'s.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def installed_versions() -> dict[str, str]:
    """Canonical name -> version of every distribution of the running environment."""
    found = ((d.metadata["Name"], d.version) for d in metadata.distributions())
    return {canonicalize_name(name): version for name, version in found if name}


def missing_for_compiling(*, on_gpu: bool, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What torch.compile needs of the system and does not find: a compiler, the headers of this Python.

    For a GPU Triton compiles its launchers as C, for a CPU the kernels themselves are C++.
    """
    asked = environment.get("CC" if on_gpu else "CXX")
    known = ("gcc", "clang") if on_gpu else ("clang++",) if sys.platform == "darwin" else ("g++",)
    names = (asked,) if asked else known
    missing = []
    if not any(shutil.which(name, path=environment.get("PATH")) for name in names):
        missing.append(" or ".join(names))
    if not _python_header().is_file():
        missing.append(f"Python's headers ({_python_header()})")
    return tuple(missing)


def _python_header() -> Path:
    """Where a compiler looks for it. Debian's own scheme names a folder that its package does not fill."""
    scheme = sysconfig.get_default_scheme()
    paths = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)
    return Path(paths["include"], "Python.h")


def memory_bytes(limit_file: Path = _MEMORY_LIMIT) -> int:
    """Main memory, or what a container's control group (version 2) allows of it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = limit_file.read_text().strip()
    except OSError:
        return memory
    return min(memory, int(limit)) if limit.isdigit() else memory


def free_bytes(path: Path) -> int:
    """Free space where `path` is, or where it would be created."""
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def size_of(path: Path) -> int:
    """Bytes of a file or of all files below a folder; 0 when there is none."""
    if path.is_dir():
        return sum(p.lstat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size if path.is_file() else 0
