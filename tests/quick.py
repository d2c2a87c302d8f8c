"""The option `--quick`: run only what needs neither a process nor a long computation.

A test is skipped at the moment when it starts a process, so no list of such tests has to be kept. Tests that
are marked `slow` are not started, nor are those marked `process`, which cannot be skipped at that moment.
"""

import sys
import threading
from typing import Any

import pytest

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
"""Audit events that Python raises before it starts a process."""
REASON = "--quick: it starts a process"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="skip tests that start a process or are slow")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        sys.addaudithook(skip_at_a_start)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    left_out = [item for item in items if any(item.iter_markers("slow")) or any(item.iter_markers("process"))]
    config.hook.pytest_deselected(items=left_out)
    chosen = set(items) - set(left_out)
    items[:] = [item for item in items if item in chosen]


def skip_at_a_start(event: str, _arguments: tuple[Any, ...]) -> None:
    """Skip the running test; pytest's exception passes `except Exception` in the code under test."""
    if event in STARTS and threading.current_thread() is not threading.main_thread():
        raise FileNotFoundError(REASON)  # a thread cannot skip the test
    if event in STARTS:
        pytest.skip(REASON, allow_module_level=True)
