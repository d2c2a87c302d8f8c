"""`buildspec.yml`: CodeBuild refuses none of it, its phases run for real, and a step that fails is red."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflows.conftest import help_of

from trainyard.commands import module_name

ROOT = Path(__file__).resolve().parents[3]
SPEC: dict[str, Any] = yaml.safe_load((ROOT / "buildspec.yml").read_text())
TESTS = ROOT / "tests" / "integration"
PHASES = ("install", "pre_build", "build", "post_build")


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    status: dict[str, str]
    """Phase that ran -> SUCCEEDED or FAILED."""
    exported: dict[str, str]
    log: str
    run_directory: Path


def commands(*phases: str) -> list[str]:
    found = [SPEC["phases"][phase] for phase in phases]
    return [line for phase in found for line in (*phase["commands"], *phase.get("finally", ()))]


def build(machine: Path, **variables: str) -> Built:
    """Run the phases as CodeBuild does: one shell; a phase ends at its first failure, `finally` runs anyway.

    After a failed install or pre_build nothing follows, after a failed build post_build does.
    """
    script = ["ended=0"]
    for phase in PHASES:
        guard = '[ "$ended" = 0 ]' if phase != "post_build" else '[ "$ended" != before ]'
        script += [f"if {guard}; then", "phase=SUCCEEDED"]
        for line in SPEC["phases"][phase]["commands"]:
            script += ['if [ "$phase" = SUCCEEDED ]; then {', line, "}; [ $? = 0 ] || phase=FAILED; fi"]
        for line in SPEC["phases"][phase].get("finally", ()):
            script += ["{", line, "}; [ $? = 0 ] || phase=FAILED"]
        after = "before" if phase in PHASES[:2] else "after"
        script += [f'echo "{phase} $phase" >> status', f'[ "$phase" = SUCCEEDED ] || ended={after}', "fi"]
    script += [f'echo "{name}=${name}" >> exported' for name in SPEC["env"]["exported-variables"]]
    given = {"PATH": os.environ["PATH"], **SPEC["env"]["variables"], "MAKEFLAGS": "n", "PYTHONPATH": "src"}
    given |= {"HOME": str(machine), **variables}
    bash = ["bash", "--noprofile", "--norc", "-c", "\n".join(script)]
    done = subprocess.run(bash, cwd=machine, env=given, capture_output=True, text=True, timeout=240)
    status = dict(line.split() for line in (machine / "status").read_text().splitlines())
    exported = dict(line.split("=", 1) for line in (machine / "exported").read_text().splitlines())
    run = machine / "runs" / exported.get("RUN_ID", "")
    return Built(status, exported, done.stdout + done.stderr, run)


def run_facts(built: Built) -> dict[str, str]:
    """The variables that a training exports; those of images are empty then."""
    assert {name: value for name, value in built.exported.items() if name.startswith("IMAGE") and value} == {}
    return {name: value for name, value in built.exported.items() if not name.startswith("IMAGE")}


@pytest.fixture
def new_machine(repository: Path, tmp_path: Path) -> Any:
    """Gives a machine that has nothing but the commit."""

    def start(name: str) -> Path:
        machine = tmp_path / name
        subprocess.run(["git", "clone", "--quiet", str(repository), str(machine)], check=True, timeout=60)
        # Equal files with their times, so that Python finds them compiled.
        shutil.copytree(repository / "src", machine / "src", dirs_exist_ok=True)
        return machine

    return start


CALL = r"\.venv/bin/trainyard ((?:config |image )?[a-z]+)"


def test_every_command_knows_the_flags_it_is_given() -> None:
    for line in commands(*PHASES):
        for name in re.findall(CALL, line):
            for flag in set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", line)):
                assert re.search(rf"{flag}\b", help_of(module_name(name))), f"{name} {flag}"


def test_every_command_passes_shellcheck() -> None:
    program = str(Path(sys.executable).parent / "shellcheck")
    names = " ".join(
        f"{name}=''" for name in (*SPEC["env"]["variables"], "CODEBUILD_BUILD_NUMBER", "CODEBUILD_BUILD_ID")
    )
    script = f"export {names}\n" + "\n".join(commands(*PHASES)) + "\n"
    line = [program, "--shell=bash", "--severity=warning", "--exclude=SC2155,SC2178", "-"]
    done = subprocess.run(line, input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def add_program(machine: Path) -> None:
    """Commit somebody's program, at the same time on each machine, so that the commit is the same."""
    folder = machine / "theirs"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "tokens.txt").write_text("1 2 3")
    (folder / "train.py").write_text((TESTS / "any_program" / "plain_trainer.py").read_text())
    (folder / "requirements.lock").write_text("pinned==1.0\n")
    program = {
        "command": [sys.executable, "train.py", "--steps", "8", "--stop_at", "3"],
        "directory": "theirs",
        "data": ["data"],
        "checkpoints": "out/*",
        "resume": ["--resume_from_checkpoint", "{checkpoint}"],
    }
    (machine / "theirs.yaml").write_text(yaml.safe_dump({"recipe": "command", "program": program}))
    (machine / ".gitignore").write_text((machine / ".gitignore").read_text() + "out/\n!/theirs/data/\n")
    now = {f"GIT_{who}_DATE": "2026-11-20T12:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    for command in (("add", "-A"), (*who, "commit", "--quiet", "--message", "Theirs")):
        subprocess.run(["git", *command], cwd=machine, check=True, env={**os.environ, **now})


def test_any_program_stops_on_one_machine_and_resumes_on_another(new_machine: Any, tmp_path: Path) -> None:
    given = {"CONFIG": "theirs.yaml", "TRAINYARD_STORE": (tmp_path / "store").as_uri()}
    machines = [new_machine(machine) for machine in ("first", "second")]
    for machine in machines:
        add_program(machine)
    # A project that was made anew counts its builds from 1 again; no build has the UUID of another one.
    first = build(machines[0], CODEBUILD_BUILD_NUMBER="41", CODEBUILD_BUILD_ID="trainyard:5f0c-41", **given)
    assert run_facts(first) == {"RUN_ID": "cb-5f0c-41", "TRAIN_CODE": "75"}, first.log
    assert first.status == {**dict.fromkeys(PHASES, "SUCCEEDED"), "build": "FAILED"}
    assert "Would be sent to Slack" in first.log

    second = build(machines[1], CODEBUILD_BUILD_NUMBER="42", RUN_ID=first.exported["RUN_ID"], **given)
    assert set(second.status.values()) == {"SUCCEEDED"}, second.log
    assert second.exported["TRAIN_CODE"] == "0"
    assert json.loads((second.run_directory / "run.json").read_text())["run_id"] == "cb-5f0c-41"
    assert json.loads((second.run_directory / "report" / "proof.json").read_text())["proven"] is True
    events = [json.loads(line) for line in (second.run_directory / "events.jsonl").read_text().splitlines()]
    assert "resumed" in [event["event"] for event in events]
    rows = [json.loads(line) for line in (second.run_directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "step" in row] == list(range(1, 9))
    assert (tmp_path / "store" / "manifests" / "run-1-manifest-2.json").is_file()


def test_a_build_that_finds_nothing_of_its_run_is_refused(new_machine: Any, tmp_path: Path) -> None:
    """Like a later segment of the workflow, which knows itself whether earlier ones died."""
    again = {"CONFIG": "configs/tiny.yaml", "OVERRIDES": "training.max_steps=4", "RUN_ID": "cb-41"}
    again |= {"TRAINYARD_STORE": (tmp_path / "store").as_uri()}
    (tmp_path / "store").mkdir()  # a folder that is not there is a store that cannot be reached
    refused = build(new_machine("refused"), CODEBUILD_BUILD_NUMBER="42", **again)
    assert refused.status["build"] == "FAILED"
    assert "Segment 2 finds nothing to resume from" in refused.log
    assert refused.exported["TRAIN_CODE"] == "1"
    assert not refused.run_directory.exists()


def test_a_task_that_is_not_known_ends_it_before_anything_is_installed(new_machine: Any) -> None:
    built = build(new_machine("machine"), CODEBUILD_BUILD_NUMBER="1", TASK="bake")
    assert built.status == {"install": "FAILED"}
    assert "TASK is 'bake'; this buildspec knows train, image, check" in built.log
    assert "make" not in built.log


def test_a_configuration_that_is_wrong_ends_it_before_training(new_machine: Any, tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    nowhere = build(new_machine("nowhere"), CODEBUILD_BUILD_NUMBER="1", CONFIG="configs/tiny.yaml")
    assert nowhere.status == {"install": "SUCCEEDED", "pre_build": "FAILED"}
    assert "Where to store is not said: set TRAINYARD_STORE" in nowhere.log
    wrong = {"CONFIG": "configs/wrong.yaml", "TRAINYARD_STORE": store}
    built = build(new_machine("machine"), CODEBUILD_BUILD_NUMBER="1", **wrong)
    assert built.status == {"install": "SUCCEEDED", "pre_build": "FAILED"}
    assert "unknown key; did you mean max_steps?" in built.log
    assert built.exported["TRAIN_CODE"] == ""
    assert (
        "Would be sent to Slack: ❌ Training 1 failed · it could not begin: the log of the build says"
        in built.log
    )


# The commands run as CodeBuild runs them; make, docker and Python only record their arguments. The steps are
# read from the buildspec, so a new one is tried here, too.
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
