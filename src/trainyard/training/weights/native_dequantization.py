"""Dequantise GGUF weights to float32, with the C++ kernels of `native/` if they are built, else with NumPy.

Both give the same bits as `gguf.quants.dequantize`; only the speed differs. This module compiles nothing:
`trainyard step native` does, and the package works without the kernels. The caller reads the GGUF file.

The kernels are an option: they speed up loading quantised weights, once at the start of a run from
such weights. Training itself does not use them.

The library is searched in this order: `TRAINYARD_NATIVE_LIBRARY` (a path; `none` means NumPy), then
`native/build/` of the checkout.
"""

import ctypes
import logging
import os
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.errors import ConfigError, DataError
from trainyard.run.suggested_commands import trainyard_command

LIBRARY_VARIABLE = "TRAINYARD_NATIVE_LIBRARY"
NATIVE_TYPES = (
    "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
"""Types that have a kernel; NumPy handles the others."""
DEFAULT_TILE_BYTES = 4096
_ABI_VERSION = 1
_BUILD = Path(__file__).resolve().parents[4] / "native" / "build"
_FILES = ("libtrainyard_kernels.so", "libtrainyard_kernels.dylib")
_logger = logging.getLogger(__name__)


class Backend(StrEnum):
    """The implementation that converts blocks to floats."""

    AVX2 = "avx2"
    SCALAR = "scalar"
    NUMPY = "numpy"


_INSTRUCTIONS = {Backend.SCALAR: 1, Backend.AVX2: 2}
"""enum trainyard_instructions in native/include/trainyard/kernels.h."""


class _Options(ctypes.Structure):
    _fields_ = (
        ("tile_bytes", ctypes.c_size_t),
        ("threads", ctypes.c_uint32),
        ("instructions", ctypes.c_int32),
    )


@dataclass(frozen=True)
class _BlockType:
    """A tensor type of GGUF files."""

    name: str
    number: int
    elements: int
    """Elements per block."""
    size: int
    """Bytes per block."""


def backend() -> Backend:
    """The backend that `dequantize` uses by default.

    Raises ConfigError when TRAINYARD_NATIVE_LIBRARY names a file that is not such a library.
    """
    library = _library()
    return Backend.NUMPY if library is None else _best_backend(library)


def dequantize(
    data: np.ndarray,
    type_name: str,
    *,
    tile_bytes: int = DEFAULT_TILE_BYTES,
    threads: int = 1,
    using: Backend | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Convert `data` (`[..., bytes per row]`) of the GGUF type `type_name` (such as `"Q8_0"`) to float32.

    Args:
        tile_bytes: Input bytes that a kernel handles at a time, rounded down to whole blocks, at least one.
        threads: The largest number of threads.
        using: The backend; the default is the fastest.
        out: Receives the values and is returned; float32, contiguous, of the result's shape. Without it new
            memory is allocated, whose first use takes longer than the arithmetic.

    Raises:
        DataError: a row is not a whole number of blocks, or no backend can dequantise the type.
        ConfigError: `tile_bytes` or `threads` is below 1, or the requested backend is not available.
        ValueError: `out` does not fit.
    """
    _refuse_counts(tile_bytes, threads)
    kind = _block_type(type_name)
    rows = _rows(data, kind)
    _refuse_wrong_output(rows, kind, out)
    library = _library_for(using)
    if library is None or kind.name not in NATIVE_TYPES:
        return _dequantize_by_numpy(rows, kind, out)
    values = np.empty(_shape(rows, kind), np.float32) if out is None else out
    tile = min(tile_bytes, max(rows.nbytes, 1))  # `tile_bytes` may be too large for a size_t
    options = _Options(tile, threads, _INSTRUCTIONS[using or _best_backend(library)])
    _dequantize_by_kernel(library, rows, values, kind=kind, options=options)
    return values


def _refuse_counts(tile_bytes: int, threads: int) -> None:
    if tile_bytes < 1:
        raise ConfigError(f"kernel_optimization.tile_bytes: expected at least 1, got {tile_bytes}")
    if not 1 <= threads <= 1024:
        raise ConfigError(f"dequantisation needs from 1 to 1024 threads, got {threads}")


@cache
def _block_type(name: str) -> _BlockType:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    kinds = {kind.name: kind for kind in GGMLQuantizationType}
    if name not in kinds:
        raise DataError(f'"{name}" is not a type of a GGUF file; known are {", ".join(sorted(kinds))}')
    elements, size = GGML_QUANT_SIZES[kinds[name]]
    return _BlockType(name, int(kinds[name]), elements, size)


def _rows(data: np.ndarray, kind: _BlockType) -> np.ndarray:
    """The bytes of `data` as one contiguous array whose last axis is a whole number of blocks."""
    size = data.shape[-1] * data.itemsize if data.ndim else data.nbytes
    if data.ndim == 0 or size % kind.size:
        raise DataError(
            f"{kind.name} weights: a row of {size} bytes is not a multiple of {kind.size} bytes, a block; "
            "the file is cut off, or its tensor is of another type"
        )
    return np.ascontiguousarray(data).view(np.uint8)


def _shape(rows: np.ndarray, kind: _BlockType) -> tuple[int, ...]:
    return (*rows.shape[:-1], rows.shape[-1] // kind.size * kind.elements)


def _refuse_wrong_output(rows: np.ndarray, kind: _BlockType, out: np.ndarray | None) -> None:
    shape = _shape(rows, kind)
    if out is not None and not (out.dtype == np.float32 and out.shape == shape and out.flags.carray):
        raise ValueError(f"out must be contiguous, writable float32 of shape {shape}")


def _dequantize_by_kernel(
    library: ctypes.CDLL, rows: np.ndarray, values: np.ndarray, *, kind: _BlockType, options: _Options
) -> None:
    status = library.trainyard_dequantize(
        kind.number, rows.ctypes.data, rows.nbytes, values.ctypes.data, values.size, ctypes.byref(options)
    )
    if status:
        reason = library.trainyard_status_text(status).decode()
        raise ConfigError(
            f"the native kernels refused {kind.name} weights: {reason}; {_build_advice()} again"
        )


def _dequantize_by_numpy(rows: np.ndarray, kind: _BlockType, out: np.ndarray | None) -> np.ndarray:
    import gguf

    if not rows.size:  # gguf cannot reshape an array without rows
        return np.empty(_shape(rows, kind), np.float32) if out is None else out
    try:
        with np.errstate(all="ignore"):  # infinite scales are valid; the kernels do not warn either
            values: np.ndarray = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(kind.number))
    except NotImplementedError as error:
        raise DataError(f"gguf cannot convert {kind.name} weights to floats: {error}") from error
    if out is None:
        return values.copy() if np.may_share_memory(values, rows) else values
    out[...] = values
    return out


def _library_for(using: Backend | None) -> ctypes.CDLL | None:
    """The library that `using` needs; None means NumPy."""
    if using is Backend.NUMPY:
        return None
    library = _library()
    if using is None:
        return library
    if library is None:
        raise ConfigError(f"the {using} kernels were requested, but no library is built: {_build_advice()}")
    if using is Backend.AVX2 and _best_backend(library) is not Backend.AVX2:
        raise ConfigError("the avx2 kernels were requested, but this processor or this library has no AVX2")
    return library


def _library() -> ctypes.CDLL | None:
    """The library of kernels; None if it is not built."""
    configured = os.environ.get(LIBRARY_VARIABLE)
    if configured == "none":
        return None
    if configured:
        return _requested_library(Path(configured))
    for path in (_BUILD / name for name in _FILES):
        if path.is_file():
            return _usable_library(path)
    _logger.debug("no native kernels in %s, so NumPy dequantises; %s", _BUILD, _build_advice())
    return None


def _requested_library(path: Path) -> ctypes.CDLL:
    try:
        return _open_library(path)
    except OSError as error:
        raise ConfigError(
            f"{LIBRARY_VARIABLE}: {path} cannot be used ({error}); {_build_advice()}, or unset the variable"
        ) from error


@cache
def _usable_library(path: Path) -> ctypes.CDLL | None:
    """The library at `path`; None, with a warning, if it is of another version or machine."""
    try:
        return _open_library(path)
    except OSError as error:
        _logger.warning("%s is not used (%s), so NumPy dequantises; %s again", path, error, _build_advice())
        return None


@cache
def _open_library(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises OSError when it cannot be loaded or has another interface.
    """
    library = ctypes.CDLL(str(path.resolve()))
    if not hasattr(library, "trainyard_abi_version"):
        raise OSError("it is another library")
    if (version := library.trainyard_abi_version()) != _ABI_VERSION:
        raise OSError(f"its interface is version {version}, needed is {_ABI_VERSION}")
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    library.trainyard_dequantize.argtypes = (ctypes.c_int32, pointer, size, pointer, size, pointer)
    library.trainyard_status_text.restype = ctypes.c_char_p
    return library


def _best_backend(library: Any) -> Backend:
    numbers = {number: name for name, number in _INSTRUCTIONS.items()}
    return numbers[library.trainyard_best_instructions()]


def _build_advice() -> str:
    return f"{trainyard_command('step native')} builds it"
