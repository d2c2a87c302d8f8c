"""tools/write_script_reference.py: its output, and the failures of --check."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm_start
from tools.write_script_reference import (
    Argument,
    Script,
    list_arguments,
    render_script_reference,
)

from trainyard.commands import COMMANDS, GROUPS, INTERNAL
from trainyard.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "write_script_reference.py"
REFERENCE = Path("docs/scripts.md")
DOCSTRING = """\
Weigh a checkpoint, before it is sent to s3://bucket/prefix.

Reads:  checkpoints/*/manifest.json; --run-dir.
Writes: nothing; SCALE_TOKEN is read
        from the environment.
Exit codes: 0 weighed; 1 too heavy.
Example: trainyard weigh --run-dir runs/x
"""


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
    sections = re.findall(r"^### trainyard (.+)$", text, flags=re.M)
    assert sections == [name for group in GROUPS.values() for name in group]
    internal = re.findall(
        r"`trainyard\s([^`]+)`", text.partition("## Internal commands")[2].partition("## Files")[0]
    )
    assert [" ".join(name.split()) for name in internal] == [name for name in COMMANDS if name in INTERNAL]
    files = re.findall(r"^\| `(\w+)\.py`", text, flags=re.M)
    assert files == sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))


@pytest.fixture
def help_text(monkeypatch: pytest.MonkeyPatch) -> str:
    """The help text that argparse writes for every kind of argument that scripts have."""
    monkeypatch.setenv("COLUMNS", "1000")
    parser = argparse.ArgumentParser(
        prog="weigh.py", description=DOCSTRING, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log-level", choices=("debug", "info"), help="how much to log")
    parser.add_argument("unit", choices=("kilo", "pound"), help="what to weigh in")
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="the run's directory")
    parser.add_argument("--resume", metavar="none|auto", help="default: <run id> of $HOME")
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--gross", action="store_true")
    one.add_argument("--a-very-long-name-for-the-net-weight", metavar="N", help="its meaning comes below")
    return parser.format_help()


def test_arguments_are_those_of_the_help_without_the_shared_ones(help_text: str) -> None:
    assert list_arguments(help_text) == [
        Argument("{kilo,pound}", "what to weigh in", "yes"),
        Argument("--run-dir DIR", "the run's directory", "yes"),
        Argument("--resume none|auto", "default: <run id> of $HOME", ""),
        Argument("--gross", "", "one of these"),
        Argument("--a-very-long-name-for-the-net-weight N", "its meaning comes below", "one of these"),
    ]


def test_a_section_has_the_summary_the_options_and_the_example_and_marks_code(help_text: str) -> None:
    weigh = Script("weigh", DOCSTRING, help_text, words="weigh")
    text = render_script_reference([weigh], {"All": {"weigh": ""}})
    section = text.partition("### trainyard weigh")[2]
    assert "before it is sent to `s3://bucket/prefix`." in section
    assert "- `{kilo,pound}`\\*: what to weigh in\n" in section
    assert "- `--run-dir=DIR`\\*, `--resume=none|auto`, `--gross`†," in section
    assert "the run's directory" not in section, "--help has the meanings"
    assert "SCALE_TOKEN" not in section, "--help has the details"
    assert "```\ntrainyard weigh --run-dir runs/x\n```\n" in section
    assert [f"| {int(code)} | " in text for code in ExitCode] == [True] * len(ExitCode)
