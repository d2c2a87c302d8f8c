"""What is ordinary around a finished run changes no verdict: places, languages, times, users, streams.

Real processes, because that is what surroundings are of.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.planted.yard import ROOT, Yard

AS_NOBODY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.integration.planted.yard import script
from trainyard import command
main = script("prove_run").main
main([*sys.argv[2:], "--dry-run"])  # imports what it needs, which may be root's alone
os.setgid(65534)
os.setuid(65534)
sys.exit(command.exit_code_of(lambda: main(sys.argv[2:])))
"""
PROVE = ROOT / "scripts" / "prove_run.py"


@pytest.fixture
def yard(yards: dict[str, Yard]) -> Iterator[Yard]:
    copy = yards["plain"].copy_to(yards["plain"].path.parent / "copy of plain")
    yield copy
    shutil.rmtree(copy.path)


def run(
    *arguments: str | Path, closed: str = "", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    hidden = ("GITHUB_", "CI", "HOME", "LANG", "LC_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    line = f'exec "$@" {closed}'
    return subprocess.run(
        ["/bin/sh", "-c", line, "sh", sys.executable, str(PROVE), *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=240,
        env=environment | variables,
        cwd=cwd,
        check=False,
    )


def test_in_another_place_time_zone_language_and_without_a_home(yard: Yard, tmp_path: Path) -> None:
    """Moved, named by a relative path, from a folder that is no repository, in Latin-5."""
    moved = tmp_path / "a folder, moved"
    shutil.copytree(yard.path, moved)
    store = (moved / "store").as_uri()
    done = run(
        *("--run-dir", "run", "--store", store),
        cwd=moved,
        TZ="Pacific/Kiritimati",
        LC_ALL="tr_TR.ISO8859-9",
        PYTHONIOENCODING="iso8859-9",
        PATH="/usr/bin:/bin",
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_with_no_room_for_temporary_files_and_closed_streams_twice(yard: Yard) -> None:
    for closed in ("2>&-", "1>&- 2>&- 0<&-"):
        done = run(
            *("--run-dir", yard.run.path, "--store", yard.store),
            closed=closed,
            TMPDIR="/nonexistent",
            LC_ALL="C",
        )
        assert done.returncode == 0, done.stderr
    assert (yard.run.report / "proof.json").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_by_a_user_who_may_read_and_not_write(yard: Yard, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(yard.path, copy)
    for path in (*tmp_path.parents, tmp_path):
        if path.is_relative_to(Path("/tmp")) and path != Path("/tmp"):
            path.chmod(0o755)
    arguments = ["--run-dir", str(copy / "run"), "--store", (copy / "store").as_uri()]

    def prove() -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", AS_NOBODY, str(ROOT), *arguments]
        return subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)

    done = prove()
    assert done.returncode == 0, done.stderr
    assert "proof.json was not written, and no report will show this proof" in done.stderr
    (copy / "run" / "metrics.jsonl").chmod(0o000)
    done = prove()
    assert done.returncode == 1, done.stderr
    assert "metrics.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_deep_record(path: Path) -> None:
    path.unlink()
    path.write_text("[" * 1_000_000)


def a_link_in_a_circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "events.jsonl"])
@pytest.mark.parametrize("plant", [a_pipe, a_deep_record, a_link_in_a_circle])
def test_a_process_ends_soon_and_with_a_no(yard: Yard, name: str, plant: Callable[[Path], None]) -> None:
    plant(yard.run.path / name)
    done = run("--run-dir", yard.run.path, "--store", yard.store)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert name in done.stderr


def test_a_second_sync_and_a_second_proof_change_nothing(yard: Yard) -> None:
    before = {path: path.stat().st_mtime_ns for path in yard.store_folder.rglob("*") if path.is_file()}
    yard.sync()
    assert before == {p: p.stat().st_mtime_ns for p in yard.store_folder.rglob("*") if p.is_file()}
    for _ in range(2):
        assert run("--run-dir", yard.run.path, "--store", yard.store).returncode == 0
