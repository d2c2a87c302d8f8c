"""tools/write_config_schema.py: its output, and the failures of --check."""

import importlib
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trainyard.command import handler

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return importlib.import_module("write_config_schema")


def run(script: ModuleType, *arguments: str) -> int:
    return handler.exit_code_of(lambda: int(script.main(arguments)))


def test_the_generated_files_of_this_checkout_are_current(script: ModuleType) -> None:
    assert run(script, "--check") == 0


def test_it_writes_what_check_then_accepts(script: ModuleType, tmp_path: Path) -> None:
    assert run(script, "--root", str(tmp_path), "--check") == 1
    assert run(script, "--root", str(tmp_path), "--dry-run") == 0
    assert list(tmp_path.iterdir()) == []
    assert run(script, "--root", str(tmp_path)) == 0
    assert run(script, "--root", str(tmp_path), "--check") == 0
    assert "extends" in json.loads((tmp_path / script.SCHEMA).read_text())["properties"]


def test_check_names_the_file_that_is_not_current(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(script, "--root", str(tmp_path))
    (tmp_path / script.REFERENCE).write_text("edited by hand\n")
    assert run(script, "--root", str(tmp_path), "--check") == 1
    assert (
        f"Not current: docs/configuration.md. Run {shlex.quote(sys.executable)} tools/write_config_schema.py"
        in capsys.readouterr().err
    )
