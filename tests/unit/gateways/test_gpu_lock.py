"""Two repositories and one GPU: the second run waits on the host, and logs which repository it waits for."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from trainyard.errors import ConfigError, WaitTimeoutError
from trainyard.gateways import gpu_lock
from trainyard.gateways.gpu_lock import with_gpu_lock


def hold(path: Path, held: Event, free: Event) -> None:
    with gpu_lock.gpu_lock(path, owner="other/repository"):
        held.set()
        free.wait(60)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "_POLL_SECONDS", 0.01)


def test_without_a_lock_file_no_run_waits() -> None:
    def work() -> int:
        return 7

    assert with_gpu_lock(work, {}) is work
    assert with_gpu_lock(work, {"TRAINYARD_GPU_LOCK": "/nowhere/at/all", "LOCAL_RANK": "1"}) is work


def test_a_second_repository_waits_until_the_first_is_done(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    path, context = tmp_path / "gpu.lock", multiprocessing.get_context("spawn")
    held, free = context.Event(), context.Event()
    other = context.Process(target=hold, args=(path, held, free))
    other.start()
    assert held.wait(60)
    begun = threading.Event()
    mine = {"TRAINYARD_GPU_LOCK": str(path), "GITHUB_REPOSITORY": "my/repository"}
    answers: list[int] = []

    def work() -> int:
        begun.set()
        assert path.read_text().startswith("my/repository, process ")
        return 7

    with caplog.at_level("INFO", "trainyard"):
        waiting = threading.Thread(target=lambda: answers.append(with_gpu_lock(work, mine)()))
        waiting.start()
        assert not begun.wait(0.3)
        third = gpu_lock.gpu_lock(path, owner="third", longest=0.05)
        with pytest.raises(WaitTimeoutError, match="held by other/repository, process"), third:
            pytest.fail("two hold it at once")
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)  # the system frees the lock however the holder ends
        waiting.join(60)
        other.join(60)
    assert answers == [7]
    assert "waiting for the GPU of this machine: other/repository, process" in caplog.text


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TRAINYARD_GPU_LOCK"):
        with_gpu_lock(lambda: 0, {"TRAINYARD_GPU_LOCK": str(tmp_path / "missing" / "gpu.lock")})()
