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
    PIPELINE,
    Argument,
    Script,
    list_arguments,
    render_script_reference,
)

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
Example: scripts/weigh.py --run-dir runs/x
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


def test_every_script_is_there_once_and_the_pipeline_comes_first_in_its_order(written: Path) -> None:
    text = (written / REFERENCE).read_text()
    sections = re.findall(r"^### (\w+)\.py$", text, flags=re.M)
    internal = re.findall(r"`(\w+)\.py`", text.partition("## Internal commands")[2])
    assert sections[: len(PIPELINE)] == [*PIPELINE]
    assert {*sections, *internal} == {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert len(sections + internal) == len({*sections, *internal})


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


def test_headings_of_groups_are_not_swallowed_by_a_meaning() -> None:
    parser = argparse.ArgumentParser(prog="weigh.py", description=DOCSTRING)
    parser.add_argument("--run-dir", help="the run")
    group = parser.add_argument_group("the scale")
    group.add_argument("--zero", action="store_true", help="start at zero")
    assert [argument.meaning for argument in list_arguments(parser.format_help())] == [
        "the run",
        "start at zero",
    ]


def test_an_option_of_all_commands_for_clusters_is_described_once() -> None:
    parser = argparse.ArgumentParser(prog="weigh.py", description=DOCSTRING)
    parser.add_argument("--context", metavar="NAME", required=True, help="the scale")
    parser.add_argument("--json", action="store_true", help="print the weight as JSON")
    scripts = [Script(name, DOCSTRING, parser.format_help(), words=name) for name in PIPELINE]
    text = render_script_reference(scripts)
    assert text.count("- `--context=NAME`: the scale\n") == 1
    assert text.count("- `--context`\\*\n") == len(PIPELINE)


def test_a_command_that_only_workflows_call_is_listed_without_its_options(help_text: str) -> None:
    scripts = [Script(name, DOCSTRING, "usage: x\n\n", words=name) for name in PIPELINE]
    text = render_script_reference([*scripts, Script("weigh", DOCSTRING, help_text, words="step weigh")])
    assert "`weigh.py` (`trainyard step weigh`)" in text
    assert "--gross" not in text


def test_the_document_has_a_section_per_script_and_marks_code(help_text: str) -> None:
    others = [Script(name, DOCSTRING, "usage: x\n\n") for name in reversed(PIPELINE)]
    scripts = [Script("weigh", DOCSTRING, help_text, words="weigh"), *others]
    text = render_script_reference(scripts)
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        *(f"### {name}.py" for name in PIPELINE),
        "### weigh.py",
    ]
    section = text.partition("### weigh.py")[2]
    assert "before it is sent to `s3://bucket/prefix`." in section
    assert "- `{kilo,pound}`\\*: what to weigh in\n" in section
    assert "- `--run-dir=DIR`\\*, `--resume=none|auto`, `--gross`†," in section
    assert "the run's directory" not in section, "--help has the meanings"
    assert section.startswith("\n\n`trainyard weigh`: Weigh a checkpoint")
    assert "SCALE_TOKEN" not in section, "--help has the details"
    assert "```\nscripts/weigh.py --run-dir runs/x\n```\n" in section


def test_the_table_has_every_exit_code() -> None:
    text = render_script_reference([Script(name, DOCSTRING, "usage: x\n\n") for name in PIPELINE])
    assert [f"| {int(code)} | " in text for code in ExitCode] == [True] * len(ExitCode)
