"""The native kernels against gguf's NumPy, bit for bit; and what happens where there are none."""

import _ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tests.unit.training.lab import Lab
from tests.unit.training.weights.model_files import random_values, write_gguf

from trainyard.config.schema import Config
from trainyard.errors import ConfigError, DataError
from trainyard.training.weights import gguf_weights
from trainyard.training.weights import native_dequantization as native
from trainyard.training.weights.native_dequantization import (
    LIBRARY_VARIABLE,
    NATIVE_TYPES,
    Instructions,
    dequantize,
)

ELEMENTS = 1_000_000
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
"""The position of the half-precision scale in a block, and of the minimum if it has one."""
EXTREMES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01)
"""Zeros, subnormals, the smallest normal, the largest, infinities, quiet and signalling NaNs."""
NATIVE = Path(__file__).resolve().parents[4] / "native"
GTEST = [Path(root) / "include/gtest/gtest.h" for root in ("/usr", "/usr/local", "/opt/homebrew")]
every_type = pytest.mark.parametrize("name", NATIVE_TYPES)


def run(*line: str | Path) -> str:
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of this checkout, built as `make native` does."""
    if shutil.which("cmake") is None or not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("the native kernels need cmake and a C++ compiler")
    build = tmp_path_factory.mktemp("native")
    run("cmake", "-S", NATIVE, "-B", build)
    run("cmake", "--build", build, "--parallel", "2")
    (built_kernels,) = build.glob("libtrainyard_kernels.*")
    return built_kernels


@pytest.fixture
def built_kernels(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the built kernels."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    return library


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout without built kernels; returns the folder in which they would be."""
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(native, "_BUILD", tmp_path)
    return tmp_path


@pytest.fixture(params=[Instructions.SCALAR, Instructions.AVX2])
def path(request: pytest.FixtureRequest, built_kernels: Path) -> Instructions:
    """Each native path that this processor has."""
    wanted: Instructions = request.param
    library = native.kernels()
    if wanted is Instructions.AVX2 and library and library.trainyard_best_instructions() != wanted:
        pytest.skip("this processor has no AVX2")
    return wanted


def sizes(name: str) -> tuple[int, int]:
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    return elements, size


def expected(data: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        values: np.ndarray = gguf.quants.dequantize(data, GGMLQuantizationType[name])
    return values


def bits(values: np.ndarray) -> np.ndarray:
    """The compared bits: -0 is not 0, and NaNs have payloads.

    Off x86, NumPy may make signalling NaNs quiet when it converts halves; there both sides are made quiet.
    """
    found = np.ascontiguousarray(values).view(np.uint32)
    quiet = 0 if platform.machine() in ("x86_64", "AMD64") else 0x0040_0000
    return np.where(np.isnan(values), found | np.uint32(quiet), found)


def write_half(blocks: np.ndarray, at: int, half: int | np.ndarray) -> None:
    blocks[:, at] = np.bitwise_and(half, 0xFF)
    blocks[:, at + 1] = np.right_shift(half, 8)


def without_two_nans(blocks: np.ndarray, name: str) -> np.ndarray:
    """The same blocks with a finite minimum: where two NaNs meet, NumPy's choice depends on the shape."""
    if len(SCALES.get(name, ())) == 2:
        blocks[:, SCALES[name][1] + 1] &= 0xBF
    return blocks


def random_rows(name: str, *, rows: int = 8, elements: int = ELEMENTS) -> np.ndarray:
    """Random bytes, so every scale that a half can be; about 1 in 32 is infinite or no number."""
    per_block, size = sizes(name)
    count = -(-elements // (rows * per_block))
    blocks = np.random.default_rng(17).integers(0, 256, (rows * count, size), dtype=np.uint8)
    return without_two_nans(blocks, name).reshape(rows, count * size)


@every_type
def test_a_million_random_elements_have_the_bits_of_gguf(name: str, path: Instructions) -> None:
    data = random_rows(name)
    values = dequantize(data, name, instructions=path)
    assert values.size >= ELEMENTS
    assert values.dtype == np.float32
    assert np.array_equal(bits(values), bits(expected(data, name)))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_number_of_sixteen_bits_has_the_bits_of_gguf(name: str, path: Instructions) -> None:
    data = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    assert np.array_equal(bits(dequantize(data, name, instructions=path)), bits(expected(data, name)))


@pytest.mark.parametrize("name", SCALES)
def test_extreme_scales_have_the_bits_of_gguf(name: str, path: Instructions) -> None:
    for first in EXTREMES:
        for second in (0x0000, 0x8000, 0x0001, 0x3C00, 0xFBFF):
            blocks = random_rows(name, rows=3, elements=1).reshape(3, -1).copy()
            for at, half in zip(SCALES[name], (first, second), strict=False):
                write_half(blocks, at, half)
            values = dequantize(blocks, name, instructions=path)
            assert np.array_equal(bits(values), bits(expected(blocks, name)))


@every_type
def test_tiles_and_threads_change_no_bit(name: str, path: Instructions) -> None:
    data = random_rows(name, rows=3, elements=5_000)
    complete = bits(expected(data, name))
    for tile_bytes in (1, 33, 256, 4096, 1 << 20, 1 << 80):
        for threads in (1, 2, 5):
            values = dequantize(data, name, tile_bytes=tile_bytes, threads=threads, instructions=path)
            assert np.array_equal(bits(values), complete), (tile_bytes, threads)


@every_type
def test_shapes_are_those_of_gguf(name: str, built_kernels: Path) -> None:
    _, size = sizes(name)
    for shape in ((size,), (5, size), (2, 3, 4 * size), (0, size), (3, 0)):
        elements = shape[-1] // size * sizes(name)[0]
        values = dequantize(np.zeros(shape, np.uint8), name)
        assert values.shape == (*shape[:-1], elements)


def test_float32_is_copied_so_that_a_mapped_file_is_not_written(no_kernels: Path) -> None:
    data = np.linspace(0, 1, 8, dtype=np.float32)
    data.flags.writeable = False
    values = dequantize(data, "F32")
    values += 1
    assert np.array_equal(values, data + 1)


@pytest.mark.parametrize("name", ["IQ4_NL", "MXFP4", "TQ2_0"])
def test_a_type_without_a_kernel_is_left_to_numpy(name: str, built_kernels: Path) -> None:
    data = np.random.default_rng(1).integers(0, 100, (4, 2 * sizes(name)[1]), dtype=np.uint8)
    assert np.array_equal(bits(dequantize(data, name)), bits(expected(data, name)))


@every_type
def test_a_row_that_is_not_complete_blocks_is_refused(name: str, no_kernels: Path) -> None:
    size = sizes(name)[1]
    for length in (1, 2 * size - 1, 2 * size + 1):
        with pytest.raises(DataError, match=rf"{name} weights: a row of {length} bytes .* {size} bytes"):
            dequantize(np.zeros((2, length), np.uint8), name)
    with pytest.raises(DataError, match="gguf cannot convert Q8_1 weights"):
        dequantize(np.zeros(sizes("Q8_1")[1], np.uint8), "Q8_1")


def test_a_library_in_the_build_directory_is_found_and_none_means_numpy(
    no_kernels: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native.kernels() is None
    shutil.copy(library, no_kernels / library.name)
    assert native.kernels() is not None
    monkeypatch.setenv(LIBRARY_VARIABLE, "none")
    assert native.kernels() is None


def test_a_built_library_that_cannot_be_loaded_is_warned_of_and_passed_over(
    no_kernels: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (no_kernels / "libtrainyard_kernels.so").write_bytes(b"from another machine")
    assert native.kernels() is None
    assert "libtrainyard_kernels.so is not used" in caplog.text
    assert "make native builds it again" in caplog.text


def test_a_named_library_that_fails_is_an_error(no_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (garbage := no_kernels / "garbage.so").write_bytes(b"no library")
    for named, problem in (
        (no_kernels / "missing.so", r"missing\.so cannot be used"),
        (garbage, r"garbage\.so cannot be used"),
        (_ctypes.__file__, "it is another library"),
    ):
        monkeypatch.setenv(LIBRARY_VARIABLE, str(named))
        with pytest.raises(ConfigError, match=f"TRAINYARD_NATIVE_LIBRARY: .*{problem}"):
            native.kernels()


def test_a_library_of_another_interface_is_refused_and_an_error_of_ours_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("needs a C compiler")
    failing = """
        int trainyard_abi_version(void) { return 1; }
        int trainyard_best_instructions(void) { return 1; }
        int trainyard_dequantize(void) { return 1; }
        const char *trainyard_status_text(int status) { return "no kernel for this type"; }
    """
    for name, code, message in (
        (
            "other",
            "int trainyard_abi_version(void) { return 999; }",
            "its interface is version 999, needed is 1",
        ),
        ("failing", failing, "refused Q8_0 weights: no kernel for this type"),
    ):
        (source := tmp_path / f"{name}.c").write_text(code)
        run(compiler, "-shared", "-fPIC", "-o", tmp_path / f"{name}.so", source)
        monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / f"{name}.so"))
        with pytest.raises(ConfigError, match=message):
            dequantize(np.zeros(34, np.uint8), "Q8_0")


@pytest.fixture
def config_from_q8(tiny_config: Callable[..., Config], tmp_path: Path) -> Config:
    """A run of one step that starts from a Q8_0 file, with tiles of 512 bytes."""
    path = tmp_path / "start.gguf"
    config = tiny_config(
        model={"path": str(path), "architecture": {"intermediate_size": 64}},
        training={"max_steps": 1},
        kernel_optimization={"tile_bytes": 512},
    )
    architecture = config.model.architecture
    write_gguf(path, architecture, random_values(architecture, 0.1))
    return config


def test_a_run_is_the_same_run_with_kernels_and_without(
    lab: Lab, config_from_q8: Config, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = []

    def record_call(data: np.ndarray, type_name: str, *, tile_bytes: int, **more: Any) -> np.ndarray:
        tiles.append((native.kernels() is None, tile_bytes))
        return dequantize(data, type_name, tile_bytes=tile_bytes, **more)

    monkeypatch.setattr(gguf_weights, "dequantize", record_call)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    by_kernels = lab.run(config_from_q8, "kernels")
    monkeypatch.setenv(LIBRARY_VARIABLE, "none")
    by_numpy = lab.run(config_from_q8, "numpy")
    assert set(tiles) == {(False, 512), (True, 512)}
    assert by_kernels["first_loss"] == by_numpy["first_loss"]
    assert by_kernels["state_sha256"] == by_numpy["state_sha256"]


@pytest.mark.slow
@pytest.mark.skipif(not any(header.is_file() for header in GTEST), reason="needs GoogleTest")
def test_the_googletest_suite_passes(library: Path) -> None:
    build = library.parent
    run("cmake", "-S", NATIVE, "-B", build, "-DENABLE_TESTING=ON")
    run("cmake", "--build", build, "--parallel", "2", "--target", "all_tests")
    assert "100% tests passed" in run("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error")
