"""Facts about this machine from the standard library: packages, compilers, memory, disk, sizes of folders.

The gateway `nvidia` queries the GPUs, the trainer imports torch, and `preflight` judges the facts.
"""

import importlib.util
import os
import re
import runpy
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

_AMAZON = "0x1d0f"
"""The vendor of EFA among PCI devices."""
_NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "9p"),
    *("virtiofs", "beegfs", "gpfs", "glusterfs", "wekafs"),
)
"""Types of mounts whose files are on another machine; those of FUSE (s3fs, mount-s3) begin with `fuse.`."""


@dataclass(frozen=True)
class MainMemory:
    """The main memory that this process may use."""

    total_bytes: int
    """The machine's memory, or the limit of a control group (of a container or a service)."""
    available_bytes: int
    """Memory that is free or used by caches that can be dropped."""
    swap_bytes: int
    """Free swap."""


def installed_versions() -> dict[str, str]:
    """Canonical name -> version of every distribution; of several the one that an import finds."""
    listed = reversed([*metadata.distributions()])  # setuptools adds a folder of its own at its import
    return {canonicalize_name(one.metadata["Name"]): one.version for one in listed if one.metadata["Name"]}


@dataclass(frozen=True)
class NetworkDevices:
    """The model of this machine and its fast network devices, from sysfs."""

    machine_type: str
    """As EC2 names it; elsewhere the maker's name of the machine."""
    efa: int
    """Interfaces of the Elastic Fabric Adapter."""
    has_infiniband: bool
    """Whether a port of InfiniBand is up."""


def network_devices(system: Path = Path("/sys")) -> NetworkDevices:
    """Return this machine's model and its fast network devices."""
    devices = sorted((system / "class/infiniband").glob("*"))
    ports = [port for device in devices for port in device.glob("ports/*")]
    return NetworkDevices(
        _text_of(system / "class/dmi/id/product_name"),
        sum(_text_of(device / "device/vendor") == _AMAZON for device in devices),
        any(
            _text_of(port / "link_layer") == "InfiniBand" and "ACTIVE" in _text_of(port / "state")
            for port in ports
        ),
    )


def has_nvidia_driver(devices: Path = Path("/dev")) -> bool:
    """Return whether the kernel has an NVIDIA driver, so that torch may find a GPU.

    On WSL its device is `dxg`.
    """
    return any((devices / name).exists() for name in ("nvidiactl", "nvidia0", "dxg"))


def installed_torch() -> tuple[str | None, str | None]:
    """Return the installed torch's version and the CUDA release it was built for, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None, None
    try:
        facts = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    except OSError:
        return None, None
    return str(facts["__version__"]).partition("+")[0], facts.get("cuda")


def missing_for_compiling(*, on_gpu: bool, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the missing system packages that torch.compile needs: a compiler, the headers of this Python.

    For a GPU, Triton compiles its launchers as C. For a CPU, the kernels themselves are C++.
    """
    requested = environment.get("CC" if on_gpu else "CXX")
    known = ("gcc", "clang") if on_gpu else ("clang++",) if sys.platform == "darwin" else ("g++",)
    names = (requested,) if requested else known
    missing = []
    if not any(shutil.which(name, path=environment.get("PATH")) for name in names):
        missing.append(" or ".join(names))
    if not _python_header().is_file():
        missing.append(f"Python's headers ({_python_header()})")
    return tuple(missing)


def _python_header() -> Path:
    """Return the path of Python.h. Debian's own scheme names a folder that its package leaves empty."""
    scheme = sysconfig.get_default_scheme()
    paths = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)
    return Path(paths["include"], "Python.h")


def main_memory(root: Path = Path("/")) -> MainMemory:
    """Main memory according to /proc and /sys below `root`; without /proc, all of it counts as available."""
    machine = _numbers_of(root / "proc/meminfo", unit=1024)
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = machine.get("MemTotal", everything)
    available = machine.get("MemAvailable", machine.get("MemFree", total) + machine.get("Cached", 0))
    swap = machine.get("SwapFree", 0)
    for limit, room, swap_room in _limits_of_groups(root):
        total, available = min(total, limit), min(available, room)
        swap = swap if swap_room is None else min(swap, swap_room)
    return MainMemory(total, max(0, min(available, total)), max(0, swap))


def _limits_of_groups(root: Path) -> Iterator[tuple[int, int, int | None]]:
    """Yield limit, room and room in the swap, in bytes, of each control group of this process with a limit.

    They are its own and all up to the root, because any of them can have the tightest limit. Inside a
    container, the path in /proc may be the host's while the mounted root is the container's group. Control
    groups of version 1 are not read.
    """
    own = re.search(r"^0::(.*)$", _text_of(root / "proc/self/cgroup"), re.MULTILINE)
    inside = PurePosixPath(own[1].strip("/") if own else "")
    for folder in (inside, *inside.parents):
        group = root / "sys/fs/cgroup" / folder
        limit = _text_of(group / "memory.max")
        if not limit.isdecimal():  # "max", or no such group here
            continue
        stat = _numbers_of(group / "memory.stat")
        caches = stat.get("inactive_file", 0) + stat.get("active_file", 0)
        room = int(limit) - max(0, _number(group / "memory.current") - caches)
        swap = _text_of(group / "memory.swap.max")
        swap_room = int(swap) - _number(group / "memory.swap.current") if swap.isdecimal() else None
        yield int(limit), room, swap_room


def _text_of(path: Path) -> str:
    """Return the text of a file; empty if it is missing or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text_of(path)
    return int(text) if text.isdecimal() else 0


def _numbers_of(path: Path, *, unit: int = 1) -> dict[str, int]:
    """Return the values of the lines `name: 12 kB` or `name 12` in a file, multiplied by `unit`."""
    words = (line.replace(":", " ").split() for line in _text_of(path).splitlines())
    return {found[0]: int(found[1]) * unit for found in words if len(found) > 1 and found[1].isdecimal()}


def free_bytes(path: Path) -> int:
    """Free space on the file system where `path` is or would be created."""
    return shutil.disk_usage(_existing(path)).free


def file_system_of(path: Path) -> int:
    """Return a number that is equal for all paths on one file system."""
    return _existing(path).stat().st_dev


def is_on_network(path: Path, *, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether the file system of `path` is that of another machine, by the type of its mount."""
    place, found, longest = os.path.realpath(_existing(path)), "", -1
    for line in _text_of(mounts).splitlines():
        _, mounted, kind, *_ = (*line.split(" "), "", "", "")
        folder = mounted.replace("\\040", " ")
        is_above = place == folder or place.startswith(folder.rstrip("/") + "/")
        if is_above and len(folder) >= longest:
            found, longest = kind, len(folder)
    is_mounted_program = found.startswith("fuse.") and "overlay" not in found
    return is_mounted_program or found in _NETWORK_FILE_SYSTEMS


def _existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists and is accessible."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if os.path.exists(p))  # noqa: PTH110


def measure_path(path: Path) -> int:
    """Return the size in bytes of a file or of all files below a folder; 0 when it does not exist."""
    if path.is_dir():
        return sum(p.lstat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size if path.is_file() else 0
