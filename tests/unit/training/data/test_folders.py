"""Folders that are complete or absent, also when several processes make them or one dies."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.training.data.folders import fill_folder, wait_for_maker

KILLED = """
import sys, time
from pathlib import Path
from trainyard.training.data.folders import fill_folder
def fill(folder):
    (folder / "content").write_text("half")
    print("filling", flush=True)
    time.sleep(60)
fill_folder(Path(sys.argv[1]), fill, lambda path: True)
"""
RACING = """
import sys, time
from pathlib import Path
from trainyard.training.data.folders import fill_folder
def fill(folder):
    (folder / "first").write_text(sys.argv[2])
    time.sleep(0.3)
    (folder / "last").write_text(sys.argv[2])
fill_folder(Path(sys.argv[1]), fill, lambda path: (path / "last").is_file())
"""


def filler(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "content").write_text(text)

    return fill


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_complete(path: Path) -> bool:
    return (path / "content").is_file() and (path / "content").read_text() != "broken"


def test_a_folder_appears_complete_and_nothing_else_stays(tmp_path: Path) -> None:
    fill_folder(tmp_path / "new" / "a", filler("x"), is_complete)
    assert (tmp_path / "new" / "a" / "content").read_text() == "x"
    assert names(tmp_path / "new") == ["a"]


def test_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "content").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fill_folder(tmp_path / "a", fill, is_complete)
    assert names(tmp_path) == []


def test_a_complete_folder_of_another_process_is_kept(tmp_path: Path) -> None:
    fill_folder(tmp_path / "a", filler("first"), is_complete)
    fill_folder(tmp_path / "a", filler("second"), is_complete)
    assert (tmp_path / "a" / "content").read_text() == "first"
    assert names(tmp_path) == ["a"]


def test_a_broken_folder_is_replaced(tmp_path: Path) -> None:
    fill_folder(tmp_path / "a", filler("broken"), is_complete)
    fill_folder(tmp_path / "a", filler("good"), is_complete)
    assert (tmp_path / "a" / "content").read_text() == "good"
    assert names(tmp_path) == ["a"]


def test_a_file_in_the_way_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(NotADirectoryError):
        fill_folder(tmp_path / "a", filler("x"), is_complete)
    assert names(tmp_path) == ["a"]


def test_a_killed_process_leaves_nothing_that_counts_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "filling\n"
    assert len(names(tmp_path)) == 1
    fill_folder(tmp_path / "other", filler("x"), is_complete)
    assert len(list(tmp_path.glob(".a.*"))) == 1, "the folder of a living process is left alone"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=120)
    process.stdout.close()
    assert not (tmp_path / "a").exists()
    fill_folder(tmp_path / "a", filler("complete"), is_complete)
    assert names(tmp_path) == ["a", "other"]
    assert (tmp_path / "a" / "content").read_text() == "complete"


def test_the_folder_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    fill_folder(tmp_path / "a", filler("quicker"), is_complete)
    (theirs,) = tmp_path.glob(".a.*")
    assert (theirs / "content").read_text() == "half"
    process.kill()
    process.wait(timeout=120)
    process.stdout.close()


def test_processes_that_race_leave_one_complete_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACING, str(tmp_path / "a")]
    processes = [subprocess.Popen([*command, name]) for name in "123"]
    deadline = time.monotonic() + 60
    for process in processes:
        assert process.wait(timeout=max(1.0, deadline - time.monotonic())) == 0
    assert names(tmp_path) == ["a"]
    texts = {(tmp_path / "a" / name).read_text() for name in ("first", "last")}
    assert len(texts) == 1


def test_a_replaced_folder_is_not_removed_by_a_process_that_found_it_broken(tmp_path: Path) -> None:
    """The second process comes after the first has judged the folder broken, and before it removes it."""
    path = tmp_path / "a"
    fill_folder(path, filler("broken"), is_complete)
    seen_by_second: list[str] = []

    def replace_first() -> None:
        fill_folder(path, filler("second"), is_complete)
        seen_by_second.append((path / "content").read_text())

    second = threading.Thread(target=replace_first)

    def judge_slowly(folder: Path) -> bool:
        verdict = is_complete(folder)
        if second.ident is None:
            second.start()
            second.join(timeout=0.5)
        return verdict

    fill_folder(path, filler("first"), judge_slowly)
    second.join(timeout=120)
    assert seen_by_second == [(path / "content").read_text()]


def test_waiting_for_a_maker_finds_its_folder_and_ends_without_a_maker(tmp_path: Path) -> None:
    started, go = threading.Event(), threading.Event()

    def fill_slowly(folder: Path) -> None:
        filler("theirs")(folder)
        started.set()
        assert go.wait(60)

    maker = threading.Thread(target=fill_folder, args=(tmp_path / "a", fill_slowly, is_complete))
    maker.start()
    assert started.wait(60)
    waiter = threading.Thread(target=wait_for_maker, args=(tmp_path / "a",), kwargs={"seconds": 0})
    waiter.start()
    waiter.join(0.4)
    assert waiter.is_alive(), "however short the time for one to begin"
    go.set()
    waiter.join(60)
    assert is_complete(tmp_path / "a")
    maker.join(60)
    wait_for_maker(tmp_path / "nobody", seconds=0.2)
    assert names(tmp_path) == ["a"]
