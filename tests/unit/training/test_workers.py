"""What is said of workers that failed."""

import signal
from typing import Any

import pytest
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from trainyard.training.workers import main


def failure(rank: int, code: int) -> ProcessFailure:
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="<N/A>")


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (None, ""),
        (
            ChildFailedError("train.py", {1: failure(1, -9), 0: failure(0, 1)}),
            "Rank 1 (pid 101) was killed by SIGKILL.\n",
        ),
        (SignalException("stopped", signal.SIGTERM), ""),
    ],
)
def test_only_a_worker_that_could_not_speak_is_spoken_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: Any, said: str
) -> None:
    def torchrun() -> None:
        if ends is not None:
            raise ends

    monkeypatch.setattr(torch.distributed.run, "main", torchrun)
    assert main() == (0 if ends is None else 1)
    assert capsys.readouterr().err == said
