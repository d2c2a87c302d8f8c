"""The data that a run writes besides its checkpoints, and the free space: a rule for each kind of data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.load import load_config
from trainyard.config.schema import Config
from trainyard.gateways import local_machine
from trainyard.machine.preflight import expected_writes, store_bytes_needed

SMOKE = Path(__file__).resolve().parents[3] / "configs" / "smoke.yaml"
STORE = Path("/store")


@dataclass
class FullDisk:
    """A disk without free space that holds these files."""

    sizes: dict[Path, int] = field(default_factory=dict)

    def free_bytes(self, path: Path) -> int:
        return 0

    def measure_path(self, path: Path) -> int:
        return self.sizes.get(path, 0)

    def file_system_of(self, path: Path) -> int:
        return 7


def config(*changes: str) -> Config:
    return load_config(SMOKE, list(changes)).config


def needed_bytes(made: Config, disk: Any, store_folder: Path | None = None) -> dict[str, int]:
    found = expected_writes(made, disk, store_folder=store_folder)
    assert {(each.free, each.file_system) for each in found} == {(0, 7)}
    return {each.what: each.needed for each in found}


def test_a_store_that_is_a_folder_holds_a_copy_of_the_run() -> None:
    made = config()
    assert needed_bytes(made, FullDisk(), STORE)["the stored copy"] == store_bytes_needed(made)
    assert "the stored copy" not in needed_bytes(made, FullDisk())


@pytest.mark.parametrize("there", [0, 500, 10_000])
def test_prepared_data_take_two_bytes_per_byte_of_text_less_what_is_prepared_already(there: int) -> None:
    made = config("data.train_path=/texts/a.txt", "data.validation_path=/texts/b.txt")
    disk = FullDisk({Path("/texts/a.txt"): 1000, Path("/texts/b.txt"): 100})
    disk.sizes[Path(made.data.prepared_directory)] = there
    assert needed_bytes(made, disk)["prepared data"] == max(0, 2200 - there)


def test_the_real_disk_answers_for_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    found = expected_writes(config(), local_machine, store_folder=tmp_path / "new")
    assert all(each.free > 0 for each in found)
