"""The buildspec's tasks `image` and `check` fail when any of their steps fails, whichever it is.

The commands run as CodeBuild runs them; make, docker and Python only record their arguments. The steps
are read from the buildspec, so a new one is tried here, too.
"""

import os
import re
from pathlib import Path

import pytest
from tests.workflows.act.test_buildspec import PHASES, Built, build, commands

STAND_IN = """#!/bin/bash
words="$(basename "$0") $*"
echo "${words//$'\\n'/ }" >> "$HOME/steps"
case "$words" in *"$FAILING_STEP"*) echo "the stand-in fails" >&2; exit 7 ;; esac
case "$words" in *"import json"*) echo "registry/trainer@sha256:1 sha256:1" ;; esac
exit 0
"""
STEPS = {
    "image": (
        *("make install", "image lint", "docker buildx", "image build", "image check"),
        *("import hashlib", "image push", "import json"),
    ),
    "check": ("make install", "image check", "import hashlib"),
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs, folder = tmp_path / "programs", tmp_path / "machine"
    (folder / ".venv" / "bin").mkdir(parents=True)
    programs.mkdir()
    names = ("make", "docker", "oras")
    ours = (folder / ".venv" / "bin" / name for name in ("python", "trainyard"))
    for path in (*(programs / name for name in names), *ours):
        path.write_text(STAND_IN)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return folder


def run(machine: Path, task: str, failing: str = "nothing fails") -> tuple[Built, list[str]]:
    given = {"TASK": task, "IMAGE": "trainer", "IMAGE_URI": "trainer:1" if task == "check" else ""}
    given |= {"CODEBUILD_BUILD_NUMBER": "7", "CACHE": "registry/trainer-cache:1", "FAILING_STEP": failing}
    built = build(machine, **given)
    lines = (machine / "steps").read_text().splitlines() if (machine / "steps").is_file() else []
    named = [next((step for step in STEPS["image"] if step in line), line) for line in lines]
    return built, named


@pytest.mark.parametrize("task", STEPS)
def test_every_step_runs_once_in_its_order_and_the_build_succeeds(machine: Path, task: str) -> None:
    built, steps = run(machine, task)
    assert set(built.status.values()) == {"SUCCEEDED"} and tuple(built.status) == PHASES, built.log
    assert tuple(steps) == STEPS[task]
    expected = "sha256:1" if task == "image" else ""
    assert built.exported["IMAGE_DIGEST"] == expected


@pytest.mark.parametrize(("task", "step"), [(task, step) for task, steps in STEPS.items() for step in steps])
def test_a_step_that_fails_ends_the_build_red_and_nothing_later_is_done(
    machine: Path, task: str, step: str
) -> None:
    built, steps = run(machine, task, failing=step)
    assert "FAILED" in built.status.values(), built.log
    before = STEPS[task][: STEPS[task].index(step) + 1]
    assert tuple(steps) == before, "what came after the failure was done all the same"
    assert built.exported["IMAGE_DIGEST"] == ""


def test_the_steps_are_those_of_the_buildspec() -> None:
    named = set()
    for line in commands(*PHASES):
        if re.search(r'test "\$TASK" (?:!= image|= train) \|\|', line):
            named |= set(
                re.findall(r"trainyard (image \w+)|(docker buildx)|(import json|import hashlib)", line)
            )
    assert {"".join(found) for found in named} == {*STEPS["image"]} - {"make install"}
