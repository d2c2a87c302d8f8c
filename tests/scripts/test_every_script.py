"""The common properties of all scripts: shape, help, and answers to wrong usage."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cases import each_case
from tests.scripts.conftest import ROOT

SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
TOOLS = sorted(path for path in (ROOT / "tools").glob("*.py") if path.stem != "generator")
COMMANDS = ROOT / "src" / "trainyard" / "commands"
SECTIONS = ("Reads:", "Writes:", "Exit codes:", "Example:")
SCRIPTS_AND_TOOLS = [*SCRIPTS, *TOOLS]


def source(script: Path) -> str:
    """The text of the module whose `main` the script calls."""
    text = script.read_text()
    module = re.search(r"commands\.(\w+) import main", text)
    return text if module is None else (COMMANDS / f"{module[1]}.py").read_text()


def test_help_is_the_docstring_and_does_not_need_the_heavy_libraries() -> None:
    """test_house.py has the imports of each module, this one process what they add up to."""
    script = ROOT / "scripts" / "deploy_training_job.py"
    line = [sys.executable, "-X", "importtime", str(script), "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    docstring = ast.get_docstring(ast.parse(source(script)))
    assert docstring is not None and docstring[:60] in done.stdout
    assert "--log-level" in done.stdout
    said = done.stderr.splitlines()
    assert [line for line in said if not line.startswith("import time:")] == []
    loaded = {line.rpartition("|")[2].strip() for line in said}
    assert "argparse" in loaded
    assert loaded & {"torch", "numpy", "rich", "boto3", "pyarrow"} == set()


@each_case("script", SCRIPTS_AND_TOOLS, ids=lambda path: path.stem)
def test_the_docstring_says_what_is_read_written_and_returned(script: Path) -> None:
    docstring = ast.get_docstring(ast.parse(source(script))) or ""
    starts = [line.strip() for line in docstring.splitlines()]
    missing = [section for section in SECTIONS if not any(line.startswith(section) for line in starts)]
    assert missing == []
    example = next(line for line in starts if line.startswith("Example:"))
    follows = " ".join([example, *starts[starts.index(example) + 1 :]])
    assert (f"tools/{script.name}" if script in TOOLS else "trainyard ") in follows


@each_case("script", SCRIPTS_AND_TOOLS, ids=lambda path: path.stem)
def test_it_is_an_executable_with_the_one_frame(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env python3\n")
    assert os.access(script, os.X_OK)
    assert text.endswith("exit_code_of(main))\n")
    text = source(script)
    if "generator.run_generator" in text:  # the frame of the tools that write files
        return
    assert "def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:" in text
    assert "def main(argv: Sequence[str] | None = None) -> int:" in text
