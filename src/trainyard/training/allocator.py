"""The C library's memory: kept by the process instead of given back to the system after every use.

A step on a CPU asks for the same large blocks again and again. By default glibc maps each of them anew, and
the system fills it with zeros, page by page. This changes where numbers lie, not what they are.
"""

import ctypes
import os

_LARGEST_KEPT = (1 << 31) - 1
"""Bytes, the most that an `int` says: larger blocks are still mapped and given back one by one."""
_NEVER = -1
_GROWTH = 64 << 20
"""Bytes by which the heap grows beyond what is asked for."""
# mallopt(3); the numbers are those of glibc's malloc.h.
_SETTINGS = {
    "M_MMAP_THRESHOLD": (-3, _LARGEST_KEPT),
    "M_TRIM_THRESHOLD": (-1, _NEVER),
    "M_TOP_PAD": (-2, _GROWTH),
}


def keep_memory() -> bool:
    """Have glibc keep what is freed; whether it does. Other C libraries are left as they are."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names or not os.confstr("CS_GNU_LIBC_VERSION"):
        return False
    library = ctypes.CDLL(None)
    done = [library.mallopt(number, value) for number, value in _SETTINGS.values()]
    return all(done)
