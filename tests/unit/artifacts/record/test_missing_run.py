"""The message for a run number without a run: the numbers in use, and the command that lists them."""

from typing import Any

from trainyard.artifacts.record.run_numbers import missing_run, used_numbers
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run


def test_an_empty_store_and_one_with_many_runs(store: Store, make_run: Any) -> None:
    assert "which holds no run" in missing_run(store, 7, [])
    assert "it has … 91, 92, 93, 94, 95, 96, 97, 98, 99 and 100." in missing_run(store, 7, [*range(20, 101)])
    message = missing_run(store, 7, [1, 2, 50])
    assert message.startswith(f"Run 7 is not in {store.url}; it has 1, 2 and 50. ")
    assert message.endswith(f"store ls --store {store.url} lists them.")
    assert used_numbers(store) == []
    sync_run(store, make_run(), 3)
    assert verify_run(store, 7, depth=Depth.LISTING).problems == (missing_run(store, 7, [3]),)
