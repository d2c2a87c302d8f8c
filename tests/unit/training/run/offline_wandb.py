"""The records that a W&B run wrote while it was offline, by W&B's own reader."""

import time
from pathlib import Path
from typing import Any

_PATIENCE_SECONDS = 60


def records_of(file: Path) -> list[Any]:
    """Every record, once the last one is there: W&B's own process may write it after the run finished."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    records = _readable_records(file)
    while not any(each.HasField("exit") for each in records):
        assert time.monotonic() < ends, f"{file}: {len(records)} records, and none is the end of the run"
        time.sleep(0.1)
        records = _readable_records(file)
    return records


def _readable_records(file: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2 as messages
    from wandb.sdk.internal.datastore import DataStore

    store: Any = DataStore()
    records: list[Any] = []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = messages.Record()  # type: ignore[attr-defined]  # generated when it is imported
        record.ParseFromString(data)
        records.append(record)
    store.close()
    return records
