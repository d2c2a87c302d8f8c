"""Folders that are complete or absent, also when several processes make them or one dies."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.training.data.folders import fill_folder

MAKER = """
import sys, time
from pathlib import Path
from trainyard.training.data.folders import fill_folder
def fill(folder):
    (folder / "half").write_text("theirs")
    print("filling", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "content").write_text("theirs")
fill_folder(Path(sys.argv[1]), fill, lambda path: (path / "content").is_file())
"""


def start_maker(path: Path, seconds: float) -> "subprocess.Popen[str]":
    """Start a process that fills the folder in this time; it fills already."""
    command = [sys.executable, "-c", MAKER, str(path), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "filling\n"
    process.stdout.close()
    return process


def filler(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "content").write_text(text)

    return fill


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_complete(path: Path) -> bool:
    return (path / "content").is_file() and (path / "content").read_text() != "broken"


def test_a_folder_appears_complete_and_is_kept(tmp_path: Path) -> None:
    assert fill_folder(tmp_path / "new" / "a", filler("first"), is_complete)
    assert not fill_folder(tmp_path / "new" / "a", filler("second"), is_complete)
    assert (tmp_path / "new" / "a" / "content").read_text() == "first"
    assert names(tmp_path / "new") == ["a"]


def test_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "content").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fill_folder(tmp_path / "a", fill, is_complete)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        fill_folder(tmp_path / "file", filler("x"), is_complete)
    assert names(tmp_path) == ["file"]


def test_a_broken_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    filler("broken")(tmp_path / "a")
    fill_folder(tmp_path / "a", filler("good"), is_complete)
    assert (tmp_path / "a" / "content").read_text() == "good"
    assert names(tmp_path) == ["a"]


def test_a_killed_process_leaves_nothing_that_counts_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    process = start_maker(tmp_path / "a", 60)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=120)
    assert not (tmp_path / "a").exists()
    assert fill_folder(tmp_path / "a", filler("complete"), is_complete)
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["content"]


def test_the_folder_of_a_living_process_is_awaited(tmp_path: Path) -> None:
    process = start_maker(tmp_path / "a", 0.5)
    assert not fill_folder(tmp_path / "a", filler("ours"), is_complete)
    assert (tmp_path / "a" / "content").read_text() == "theirs"
    assert process.wait(timeout=120) == 0


def test_makers_that_race_leave_one_complete_folder_and_one_made_it(tmp_path: Path) -> None:
    """Some of them fail, so that another one has to begin again."""
    made: list[str] = []

    def make(number: int) -> None:
        def fill(folder: Path) -> None:
            assert names(folder) == []
            filler(str(number))(folder)
            time.sleep(0.02)
            if number % 2:
                raise OSError("disk full")

        try:
            if fill_folder(tmp_path / "a", fill, is_complete):
                made.append(str(number))
        except OSError:
            pass

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert names(tmp_path) == ["a"]
    assert made == [(tmp_path / "a" / "content").read_text()]
