"""The messages about workers that failed."""

import atexit
import gc
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed.run
from tests.cases import each_case
from torch.distributed.elastic.multiprocessing.api import SignalException, logger
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousTimeoutError

from trainyard.training.runtime.torchrun_main import FirstNodeLostError, main


def failure(rank: int, code: int, *, after: int = 0) -> ProcessFailure:
    result = ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="<N/A>")
    result.timestamp = 1_000 + after
    return result


def failed(*workers: ProcessFailure) -> ChildFailedError:
    return ChildFailedError("train.py", {each.local_rank: each for each in workers})


@pytest.fixture(autouse=True)
def garbage_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the garbage collector see the objects of this process again after the test, and at its end."""
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    yield
    gc.unfreeze()


@each_case(
    ("ends", "output"),
    [
        (None, ""),
        (failed(failure(1, -9), failure(0, 1)), "Rank 1 (pid 101) was killed by SIGKILL.\n"),
        (
            failed(failure(0, -9, after=1), failure(1, -9)),
            "Rank 0 (pid 100) was killed by SIGKILL.\nRank 1 (pid 101) was killed by SIGKILL.\n",
        ),
        (failed(failure(0, -15, after=1), failure(1, 2)), ""),
        (failed(failure(0, -9, after=30), failure(1, 2)), ""),
        (failed(failure(0, -15)), "Rank 0 (pid 100) was killed by SIGTERM.\n"),
        (SignalException("stopped", signal.SIGTERM), ""),
        (
            RendezvousTimeoutError(),
            "Not all nodes of this run joined (RendezvousTimeoutError).\nCheck that all of them "
            "run, and can reach the rendezvous address. Nothing was started.\n",
        ),
        *(
            (left, "The first node of this run is lost, so the workers of this node were ended.\n")
            for left in (FirstNodeLostError(), RendezvousConnectionError("gone"))
        ),
    ],
)
def test_only_a_worker_that_could_not_speak_is_spoken_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: Any, output: str
) -> None:
    def torchrun() -> None:
        monkeypatch.setattr(logger, "propagate", False)  # torch's own handlers write the line too
        logger.addHandler(handler := logging.StreamHandler(sys.stderr))
        logger.warning("Sending process %s closing signal %s", 100, "SIGTERM")
        logger.error("failed (exitcode: %s) local_rank: %s", 2, 1)
        logger.warning("Unable to shutdown process %s", 100)
        logger.removeHandler(handler)
        if ends is not None:
            raise ends

    monkeypatch.setattr(torch.distributed.run, "main", torchrun)
    first_node_gone = "The first node" in output
    assert main() == (4 if first_node_gone else 0 if ends is None else 1)
    assert capsys.readouterr().err == f"Unable to shutdown process 100\n{output}"
