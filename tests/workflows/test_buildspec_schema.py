"""The schema of buildspecs: ours fits; a key, word or command that CodeBuild ignores does not."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tests.cases import each_case

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs/schemas/buildspec.schema.json").read_text())
TEXT = (ROOT / "buildspec.yml").read_text()
RIGHT: dict[str, Any] = {
    "version": 0.2,
    "env": {"shell": "bash", "variables": {"A": "1"}, "exported-variables": ["A"]},
    "phases": {
        "install": {"runtime-versions": {"python": 3.11}, "commands": ["make install"]},
        "build": {"on-failure": "RETRY-2", "commands": ["make"], "finally": ["echo done"]},
    },
    "artifacts": {"files": ["**/*"], "discard-paths": "no"},
    "cache": {"paths": ["p/**"], "action": "save"},
}


def is_valid(value: Any) -> bool:
    return bool(Draft202012Validator(SCHEMA).is_valid(value))


def test_the_schema_is_one_and_our_buildspec_fits() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert is_valid(yaml.safe_load(TEXT))
    assert is_valid(RIGHT)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all keys whose names CodeBuild defines."""
    if not isinstance(value, dict) or path in {
        ("env", "variables"),
        ("phases", "install", "runtime-versions"),
    }:
        return []
    return [found for key, inner in value.items() for found in ((*path, key), *places(inner, (*path, key)))]


@each_case("path", places(RIGHT), ids=lambda path: ".".join(path))
def test_a_misspelt_key_does_not_fit(path: tuple[str, ...]) -> None:
    value = copy.deepcopy(RIGHT)
    section: Any = value
    for name in path[:-1]:
        section = section[name]
    section[f"{path[-1]}x"] = section.pop(path[-1])
    assert not is_valid(value)


@each_case("command", ["exec make", "  exit 1", "one\ntwo", "", {"echo a": "b"}, "exit"])
@each_case("key", ["commands", "finally"])
def test_a_command_that_would_not_run_as_meant_does_not_fit(key: str, command: Any) -> None:
    value = copy.deepcopy(RIGHT)
    value["phases"]["build"][key].append(command)
    assert not is_valid(value)
    value["phases"]["build"][key][-1] = "executable --exit\n"
    assert is_valid(value)


@pytest.mark.parametrize(
    ("section", "key", "wrong"),
    [("env", "shell", "zsh"), ("cache", "action", "load"), ("artifacts", "discard-paths", "all")],
)
def test_an_unknown_word_does_not_fit(section: str, key: str, wrong: str) -> None:
    assert not is_valid({**RIGHT, section: {**RIGHT[section], key: wrong}})


def test_every_variable_that_we_export_is_declared_or_set_by_a_command() -> None:
    """CodeBuild loses an exported variable that nothing sets, without an error."""
    env = yaml.safe_load(TEXT)["env"]
    unset = [name for name in env["exported-variables"] if name not in env["variables"]]
    assert [name for name in unset if not re.search(rf"(?<![\w$]){name}=", TEXT)] == []
