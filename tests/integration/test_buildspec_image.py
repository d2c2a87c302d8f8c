"""The buildspec's tasks `image` and `check`: its commands really run, with stand-ins for docker and oras."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.scripted_aws import ScriptedAws
from tests.workflows.act.test_buildspec import Built, build

from trainyard.gateways.images.codebuild import BuildState
from trainyard.image.building.aws_build import exported_answers
from trainyard.image.release.check_levels import LEVELS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
Start = Callable[..., Built]


@pytest.fixture
def machine(tmp_path: Path, stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone, as CodeBuild unpacks one, with a small context, and the stand-ins on the PATH."""
    folder = tmp_path / "machine"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, timeout=60)
    for name in ("buildspec.yml", "scripts", "src", "docker"):  # as they are here, committed or not
        target = folder / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, dirs_exist_ok=True)
        else:
            shutil.copy2(ROOT / name, target)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "project").mkdir()
    (folder / "project" / "Dockerfile").write_text("FROM scratch\nARG FLAVOUR=a\nCOPY a.txt /\nUSER 1000\n")
    (folder / "project" / "a.txt").write_text("hello")
    subprocess.run(["git", "-C", str(folder), "add", "-f", "project"], check=True, timeout=60)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    return folder


@pytest.fixture
def repository(aws: ScriptedAws) -> str:
    name = f"team/trainer-{time.time_ns()}"
    aws.client("ecr").create_repository(repositoryName=name, imageTagMutability="IMMUTABLE")
    return name


@pytest.fixture
def start(aws: ScriptedAws, machine: Path, repository: str) -> Start:
    def run(**variables: str) -> Built:
        given = {"TASK": "image", "IMAGE": repository, "CONTEXT": "project", "COMMIT": "a" * 40}
        given |= {
            "DOCKERFILE": "Dockerfile",
            "CODEBUILD_BUILD_NUMBER": "7",
            "TAGS": "git-sha",
            "LEVEL": "standard",
        }
        return build(machine, **aws.environment(), **given | variables)

    return run


def docker_calls(machine: Path) -> list[list[str]]:
    path = machine / "docker-calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def named(machine: Path) -> set[str]:
    return {words[0] for words in docker_calls(machine)} - {"info", "buildx", "image"}


def test_an_image_is_built_checked_pushed_and_exported_with_its_names_and_secrets(
    start: Start, machine: Path, aws: ScriptedAws, repository: str
) -> None:
    """As `image build` sends `--image-tag demo --secret …`; CodeBuild has set the variables."""
    (machine / "project" / "Dockerfile").write_text(
        "FROM nvcr.io/nvidia/pytorch:26.01-py3\nARG FLAVOUR=a\nCOPY a.txt /\nUSER 1000\n"
        "RUN --mount=type=secret,id=pip,required=true pip install x\n"
    )
    secret = {"BUILD_SECRETS": "id=pip,env=BUILD_SECRET_1", "BUILD_SECRET_1": "s3cret-value"}
    built = start(BUILD_ARGS="FLAVOUR=b", IMAGE_TAGS="demo llama32-1b-v1", STAND_IN_BUILDX="yes", **secret)
    assert list(built.status.values()) == ["SUCCEEDED"] * 4, built.log
    tags = aws.tags(repository)
    (digest,) = {held for tag, held in tags.items() if tag.startswith(f"git-{'a' * 12}-")}
    assert built.exported["IMAGE_DIGEST"] == digest == tags["demo"] == tags["llama32-1b-v1"]
    assert built.exported["IMAGE_URI"] == f"{aws.host}/{repository}@{digest}"
    own = {"demo", "llama32"}
    assert {name.partition("-")[0] for name in tags} == {"build", "git", "content", "checked", *own}
    assert {"run", "save", "login", "push"} <= named(machine)
    assert any("--build-arg=FLAVOUR=b" in words for words in docker_calls(machine))
    assert "context: ['Dockerfile', 'a.txt']" in built.log
    assert "train.py" not in built.log
    assert "secret pip: 12 bytes" in built.log
    assert "s3cret-value" not in json.dumps(docker_calls(machine)) + built.log + json.dumps(built.exported)


def test_another_content_than_was_asked_for_is_not_built(start: Start, machine: Path) -> None:
    built = start(CONTENT="0" * 64)
    assert built.status["build"] == "FAILED"
    assert "not the requested" in built.log
    assert "build" not in named(machine)


def test_the_task_check_only_checks(start: Start, machine: Path) -> None:
    built = start(
        TASK="check", IMAGE_URI="registry.example/trainer:1", LEVEL="quick", CHECK_FLAGS="--cpu --efa"
    )
    assert list(built.status.values()) == ["SUCCEEDED"] * 4, built.log
    assert named(machine) == {"pull", "run"}
    (asked,) = [json.loads(words[-1]) for words in docker_calls(machine) if words[0] == "run"]
    assert (asked["cpu"], asked["efa"]) == (True, True)
    state = BuildState("t:1", "SUCCEEDED", (), "", "", "", built.exported)
    spec = (machine / "buildspec.yml").read_bytes()
    answers = exported_answers(state, "registry.example/trainer:1", "quick", spec)
    assert set(answers) == set(LEVELS["quick"])
