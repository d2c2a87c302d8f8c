"""Which files are in a corpus, their order and the split; and folders that are complete or absent."""

import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import DataError
from trainyard.training.data.corpus import (
    CorpusFile,
    SkipCount,
    SkipTally,
    corpus_at,
    hold_out,
    skip_sentence,
    standard_library,
)
from trainyard.training.data.folders import fill_folder


def write(root: Path, **files: str) -> Path:
    """Files below `root`; `__` in a name means a slash and `_` before the suffix for a dot."""
    for name, content in files.items():
        folder, _, suffix = name.replace("__", "/").rpartition("_")
        path = root / f"{folder}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def paths_found(root: Path, skips: SkipTally | None = None, without: tuple[Path, ...] = ()) -> list[str]:
    corpus = corpus_at("data.train_path", root, without=without, skips=skips or SkipTally())
    return [file.relative for file in corpus.files]


def files(count: int) -> tuple[CorpusFile, ...]:
    return tuple(CorpusFile(Path(f"{n}.txt"), f"{n}.txt", 1, 0) for n in range(count))


def test_the_standard_library_is_there_without_tests_and_packages() -> None:
    library = standard_library()
    names = {file.relative for file in library.files}
    assert {"argparse.py", "json/decoder.py", "collections/__init__.py"} <= names
    folders = {folder for name in names for folder in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert not [name for name in names if name.startswith("_sysconfigdata")]
    assert library.name == f"Python {sys.version_info.major}.{sys.version_info.minor} standard library"
    assert [file.relative for file in library.files] == sorted(names)
    root = Path(sysconfig.get_path("stdlib")).resolve()
    assert all(file.path == root / file.relative and file.size for file in library.files)


def test_links_out_of_the_standard_library_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", secret_py="x = 1", folder__more_py="x = 1")
    root = write(tmp_path / "lib", real_py="x = 1")
    (root / "linked.py").symlink_to(outside / "secret.py")
    (root / "linked").symlink_to(outside / "folder")
    (root / "inner.py").symlink_to(root / "real.py")
    assert [file.relative for file in standard_library(root).files] == ["inner.py", "real.py"]


def test_a_library_without_source_is_refused_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no source files.*Set data.train_path"):
        standard_library(tmp_path)


def test_known_suffixes_are_found_in_all_subfolders_in_a_fixed_order(tmp_path: Path) -> None:
    root = write(tmp_path, b__z_txt="1", a_md="1", b_jsonl="1", a__a__c_parquet="1", z_PY="1", c_bin="11")
    assert paths_found(root) == ["a.md", "a/a/c.parquet", "b.jsonl", "b/z.txt", "c.bin", "z.PY"]


def test_unusable_files_are_counted_and_named(tmp_path: Path) -> None:
    root = write(tmp_path, a_txt="1", b_txt="", c_jpg="1", d_gz="1")
    (root / "gone.txt").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe.txt")
    skips = SkipTally()
    assert paths_found(root, skips) == ["a.txt"]
    assert set(skips.summary()) == {
        SkipCount("empty files", 1, ("b.txt",)),
        SkipCount("files with another suffix", 2, ("c.jpg", "d.gz")),
        SkipCount("unreadable files", 2, ("gone.txt", "pipe.txt")),
    }


def test_hidden_names_and_excluded_folders_are_left_out(tmp_path: Path) -> None:
    root = write(tmp_path, a_txt="1", prepared__x_bin="11", _hidden="1")
    write(root / ".git", b_txt="1")
    (root / ".draft.txt").write_text("1")
    assert paths_found(root, without=(root / "prepared",)) == ["a.txt"]
    assert "a.txt" in paths_found(root, without=(root,)), "a folder is not excluded from itself"


def test_links_in_a_folder_of_data_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", far_txt="1")
    root = write(tmp_path / "data", near_txt="1", sub__x_txt="1")
    (root / "linked").symlink_to(elsewhere)
    (root / "sub" / "circle").symlink_to(root)
    assert paths_found(root) == ["linked/far.txt", "near.txt", "sub/x.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, a_txt="1", shut__b_txt="1")
    (root / "shut").chmod(0)
    skips = SkipTally()
    try:
        assert paths_found(root, skips) == ["a.txt"]
    finally:
        (root / "shut").chmod(0o755)
    assert [(s.reason, s.count) for s in skips.summary()] == [("unreadable folders", 1)]


def test_a_missing_path_is_named_with_its_key_and_a_fix(tmp_path: Path) -> None:
    message = r"data.validation_path: .*nothing-here does not exist.*\.parquet.*set it to null"
    with pytest.raises(DataError, match=message):
        corpus_at("data.validation_path", tmp_path / "nothing-here", without=(), skips=SkipTally())


def test_the_split_is_the_same_on_every_machine() -> None:
    _, held_out = hold_out(files(100), 0.05)
    assert [file.relative for file in held_out] == ["1.txt", "18.txt", "39.txt", "71.txt", "77.txt", "85.txt"]


@given(st.integers(0, 60), st.floats(0, 0.999))
def test_the_split_loses_nothing_and_leaves_something_to_train_on(count: int, fraction: float) -> None:
    train, held_out = hold_out(files(count), fraction)
    assert set(train) | set(held_out) == set(files(count))
    assert not set(train) & set(held_out)
    assert bool(train) == bool(count)


def test_nothing_is_held_out_of_a_single_file_or_at_fraction_zero() -> None:
    assert hold_out(files(1), 0.99) == (files(1), ())
    assert hold_out(files(100), 0.0) == (files(100), ())


def test_what_is_skipped_is_counted_and_the_first_few_are_named() -> None:
    tally = SkipTally()
    for number in range(5):
        tally.add("empty files", f"{number}.txt")
    tally.add("binary files", "a\udcff.txt")
    skipped = tally.summary()
    assert skipped == (
        SkipCount("empty files", 5, ("0.txt", "1.txt", "2.txt")),
        SkipCount("binary files", 1, ("a\ufffd.txt",)),
    )
    assert skip_sentence(skipped) == (
        " Skipped: empty files: 5 (0.txt, 1.txt, 2.txt, …); binary files: 1 (a\ufffd.txt)."
    )
    assert skip_sentence(()) == ""


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
