"""What the standard library can say of this machine: installed packages, memory, free disk, sizes of folders.

GPUs are the gateway's, torch is the trainer's, the judgement is `preflight`'s.
"""

import os
import shutil
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def installed_versions() -> dict[str, str]:
    """Canonical name -> version of every distribution of the running environment."""
    found = ((d.metadata["Name"], d.version) for d in metadata.distributions())
    return {canonicalize_name(name): version for name, version in found if name}


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
