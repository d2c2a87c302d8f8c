"""Every other script that reads a run directory or a store.

Whatever it finds there, it ends soon and without a crash. Its own tests check its answers.
"""

from collections.abc import Callable, Mapping

from tests.integration.planted.judging import Answer, call, sync
from tests.integration.planted.yard import Yard

Reader = Callable[[Yard], Answer]


def _of_run(name: str, *flags: str, option: str = "--run-dir") -> Reader:
    def ask(yard: Yard) -> Answer:
        where = (option, str(yard.run.path)) if option else (str(yard.run.path),)
        return call(name, *_filled(flags, yard), *where, within=yard.path)

    return ask


def _of_store(name: str, *flags: str) -> Reader:
    return lambda yard: call(name, "--store", yard.store, *_filled(flags, yard), within=yard.path)


def _filled(flags: tuple[str, ...], yard: Yard) -> list[str]:
    return [flag.replace("@new", str(yard.path / "new")) for flag in flags]


DISK: Mapping[str, Reader] = {
    "dashboard": _of_run("report", "--format", "text", option=""),
    "dashboard json": _of_run("report", "--format", "json", option=""),
    "dashboard markdown": _of_run("report", "--format", "markdown", option=""),
    "watch": _of_run("watch", "--once", "--json", option=""),
    "dashboard html": _of_run("report", "--format", "html", "--output", "@new.html", option=""),
    "slack": _of_run("notify", "succeeded", "--dry-run"),
    "export": _of_run("export", "--to", "@new", "--dry-run"),
    "verify alone": _of_run("store_verify"),
    "sync elsewhere": _of_run("store_sync", "--store", "file://@new-store", "--once"),
}
STORE: Mapping[str, Reader] = {
    "list": _of_store("store_ls"),
    "list json": _of_store("store_ls", "--json"),
    "prune": _of_store("store_prune", "--all-runs", "--keep-last", "1"),
    "promote": _of_store(
        *("store_promote", "--run-number", "1", "--step", "newest", "--name", "best", "--dry-run")
    ),
    "restore newest": _of_store(
        "store_restore", "--run-number", "1", "--step", "newest", "--to", "@new newest"
    ),
    "go on": _of_store(
        *("step_fetch_checkpoint", "--run-number", "1", "--run-dir", "@new next", "--resume", "auto"),
        *("--segment", "2"),
    ),
    "second sync": sync,
}
"""Readers by a name for the messages of the tests."""
