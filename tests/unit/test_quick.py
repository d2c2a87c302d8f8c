"""`make quick`: a test that starts a process is skipped at that moment; slow ones are not started."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import multiprocessing, os, subprocess, sys
import pytest

def test_plain(): ...

def test_subprocess():
    try:
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    except Exception:
        pass
    raise AssertionError("it went on")

def test_fork():
    multiprocessing.get_context("fork").Process(target=print).start()

@pytest.fixture(scope="module")
def server():
    return subprocess.Popen([sys.executable, "-c", "pass"])

def test_with_a_server(server): ...

@pytest.mark.slow
def test_slow():
    raise AssertionError("it ran")

@pytest.fixture
def lab():
    raise AssertionError("it ran")

def test_training(lab): ...
"""


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        (["--quick"], "1 passed, 3 skipped, 2 deselected"),
        (["--quick", "-n", "1"], "1 passed, 3 skipped"),  # pytest itself may start processes
        (["-x"], "1 failed"),
    ],
)
def test_quick_skips_what_starts_a_process(tmp_path: Path, options: list[str], outcome: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  process")
    line = [sys.executable, "-m", "pytest", "-p", "tests.quick", "-p", "no:cacheprovider", *options, "-k"]
    # Without a folder of its own, this pytest would remove those that earlier ones left: many gigabytes.
    own = ["--basetemp", str(tmp_path / "own"), "--rootdir", str(tmp_path), str(tmp_path)]
    chosen = "test" if "--quick" in options else "slow"
    ran = subprocess.run(
        [*line, chosen, *own],
        cwd=REPOSITORY_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in ran.stdout, ran.stdout
