"""What the standard library says of this machine."""

import shutil
from importlib import metadata
from pathlib import Path

from trainyard.cluster.machine import free_bytes, installed_versions, memory_bytes, size_of


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
