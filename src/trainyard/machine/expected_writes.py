"""Compute what a run will write besides its checkpoints, with the free space where it will write.

`disk` is `gateways.local_machine`, which measures files and free space; nothing is written.
"""

from pathlib import Path
from types import ModuleType

from trainyard.config.schema import Config, DataConfig
from trainyard.machine.preflight import ExpectedWrites, store_bytes_needed

_EMBEDDED_CORPUS_BYTES = 64_000_000
_PREPARED_BYTES_PER_BYTE = 2
"""A byte of text becomes at most one token of two bytes."""
_RECORD_BYTES, _ROW_BYTES = 1_000_000, 1_000
"""Size of the records that a sync copies before it sends them, and of each logged row in them."""


def expected_writes(
    config: Config, disk: ModuleType, *, store_folder: Path | None, scratch: Path
) -> tuple[ExpectedWrites, ...]:
    """Return the prepared data, the copy in a store that is a folder, and the copies of records.

    `store_folder` is None for a store that is not a folder, or one that may hold a part of the run already.
    """
    prepared = Path(config.data.prepared_directory)
    missing = max(0, _prepared_bytes(config.data, disk) - disk.measure_path(prepared))
    found = [_writes("prepared data", prepared, missing, disk)]
    if store_folder is not None:
        found.append(_writes("the stored copy", store_folder, store_bytes_needed(config), disk))
    rows = (config.training.max_steps or 0) // config.monitoring.log_steps
    return (*found, _writes("records to be sent", scratch, _RECORD_BYTES + rows * _ROW_BYTES, disk))


def _writes(what: str, path: Path, needed: int, disk: ModuleType) -> ExpectedWrites:
    return ExpectedWrites(what, str(path), needed, disk.free_bytes(path), disk.file_system_of(path))


def _prepared_bytes(data: DataConfig, disk: ModuleType) -> int:
    """Return the greatest size of the prepared data; tokenised files are used in place."""
    if data.train_path is None and not data.mixture:
        return _EMBEDDED_CORPUS_BYTES * _PREPARED_BYTES_PER_BYTE
    paths = (data.train_path, data.validation_path, *data.mixture)
    size: int = sum(disk.measure_path(Path(path).expanduser()) for path in paths if path)
    return size * _PREPARED_BYTES_PER_BYTE
