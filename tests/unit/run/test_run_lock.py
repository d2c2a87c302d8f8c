import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.errors import ConfigError
from trainyard.run.run_lock import locked


def test_a_directory_is_held_once_and_free_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with locked(tmp_path), pytest.raises(ConfigError, match="is being trained by process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_not_called_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"cannot be used \(No locks available\)"), locked(tmp_path):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from trainyard.run.run_lock import locked
with locked(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with locked(tmp_path):
        pass


def test_a_run_that_never_started_leaves_no_directory(tmp_path: Path) -> None:
    with locked(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()


def test_what_else_is_in_the_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with locked(tmp_path / "new"):
        pass
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["notes.txt"]
