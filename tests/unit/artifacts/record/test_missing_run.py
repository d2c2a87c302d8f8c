"""The message for a run number without a run: the numbers that are in use, and a command that works."""

import shlex
from collections.abc import Callable

import pytest

from trainyard.artifacts.record.run_numbers import missing_run, used_numbers
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.commands import store_ls
from trainyard.run.directory import RunDirectory


def test_the_numbers_in_use_are_named_and_the_command_lists_them(
    store: Store, make_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 50):
        sync_run(store, make_run(f"run {number}", steps=(100,)), number)
    (problem,) = verify_run(store, 7, depth=Depth.LISTING).problems
    assert problem.startswith(f"Run 7 is not in {store.url}; it has 1, 2 and 50. ")
    command = shlex.split(problem.partition("50. ")[2].removesuffix(" lists them."))
    words = command[command.index("store") :]
    assert words[:2] == ["store", "ls"]
    assert store_ls.main([*words[2:], "--json"]) == 0
    listed = capsys.readouterr().out
    assert all(f'"run_number": {number}' in listed for number in (1, 2, 50))


def test_an_empty_store_and_one_with_many_runs(store: Store) -> None:
    assert "which holds no run" in missing_run(store, 7, [])
    assert "it has … 91, 92, 93, 94, 95, 96, 97, 98, 99 and 100." in missing_run(store, 7, [*range(20, 101)])
    assert "it has 3." in missing_run(store, 7, [3])
    assert used_numbers(store) == []
