"""The option `--quick`: run only what needs neither a process nor a long computation.

A test is skipped at the moment when it starts a process, so no list of such tests has to be kept. A
process that a module starts at its import is not noticed (torch starts `ldconfig`). Tests that are marked
`slow` are not started, nor are those that train a model from its first step to its last, nor those marked
`process`, which cannot be skipped at that moment. Hypothesis tries a tenth of the examples.
"""

import sys
import threading
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
"""Audit events that Python raises before it starts a process."""
REASON = "--quick: it starts a process"
TRAINS = "lab"
"""The fixture that trains a model."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run no test that starts a process or is slow")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        config.pluginmanager.register(_StartSkipper())
        # Test modules are imported later, and take their own numbers of examples as shares of this one.
        settings.register_profile("quick", max_examples=settings().max_examples // 10)
        settings.load_profile("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    left_out = [item for item in items if _takes_long(item) or any(item.iter_markers("process"))]
    config.hook.pytest_deselected(items=left_out)
    chosen = set(items) - set(left_out)
    items[:] = [item for item in items if item in chosen]


def _takes_long(item: pytest.Item) -> bool:
    return any(item.iter_markers("slow")) or TRAINS in getattr(item, "fixturenames", ())


class _StartSkipper:
    """Skip the tests that start a process; pytest itself may start those that share the tests."""

    def __init__(self) -> None:
        self._test_runs = False
        sys.addaudithook(self._skip_at_a_start)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._test_runs = True
        try:
            return (yield)
        finally:
            self._test_runs = False

    def _skip_at_a_start(self, event: str, _arguments: tuple[Any, ...]) -> None:
        """Skip the running test; pytest's exception passes `except Exception` in the code under test."""
        if not self._test_runs or event not in STARTS:
            return
        if threading.current_thread() is not threading.main_thread():
            raise FileNotFoundError(REASON)  # a thread cannot skip the test
        pytest.skip(REASON)
