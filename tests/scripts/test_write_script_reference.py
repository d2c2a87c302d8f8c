"""tools/write_script_reference.py: what it writes, and when --check says no."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm_start

from trainyard.github.script_reference import PIPELINE

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
    assert "Not current: docs/scripts.md. Run tools/write_script_reference.py" in refused.stderr


def test_every_script_has_a_section_and_the_pipeline_comes_first_in_its_order(written: Path) -> None:
    sections = re.findall(r"^### (\w+)\.py$", (written / REFERENCE).read_text(), flags=re.M)
    others = {path.stem for path in (ROOT / "scripts").glob("*.py")} - set(PIPELINE)
    assert sections == [*PIPELINE, *sorted(others)]
