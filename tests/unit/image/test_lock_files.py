"""A lock of uv is read without the lines of its files, which are most of it."""

import pytest

from trainyard.image.conflict import lock_files
from trainyard.image.conflict.lock_files import read_lock

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
    """Return a lock as uv writes it."""
    names = ["torch", *(f"package-{number}" for number in range(packages))]
    text = OWN.format(edges="".join(f'    {{ name = "{name}" }},\n' for name in names))
    for name in names:
        lines = [WHEEL.format(name=name, tag=tag, digest="a" * 64) for tag in range(wheels)]
        text += PACKAGE.format(name=name, version="2.6.0", digest="b" * 64, wheels="".join(lines))
    return text


def test_a_lock_without_its_files_states_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = uv_lock(20, 3)
    short = lock_files._without_files(text)
    assert len(short) < len(text) / 3 and "wheels" not in short and "sdist" not in short
    fast = read_lock("uv.lock", text)
    monkeypatch.setattr(lock_files, "_without_files", lambda text: text)
    assert read_lock("uv.lock", text) == fast
    assert len(fast.requirements) == 21
