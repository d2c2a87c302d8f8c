"""tools/write_script_reference.py: its output, and the failures of --check."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm_start

from trainyard.commands import COMMANDS, GROUPS, INTERNAL

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "write_script_reference.py"
REFERENCE = Path("docs/scripts.md")


def write(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *(str(argument) for argument in arguments)]
    done = warm_start.run(line, timeout=120)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    assert write("--root", root, "--dry-run").returncode == 0
    assert list(root.iterdir()) == []
    assert write("--root", root).returncode == 0
    return root


def test_the_reference_of_this_checkout_is_current(written: Path) -> None:
    assert (ROOT / REFERENCE).read_text() == (written / REFERENCE).read_text(), (
        "run tools/write_script_reference.py and commit the result"
    )


def test_check_accepts_what_was_written_and_names_an_edited_file(written: Path) -> None:
    assert write("--root", written, "--check").returncode == 0
    path = written / REFERENCE
    text = path.read_text()
    path.write_text(text.replace("| 75 |", "| 76 |"))
    refused = write("--root", written, "--check")
    path.write_text(text)
    assert refused.returncode == 1
    assert (
        f"Not current: docs/scripts.md. Run {shlex.quote(sys.executable)} tools/write_script_reference.py"
        in refused.stderr
    )


def test_every_command_is_there_once_in_the_order_of_the_groups(written: Path) -> None:
    text = (written / REFERENCE).read_text()
    listed = re.findall(r"^- `trainyard (.+?)`: \S", text.partition("## Internal")[0], flags=re.M)
    assert listed == [name for group in GROUPS.values() for name in group]
    internal = re.findall(
        r"`trainyard\s([^`]+)`", text.partition("## Internal commands")[2].partition("## Files")[0]
    )
    assert [" ".join(name.split()) for name in internal] == [name for name in COMMANDS if name in INTERNAL]
    files = re.findall(r"`(\w+)\.py` \(", " ".join(text.split()))
    assert files == sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
