"""The description of another program: a plan writes it, a pod reads it, faults are refused."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ConfigError
from trainyard.jobs.job_spec import FILES_DIRECTORY
from trainyard.jobs.recipes.wrapped_program import ProgramDescription, read_description

SHEET = ProgramDescription(
    "verl",
    ("python3", "main.py"),
    torchrun=False,
    steps=4,
    checkpoints="/checkpoints/llama/program",
    environment={"PYTHONUNBUFFERED": "1"},
    nodes=1,
)


def written(folder: Path, value: Any) -> Path:
    path = folder / "program.json"
    path.write_text(json.dumps(value))
    return path


def test_a_sheet_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_description(written(tmp_path, asdict(SHEET))) == SHEET


def test_the_command_names_the_folder_that_the_files_are_in(tmp_path: Path) -> None:
    value = asdict(SHEET) | {"command": ["torchrun", f"{FILES_DIRECTORY}/train.py"]}
    assert read_description(written(tmp_path, value)).command == (
        "torchrun",
        f"{tmp_path}/train.py",
    )


def test_each_part_that_is_missing_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    sheet = asdict(SHEET)
    assert read_description(written(tmp_path, sheet | {"nodes": 4})).nodes == 4
    for name, wrong in (("recipe", 3), ("command", "a b"), ("checkpoints", None), ("environment", ["A=1"])):
        for value in (sheet | {name: wrong}, {key: sheet[key] for key in sheet if key != name}):
            with pytest.raises(ConfigError, match=f"program.json: cannot be read .{name}"):
                read_description(written(tmp_path, value))


@pytest.mark.parametrize("name", ["pretrain", "command", "../verl"])
def test_a_recipe_without_a_preset_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is not one of .*megatron, nemo"):
        read_description(written(tmp_path, asdict(SHEET) | {"recipe": name}))


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_what_is_no_object_of_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "program.json").write_text(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_description(tmp_path / "program.json")
