"""Image lint takes less than two seconds of processor time without the network, with the largest lock too."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.image.conflict import lock_files
from trainyard.image.conflict.lock_files import read_lock

ROOT = Path(__file__).resolve().parents[2]
WHEEL = (
    '    {{ url = "https://own.example/{name}-{tag}.whl", hash = "sha256:{digest}", size = 12345, '
    'upload-time = "2025-10-06T14:11:31.158Z" }},\n'
)
PACKAGE = """[[package]]
name = "{name}"
version = "{version}"
source = {{ registry = "https://own.example/simple" }}
sdist = {{ url = "https://own.example/{name}.tar.gz", hash = "sha256:{digest}", size = 1 }}
wheels = [
{wheels}]

"""
OWN = """version = 1
requires-python = ">=3.10"

[[package]]
name = "own"
version = "0.1.0"
source = {{ virtual = "." }}
dependencies = [
{edges}]

"""


def uv_lock(packages: int, wheels: int) -> str:
    """Return a lock as uv writes it; 800 packages of 30 wheels are 5 MB, more than known public ones."""
    names = ["torch", *(f"package-{number}" for number in range(packages))]
    text = OWN.format(edges="".join(f'    {{ name = "{name}" }},\n' for name in names))
    for name in names:
        lines = [WHEEL.format(name=name, tag=tag, digest="a" * 64) for tag in range(wheels)]
        text += PACKAGE.format(name=name, version="2.6.0", digest="b" * 64, wheels="".join(lines))
    return text


def dockerfile(lock: str) -> str:
    install = "uv sync --frozen" if lock == "uv.lock" else f"pip install -r {lock}"
    return f"FROM python:3.11\nCOPY . .\nRUN {install}\nUSER 1000\n"


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("lock", ["requirements-verl.txt", "uv.lock"])
def test_lint_takes_less_than_two_seconds_of_processor_time(lock: str, named: bool, tmp_path: Path) -> None:
    text = uv_lock(800, 30) if lock == "uv.lock" else (ROOT / lock).read_text()
    (tmp_path / lock).write_text(text)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "own"\nversion = "0.1.0"\n')
    (tmp_path / "Dockerfile").write_text(dockerfile(lock))
    words = ["--dockerfile", str(tmp_path / "Dockerfile"), "--context", str(tmp_path), "--index", "none"]
    words += ["--lock", str(tmp_path / lock)] if named else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "trainyard", "image", "lint", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 1), done.stderr
    assert '"torch": "2.' in done.stdout, "the lock was read"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_a_lock_without_its_files_states_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = uv_lock(20, 3)
    short = lock_files._without_files(text)
    assert len(short) < len(text) / 3 and "wheels" not in short and "sdist" not in short
    fast = read_lock("uv.lock", text)
    monkeypatch.setattr(lock_files, "_without_files", lambda text: text)
    assert read_lock("uv.lock", text) == fast
    assert len(fast.requirements) == 21
