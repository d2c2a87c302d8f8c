"""The checker of buildspecs: our own passes; a key that is misspelt or of a wrong kind is named."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.repository.buildspec import find_buildspec_problems

ROOT = Path(__file__).resolve().parents[3]
FULL: dict[str, Any] = {
    "version": 0.2,
    "run-as": "builder",
    "env": {
        "shell": "bash",
        "variables": {"A": "1"},
        "parameter-store": {"B": "/b"},
        "secrets-manager": {"C": "c:d"},
        "exported-variables": ["A", "D"],
        "git-credential-helper": "yes",
    },
    "proxy": {"upload-artifacts": "yes", "logs": "no"},
    "batch": {"fast-fail": "false", "build-list": [{"identifier": "x"}]},
    "phases": {
        "install": {"runtime-versions": {"python": "3.11"}, "commands": ["true"]},
        "pre_build": {"on-failure": "RETRY-2", "commands": ["export D=1"], "finally": ["true"]},
        "build": {"run-as": "root", "on-failure": "ABORT", "commands": ["make"]},
        "post_build": {"on-failure": "CONTINUE", "commands": ["echo done"]},
    },
    "reports": {
        "checks": {
            "files": ["*.xml"],
            "file-format": "JUNITXML",
            "base-directory": "x",
            "discard-paths": "no",
        }
    },
    "artifacts": {
        "files": ["**/*"],
        "name": "n",
        "discard-paths": "no",
        "base-directory": "b",
        "exclude-paths": ["x"],
        "enable-symlinks": "yes",
        "s3-prefix": "p",
        "secondary-artifacts": {"other": {"files": ["y"]}},
    },
    "cache": {"key": "k", "fallback-keys": ["f"], "action": "save", "paths": ["p/**"]},
}
FREE = {
    ("env", "variables"),
    ("env", "parameter-store"),
    ("env", "secrets-manager"),
    ("phases", "install", "runtime-versions"),
    ("reports",),
    ("artifacts", "secondary-artifacts"),
}
"""The keys of these are the user's."""
ANYTHING = {("batch", "build-list"), ("artifacts", "exclude-paths")}


def check(value: Any) -> list[str]:
    return [str(each) for each in find_buildspec_problems(yaml.safe_dump(value, sort_keys=False), "b.yml")]


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and path not in ANYTHING:
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))


KNOWN = [path for path in places(FULL) if path[:-1] not in FREE]


def changed(path: tuple[str, ...], *, key: str = "", value: Any = None) -> dict[str, Any]:
    whole = copy.deepcopy(FULL)
    section: Any = whole
    for name in path[:-1]:
        section = section[name]
    old = section.pop(path[-1])
    section[key or path[-1]] = old if key else value
    return whole


def test_a_buildspec_with_every_key_is_right() -> None:
    assert check(FULL) == []


def test_our_own_is_right() -> None:
    assert find_buildspec_problems((ROOT / "buildspec.yml").read_text(), "buildspec.yml") == []


@pytest.mark.parametrize("path", KNOWN, ids=".".join)
def test_a_misspelt_key_is_named_with_its_line_and_the_right_one(path: tuple[str, ...]) -> None:
    wrong = f"{path[-1]}x"
    value = changed(path, key=wrong)
    lines = yaml.safe_dump(value, sort_keys=False).splitlines()
    said = [text for text in check(value) if f"{'.'.join((*path[:-1], wrong))}: unknown key" in text]
    assert len(said) == 1 and f"did you mean {path[-1]}?" in said[0]
    number = int(said[0].split(":")[1])
    assert lines[number - 1].strip().startswith(f"{wrong}:")


@pytest.mark.parametrize("path", [p for p in KNOWN if p not in ANYTHING], ids=".".join)
@pytest.mark.parametrize("kind", ["a mapping", "a list", "one word", "nothing"])
def test_a_value_of_another_kind_is_named(path: tuple[str, ...], kind: str) -> None:
    section: Any = FULL
    for name in path:
        section = section[name]
    value = {"a mapping": {"quite": "other"}, "a list": [["x"]], "one word": "xyzzy", "nothing": []}[kind]
    if (kind == "a mapping" and path in FREE and isinstance(section, dict)) or (
        kind == "one word" and not isinstance(section, dict | list)
    ):
        return  # right, or judged by words below
    said = check(changed(path, value=value))
    assert any(f"{'.'.join(path)}" in text for text in said), said


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("version",), "0.1"),
        (("env", "shell"), "zsh"),
        (("env", "git-credential-helper"), "maybe"),
        (("proxy", "logs"), "on"),
        (("batch", "fast-fail"), "soon"),
        (("phases", "build", "on-failure"), "STOP"),
        (("phases", "build", "on-failure"), "RETRY2"),
        (("phases", "build", "on-failure"), "abort"),
        (("reports", "checks", "file-format"), "JUNIT"),
        (("artifacts", "discard-paths"), "all"),
        (("cache", "action"), "load"),
    ],
)
def test_a_word_that_codebuild_does_not_know_is_named(path: tuple[str, ...], wrong: str) -> None:
    said = check(changed(path, value=wrong))
    assert len(said) == 1 and ".".join(path) in said[0] and wrong in said[0]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("one\ntwo", "several lines"),
        ("exec make", "ends the shell"),
        ("exit 1", "ends the shell"),
        ("", "is empty"),
        ({"echo a": "b"}, "as one text"),
    ],
)
@pytest.mark.parametrize("key", ["commands", "finally"])
def test_a_command_that_would_not_run_as_meant_is_named(command: Any, said: str, key: str) -> None:
    value = copy.deepcopy(FULL)
    value["phases"]["pre_build"][key].append(command)
    found = check(value)
    assert len(found) == 1 and said in found[0] and f"phases.pre_build.{key}.2" in found[0]


def test_a_command_that_is_folded_onto_one_line_is_right() -> None:
    text = "version: 0.2\nphases:\n  build:\n    commands:\n      - >-\n        make\n        all\n"
    assert find_buildspec_problems(text, "b.yml") == []


def test_an_exported_variable_that_nothing_sets_is_named() -> None:
    value = copy.deepcopy(FULL)
    value["env"]["exported-variables"].append("IMAGE_DIGEST")
    assert ["IMAGE_DIGEST is exported" in text for text in check(value)] == [True]
    value["phases"]["build"]["commands"].append('echo "$IMAGE_DIGEST=x"')
    assert len(check(value)) == 1, "a use is not a setting"
    value["phases"]["build"]["commands"].append('IMAGE_DIGEST="$(cat d)" && export IMAGE_DIGEST')
    assert check(value) == []


@pytest.mark.parametrize("key", ["version", "phases"])
def test_what_is_required_is_missed(key: str) -> None:
    value = copy.deepcopy(FULL)
    del value[key]
    assert any(text.endswith(f"{key}: is missing") for text in check(value))


@pytest.mark.parametrize(
    "text", ["", "- a\n", "a: [", "version: 0.2\nversion: 0.2\nphases: {}\n", "\ta: b\n", "x"]
)
def test_what_is_no_buildspec_is_said(text: str) -> None:
    assert find_buildspec_problems(text, "b.yml")


def test_the_script_says_each_problem_and_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "my build.yml"
    path.write_text("version: 0.2\nphases:\n  build:\n    commands: [make]\n    finaly: [make clean]\n")
    line = [sys.executable, str(ROOT / "scripts" / "check_buildspec.py")]
    done = subprocess.run([*line, str(path), "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "my build.yml:5: phases.build.finaly: unknown key; did you mean finally?" in done.stderr
    assert len(json.loads(done.stdout)) == 1
    assert subprocess.run(line, capture_output=True, timeout=60, cwd=ROOT).returncode == 0
    gone = subprocess.run([*line, str(tmp_path / "none")], capture_output=True, text=True, timeout=60)
    assert gone.returncode == 2 and "Traceback" not in gone.stderr
