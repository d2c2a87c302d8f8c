"""Measured programs: exit code, time limit, memory and environment."""

import os
import sys
import time
from pathlib import Path

import pytest

from trainyard.gateways.checkout import run_script
from trainyard.gateways.process import run_measured


def test_the_end_of_the_output_is_kept_and_the_memory_measured(tmp_path: Path) -> None:
    program = (
        "import sys; x = bytearray(b'a') * 300_000_000; print('a' * 100_000); print(len(x)); sys.exit(3)"
    )
    done = run_measured([sys.executable, "-c", program], seconds=60, cwd=tmp_path, environment={})
    assert done.exit_code == 3
    assert done.log.endswith("a\n300000000\n")
    assert len(done.log) <= 64 * 1024
    assert done.memory_bytes > 300_000_000


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    line = ["/bin/sh", "-c", "echo begun; sleep 100 & echo $! > child; wait"]
    done = run_measured(line, seconds=0.5, cwd=tmp_path, environment={"PATH": os.environ["PATH"]})
    assert done.exit_code is None
    assert done.log == "begun\n\n/bin/sh: not done after 0 seconds"
    assert time.monotonic() - began < 30
    child = int((tmp_path / "child").read_text())
    for _ in range(200):
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("what it started still runs")


def test_a_missing_program_gives_a_result(tmp_path: Path) -> None:
    done = run_measured([str(tmp_path / "none")], seconds=5, cwd=tmp_path, environment={})
    assert (done.exit_code, done.memory_bytes) == (None, 0)
    assert "No such file" in done.log


def test_a_checkout_runs_its_own_code_in_its_own_environment_without_our_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-secret")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "show.py").write_text(
        "import os, sys\nprint(sorted(os.environ), os.environ['PYTHONPATH'], sys.argv[1:], os.getcwd())\n"
    )
    done = run_script(tmp_path, "show.py", ["--a", "b"], seconds=60)
    assert done.exit_code == 0
    assert "SLACK_BOT_TOKEN" not in done.log
    assert f"{tmp_path}/src ['--a', 'b'] {tmp_path}" in done.log
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\necho mine $1\n")
    own.chmod(0o755)
    assert run_script(tmp_path, "show.py", [], seconds=60).log == f"mine {tmp_path}/scripts/show.py\n"
