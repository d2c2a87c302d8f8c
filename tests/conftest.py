"""Fixtures of all tests: an active virtual environment; no logger and no signals of an earlier test."""

import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator

import botocore.session
import pytest
from hypothesis import HealthCheck, settings

# The tests compile few kernels: neither precompiled headers nor a pool of processes pays off.
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

pytest_plugins = ["tests.quick", "tests.slow_first"]

# A slow machine is not a failure: a busy one takes longer than Hypothesis's 200 ms per example.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Each session of botocore reads its models again: a tenth of a second for each client of a service.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)

# A shell's background jobs ignore Ctrl-C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules imported at collection stay; searching them for garbage takes as long as importing them.
gc.disable()

for ignored in (signal.SIGHUP, signal.SIGQUIT):
    # Under nohup, or in the background. A handler keeps these tests alive too, and the programs that they
    # start do not inherit it.
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, lambda _number, _frame: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        _let_torch_propagate()


def _let_torch_propagate() -> None:
    """Torch has 50 loggers that do not propagate; pytest attaches a handler to each, six times per test."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(autouse=True, scope="session")
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs note there which places they use; tests leave nothing in the home of whoever starts them."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """A script sets up the library's logger once per process; here many run in one process."""
    logger = logging.getLogger("trainyard")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(autouse=True)
def untouched_signals() -> Iterator[None]:
    """A trainer keeps its handlers until its process ends; a later test may wait for a KeyboardInterrupt."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if handler is not signal.getsignal(number):
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def active_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposed commands start with `trainyard`, and do not contain the arguments of an earlier test."""
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
