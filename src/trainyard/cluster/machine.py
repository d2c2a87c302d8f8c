"""What the standard library can say of this machine: packages, compilers, memory, disk, sizes of folders.

GPUs are the gateway's, torch is the trainer's, the judgement is `preflight`'s.
"""

import importlib.util
import os
import runpy
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from trainyard.cluster.licences import Declared


@dataclass(frozen=True)
class MainMemory:
    """Main memory, as far as this process may have it."""

    total_bytes: int
    """Of the machine, or what a control group (of a container, of a service) allows of it."""
    available_bytes: int
    """Free, or taken by caches that give way."""
    swap_bytes: int
    """Free beside it."""


def installed_versions() -> dict[str, str]:
    """Canonical name -> version of every distribution of the running environment."""
    found = ((d.metadata["Name"], d.version) for d in metadata.distributions())
    return {canonicalize_name(name): version for name, version in found if name}


def has_nvidia_driver(devices: Path = Path("/dev")) -> bool:
    """Whether the kernel has a driver of NVIDIA, so that torch may find a GPU; also on WSL, by its `dxg`."""
    return any((devices / name).exists() for name in ("nvidiactl", "nvidia0", "dxg"))


def installed_torch() -> tuple[str | None, str | None]:
    """Version of the installed torch and the CUDA release it was built for, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None, None
    try:
        facts = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    except OSError:
        return None, None
    return str(facts["__version__"]).partition("+")[0], facts.get("cuda")


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


def declared_licences() -> dict[str, Declared]:
    """Canonical name -> what each distribution of the running environment declares of its licence."""
    found = ((d.metadata["Name"], d) for d in metadata.distributions())
    return {canonicalize_name(name): _declared(distribution) for name, distribution in found if name}


def _declared(distribution: metadata.Distribution) -> Declared:
    fields = distribution.metadata.json
    expression, text = fields.get("license_expression"), fields.get("license")
    return Declared(
        version=distribution.version,
        expression=str(expression) if expression else None,
        classifiers=tuple(kind for kind in fields.get("classifier", ()) if kind.startswith("License ::")),
        text=str(text) if text else None,
    )


def memory_bytes() -> int:
    """Main memory, or what a control group allows of it."""
    return main_memory().total_bytes


def main_memory(root: Path = Path("/")) -> MainMemory:
    """Main memory by /proc and /sys below `root`; where there is no /proc, all of it counts as available."""
    machine = _numbers_of(root / "proc/meminfo", unit=1024)
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = machine.get("MemTotal", everything)
    available = machine.get("MemAvailable", machine.get("MemFree", total) + machine.get("Cached", 0))
    swap = machine.get("SwapFree", 0)
    for group in _groups_with_limits(root):
        total = min(total, group.limit)
        available = min(available, group.room)
        if group.swap_room is not None:
            swap = min(swap, group.swap_room)
    return MainMemory(total, max(0, min(available, total)), max(0, swap))


@dataclass(frozen=True)
class _Group:
    """A control group that limits the memory of this process, in bytes."""

    limit: int
    room: int
    swap_room: int | None


def _groups_with_limits(root: Path) -> Iterator[_Group]:
    """Every group from this process's own up to the root: each of them can be the tightest.

    Inside a container the path of the group may be the host's, and its own group the root of what is mounted.
    """
    for line in _text_of(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            yield from _limits(root / "sys/fs/cgroup", path, ("memory.max", "memory.current", ""))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            yield from _limits(root / "sys/fs/cgroup/memory", path, names)


def _limits(mounted: Path, path: str, names: tuple[str, str, str]) -> Iterator[_Group]:
    limit_name, usage_name, prefix = names
    inside = PurePosixPath(path.strip("/"))
    for folder in (inside, *inside.parents):
        limit = _text_of(mounted / folder / limit_name)
        if not limit.isdecimal():  # "max", or no such group here
            continue
        usage = _number(mounted / folder / usage_name)
        stat = _numbers_of(mounted / folder / "memory.stat")
        caches = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
        swap = _text_of(mounted / folder / "memory.swap.max")
        swapped = _number(mounted / folder / "memory.swap.current")
        swap_room = int(swap) - swapped if swap.isdecimal() else None
        yield _Group(int(limit), int(limit) - max(0, usage - caches), swap_room)


def _text_of(path: Path) -> str:
    """Empty where there is no such file, or it may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text_of(path)
    return int(text) if text.isdecimal() else 0


def _numbers_of(path: Path, *, unit: int = 1) -> dict[str, int]:
    """The lines `name: 12 kB` or `name 12` of a file, in bytes."""
    words = (line.replace(":", " ").split() for line in _text_of(path).splitlines())
    return {found[0]: int(found[1]) * unit for found in words if len(found) > 1 and found[1].isdecimal()}


def free_bytes(path: Path) -> int:
    """Free space where `path` is, or where it would be created."""
    return shutil.disk_usage(_existing(path)).free


def file_system_of(path: Path) -> int:
    """The same number for all paths on one file system."""
    return _existing(path).stat().st_dev


def _existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that is there and may be looked at."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if os.path.exists(p))  # noqa: PTH110


def size_of(path: Path) -> int:
    """Bytes of a file or of all files below a folder; 0 when there is none."""
    if path.is_dir():
        return sum(p.lstat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size if path.is_file() else 0
