"""repository/script_reference.py: docstring and help in, Markdown out."""

import argparse

import pytest

from trainyard.errors import ExitCode
from trainyard.github.script_reference import (
    PIPELINE,
    Argument,
    Script,
    list_arguments,
    render_script_reference,
)

DOCSTRING = """\
Weigh a checkpoint, before it is sent to s3://bucket/prefix.

Reads:  checkpoints/*/manifest.json; --run-dir.
Writes: nothing; SCALE_TOKEN is read
        from the environment.
Exit codes: 0 weighed; 1 too heavy.
Example: scripts/weigh.py --run-dir runs/x
"""


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


def test_the_document_has_a_section_per_script_and_marks_code(help_text: str) -> None:
    scripts = [Script(name, DOCSTRING, help_text) for name in ("weigh", *reversed(PIPELINE))]
    text = render_script_reference(scripts)
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        *(f"### {name}.py" for name in PIPELINE),
        "### weigh.py",
    ]
    section = text.partition("### weigh.py")[2]
    assert "before it is sent to `s3://bucket/prefix`." in section
    assert "- Reads: `checkpoints/*/manifest.json`; `--run-dir`." in section
    assert "- Writes: nothing; `SCALE_TOKEN` is read from the environment." in section
    assert r"| `--resume none\|auto` |  | default: `<run id>` of `$HOME` |" in section
    assert "```\nscripts/weigh.py --run-dir runs/x\n```\n" in section


def test_the_table_has_every_exit_code() -> None:
    text = render_script_reference([Script(name, DOCSTRING, "usage: x\n\n") for name in PIPELINE])
    assert [f"| {int(code)} | " in text for code in ExitCode] == [True] * len(ExitCode)
