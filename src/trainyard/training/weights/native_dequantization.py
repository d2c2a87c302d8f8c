"""Dequantise GGUF weights to float32, with the C++ kernels of `native/` if they are built, else with NumPy.

Both give the same bits as `gguf.quants.dequantize`; only the speed differs. This module compiles nothing:
`make native` does, and the package works without the kernels. The caller reads the GGUF file.

The kernels are an option: they speed up loading quantised weights, once at the start of a run from
such weights. Training itself does not use them.

The library is searched in this order: `TRAINYARD_NATIVE_LIBRARY` (a path; `none` means NumPy), then
`native/build/` of the checkout.
"""

import ctypes
import logging
import os
from enum import IntEnum
from functools import cache
from pathlib import Path

import gguf
import numpy as np

from trainyard.errors import ConfigError, DataError

LIBRARY_VARIABLE = "TRAINYARD_NATIVE_LIBRARY"
# Types that have a kernel; NumPy handles the others.
NATIVE_TYPES = (
    "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
DEFAULT_TILE_BYTES = 4096
_ABI_VERSION = 1
_BUILD = Path(__file__).resolve().parents[4] / "native" / "build"
_FILES = ("libtrainyard_kernels.so", "libtrainyard_kernels.dylib")
_BUILD_ADVICE = "make native builds it"
_logger = logging.getLogger(__name__)


class Instructions(IntEnum):
    """enum trainyard_instructions in native/include/trainyard/kernels.h."""

    BEST = 0
    SCALAR = 1
    AVX2 = 2


class _Options(ctypes.Structure):
    """struct trainyard_options in native/include/trainyard/kernels.h."""

    _fields_ = (
        ("tile_bytes", ctypes.c_size_t),
        ("threads", ctypes.c_uint32),
        ("instructions", ctypes.c_int32),
    )


def dequantize(
    data: np.ndarray,
    type_name: str,
    *,
    tile_bytes: int = DEFAULT_TILE_BYTES,
    threads: int = 1,
    instructions: Instructions = Instructions.BEST,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Convert `data` (`[..., bytes per row]`) of the GGUF type `type_name` (such as `"Q8_0"`) to float32.

    A kernel handles `tile_bytes` of input at a time, rounded down to complete blocks, at least one, on up to
    `threads` threads. `out` receives the values, because new memory costs more than the arithmetic.

    Raises DataError when a row is not a whole number of blocks, or gguf cannot dequantise the type, and
    ConfigError when TRAINYARD_NATIVE_LIBRARY names a file that is not such a library.
    """
    kind = gguf.GGMLQuantizationType[type_name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rows = np.ascontiguousarray(data).view(np.uint8)
    if rows.shape[-1] % size:
        raise DataError(
            f"{type_name} weights: a row of {rows.shape[-1]} bytes is not a multiple of {size} bytes, a "
            "block; the file is cut off, or its tensor is of another type"
        )
    library = kernels()
    if library is None or type_name not in NATIVE_TYPES:
        return _dequantize_by_numpy(rows, kind)
    values = (
        np.empty((*rows.shape[:-1], rows.shape[-1] // size * elements), np.float32) if out is None else out
    )
    assert values.size == rows.size // size * elements
    assert values.dtype == np.float32
    assert values.flags.carray
    tile = min(tile_bytes, max(rows.nbytes, 1))  # `tile_bytes` may be too large for a size_t
    options = _Options(tile, threads, instructions)
    status = library.trainyard_dequantize(
        int(kind), rows.ctypes.data, rows.nbytes, values.ctypes.data, values.size, ctypes.byref(options)
    )
    if status:
        reason = library.trainyard_status_text(status).decode()
        raise ConfigError(f"the native kernels refused {type_name} weights: {reason}; {_BUILD_ADVICE} again")
    return values


def _dequantize_by_numpy(rows: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    try:
        with np.errstate(all="ignore"):  # infinite scales are valid; the kernels do not warn either
            values: np.ndarray = gguf.quants.dequantize(rows, kind)
    except NotImplementedError as error:
        raise DataError(f"gguf cannot convert {kind.name} weights to floats: {error}") from error
    return values.copy() if np.may_share_memory(values, rows) else values


def kernels() -> ctypes.CDLL | None:
    """Return the library of kernels; None if it is not built, and NumPy dequantises."""
    configured = os.environ.get(LIBRARY_VARIABLE)
    if configured == "none":
        return None
    if configured:
        try:
            return _open_library(Path(configured))
        except OSError as error:
            raise ConfigError(
                f"{LIBRARY_VARIABLE}: {configured} cannot be used ({error}); {_BUILD_ADVICE}, or unset the "
                "variable"
            ) from error
    path = next((_BUILD / name for name in _FILES if (_BUILD / name).is_file()), None)
    return None if path is None else _usable_library(path)


@cache
def _usable_library(path: Path) -> ctypes.CDLL | None:
    """The library at `path`; None, with a warning, if it is of another version or machine."""
    try:
        return _open_library(path)
    except OSError as error:
        _logger.warning("%s is not used (%s), so NumPy dequantises; %s again", path, error, _BUILD_ADVICE)
        return None


@cache
def _open_library(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions. Raises OSError when it is not one of this interface."""
    library = ctypes.CDLL(str(path.resolve()))
    if not hasattr(library, "trainyard_abi_version"):
        raise OSError("it is another library")
    if (version := library.trainyard_abi_version()) != _ABI_VERSION:
        raise OSError(f"its interface is version {version}, needed is {_ABI_VERSION}")
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    library.trainyard_dequantize.argtypes = (ctypes.c_int32, pointer, size, pointer, size, pointer)
    library.trainyard_status_text.restype = ctypes.c_char_p
    return library
