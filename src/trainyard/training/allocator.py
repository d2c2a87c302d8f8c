"""Make the C library keep freed memory instead of returning it to the system after every use.

A step on a CPU allocates the same large blocks again and again. By default glibc maps each of them anew, and
the system fills it with zeros, page by page. The setting changes no computed value.
"""

import ctypes
import os

_LARGEST_KEPT = (1 << 31) - 1
"""In bytes, the largest `int`. Larger blocks are still mapped and returned one by one."""
_NEVER = -1
_GROWTH = 64 << 20
"""The bytes by which the heap grows beyond the request."""
# mallopt(3); the numbers are those of glibc's malloc.h.
_SETTINGS = {
    "M_MMAP_THRESHOLD": (-3, _LARGEST_KEPT),
    "M_TRIM_THRESHOLD": (-1, _NEVER),
    "M_TOP_PAD": (-2, _GROWTH),
}


def keep_memory() -> bool:
    """Make glibc keep freed memory; return whether it does. Other C libraries are left unchanged."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names or not os.confstr("CS_GNU_LIBC_VERSION"):
        return False
    library = ctypes.CDLL(None)
    done = [library.mallopt(number, value) for number, value in _SETTINGS.values()]
    return all(done)
