"""The C library keeps freed memory mapped for the next step."""

import os
import sys
from pathlib import Path

import pytest
from tests import warm_start

from trainyard.training.runtime import hardware

COUNT = """
import ctypes, resource
from trainyard.training.runtime.hardware import keep_memory
assert keep_memory()
library, size = ctypes.CDLL(None), 80 << 20
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(size)
    ctypes.memset(block, 1, size)
    library.free(block)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / size)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc")
def test_blocks_that_are_used_again_are_not_mapped_again(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNT)
    done = warm_start.run([sys.executable, tmp_path / "count.py"], timeout=120)
    assert float(done.stdout) < 0.1, done.stderr


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr_names", {})
    assert not hardware.keep_memory()
