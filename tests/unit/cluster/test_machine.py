"""What the standard library says of this machine."""

import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from trainyard.cluster.machine import (
    free_bytes,
    installed_versions,
    memory_bytes,
    missing_for_compiling,
    size_of,
)


def test_installed_versions_are_keyed_by_canonical_name() -> None:
    versions = installed_versions()
    assert versions["torch"] == metadata.version("torch")
    assert versions["slack-sdk"] == metadata.version("slack_sdk")


def test_free_space_of_a_folder_that_does_not_exist_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    wanted = shutil.disk_usage(tmp_path).free
    assert abs(free_bytes(tmp_path / "not" / "yet") - wanted) < 1_000_000_000


def test_a_folder_weighs_what_its_files_weigh(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 10)
    (tmp_path / "deep" / "b").write_bytes(b"x" * 5)
    assert size_of(tmp_path) == 15
    assert size_of(tmp_path / "a") == 10
    assert size_of(tmp_path / "missing") == 0


def test_the_limit_of_a_container_counts_where_it_is_lower(tmp_path: Path) -> None:
    everything = memory_bytes(tmp_path / "missing")
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert memory_bytes(limit) == 1_048_576
    limit.write_text(f"{2 * everything}\n")
    assert memory_bytes(limit) == everything
    limit.write_text("max\n")
    assert memory_bytes(limit) == everything


LINUX_CXX = "clang++" if sys.platform == "darwin" else "g++"


@pytest.mark.parametrize(
    ("on_gpu", "there", "asked", "missing"),
    [
        (True, "gcc", None, ()),
        (True, "clang", None, ()),
        (True, LINUX_CXX, None, ("gcc or clang",)),
        (False, LINUX_CXX, None, ()),
        (False, "gcc", None, (LINUX_CXX,)),
        (True, "gcc", "icx", ("icx",)),
        (False, "mine", "mine", ()),
    ],
)
def test_a_compiler_is_looked_for_as_torch_looks_for_it(
    tmp_path: Path, on_gpu: bool, there: str, asked: str | None, missing: tuple[str, ...]
) -> None:
    (tmp_path / there).write_text("#!/bin/sh\n")
    (tmp_path / there).chmod(0o755)
    environment = {"PATH": str(tmp_path)} | ({} if asked is None else {"CC": asked, "CXX": asked})
    found = missing_for_compiling(on_gpu=on_gpu, environment=environment)
    assert tuple(name for name in found if "headers" not in name) == missing


def test_a_python_without_headers_cannot_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    [*_, headers] = missing_for_compiling(on_gpu=True)
    assert headers == f"Python's headers ({tmp_path / 'Python.h'})"
    (tmp_path / "Python.h").touch()
    assert not [name for name in missing_for_compiling(on_gpu=True) if "headers" in name]
