"""The script that builds and tests the C++ kernels."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., subprocess.CompletedProcess[str]]
GTEST = (
    "/usr/include/gtest/gtest.h",
    "/usr/local/include/gtest/gtest.h",
    "/opt/homebrew/include/gtest/gtest.h",
)
needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="needs cmake and a C++ compiler",
)


def programs_in(folder: Path, **answers: int) -> str:
    """A PATH whose programs only print their name and end with a status."""
    folder.mkdir()
    for name, status in answers.items():
        (folder / name).write_text(f"#!/bin/sh\necho {name} spoke\nexit {status}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_a_dry_run_prints_two_stages_and_then_the_tests(program: Program, tmp_path: Path) -> None:
    done = program("step native", "--dry-run", "--build-dir", tmp_path / "build", "--jobs", "3")
    assert done.returncode == 0
    configure, library, tests, run = done.stdout.splitlines()
    assert configure.startswith("cmake -S ")
    assert "-DENABLE_TESTING=ON" in configure
    assert "all_tests" not in library
    assert tests == f"{library} --target all_tests"
    assert "--parallel 3" in library
    assert run.startswith("ctest ")
    assert list(tmp_path.iterdir()) == []


def test_sanitized_kernels_go_where_python_does_not_look(program: Program) -> None:
    done = program("step native", "--dry-run", "--sanitize")
    assert "native/build-sanitized" in done.stdout
    assert "-DSANITIZE=ON" in done.stdout


@pytest.mark.parametrize("there", [{}, {"cmake": 0}])
def test_a_missing_cmake_is_named_with_the_fix(
    there: dict[str, int], program: Program, tmp_path: Path
) -> None:
    path = programs_in(tmp_path / "programs", **there)
    done = program("step native", "--build-dir", tmp_path / "build", PATH=path)
    assert done.returncode == 2
    assert f"{'ctest' if there else 'cmake'} was not found" in done.stderr
    assert "apt-get install cmake" in done.stderr


@pytest.mark.parametrize(("cmake", "ctest", "status", "said"), [(1, 0, 2, "configure"), (0, 8, 1, "ctest")])
def test_what_fails_decides_the_exit_code_and_its_output_is_shown(
    cmake: int, ctest: int, status: int, said: str, program: Program, tmp_path: Path
) -> None:
    path = programs_in(tmp_path / "programs", cmake=cmake, ctest=ctest)
    done = program("step native", "--build-dir", tmp_path / "build", PATH=f"{path}:/usr/bin:/bin")
    assert done.returncode == status
    assert f"failed ({said})" in done.stderr
    assert f"{'ctest' if ctest else 'cmake'} spoke" in done.stderr


@needs_cmake
def test_without_a_compiler_cmake_says_so(program: Program, tmp_path: Path) -> None:
    done = program("step native", "--build-dir", tmp_path / "build", CXX="/no/such/compiler")
    assert done.returncode == 2
    assert "/no/such/compiler" in done.stderr


@needs_cmake
@pytest.mark.slow
@pytest.mark.skipif(not any(Path(header).is_file() for header in GTEST), reason="needs GoogleTest")
def test_the_googletest_suite_passes(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "trainyard", "step", "native", "--build-dir", str(tmp_path / "build")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "100% tests passed" in done.stderr
    assert list((tmp_path / "build").glob("libtrainyard_kernels.*"))
