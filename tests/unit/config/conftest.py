"""Configuration files in a separate folder, and the errors of loading them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.config.load import load_config
from trainyard.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the working directory, so that messages show bare file names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def complaints(folder: Path) -> Callable[..., list[str]]:
    """Write `content` to c.yaml, load it and return the error's lines without the last, a count."""

    def load(content: str | bytes, *overrides: str) -> list[str]:
        (folder / "c.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(ConfigError) as raised:
            load_config(Path("c.yaml"), overrides)
        *lines, count = str(raised.value).split("\n")
        assert count == f"{len(lines)} error{'s' * (len(lines) != 1)}. Nothing was started."
        return lines

    return load


@pytest.fixture
def write_files(folder: Path) -> Callable[..., Path]:
    """Write files given as name and content; the path of the last is returned."""

    def write(*files: tuple[str, str]) -> Path:
        path = folder
        for name, content in files:
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return path

    return write
