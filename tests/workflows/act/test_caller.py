"""train.yml in a repository of somebody else: docs/examples/training.yml, played."""

import dataclasses
import subprocess
from typing import Any

import pytest
from tests.git_repository import git
from tests.workflows.act.conftest import BUCKET, KEY, OURS, ROOT, SECRET, Bucket, Stage, commit

pytestmark = pytest.mark.act
TRAINER = ROOT / "tests" / "integration" / "any_program" / "plain_trainer.py"
EXAMPLE = ROOT / "docs" / "examples" / "training.yml"
CONFIGURATION = """\
recipe: command
program:
  command: [{python}, train.py, --output_dir, out, --num_train_epochs, "3"]
  data: [data]
  checkpoints: out/checkpoint-*
  resume: [--resume_from_checkpoint, "{{checkpoint}}"]
"""
UV = ROOT / ".uv" / "bin" / "uv"
SHAPES = {
    "uv": (".venv/bin/python", "uv sync --locked --offline"),
    "container": ("python3", ""),
}
"""How their packages are installed: the interpreter then, and `setup`."""


def changed(text: str, prefix: str, setup: str) -> str:
    """The example as somebody adapts it, in lines marked CHANGE."""
    name, _, commit_of_ours = OURS.partition("@")
    text = text.replace("OWNER/trainyard", name).replace("COMMIT #", f"{commit_of_ours} #")
    text = text.replace("s3://BUCKET/PREFIX", f"s3://{BUCKET}/{prefix}").replace(
        "uv sync --locked", setup or '""'
    )
    kept = [line for line in text.splitlines() if "role:" not in line]
    assert text.count("CHANGE") == 7
    return "\n".join(kept) + "\n"


def somebody(stage: Stage, shape: str) -> Stage:
    """A repository with a training script and the example as its workflow."""
    theirs, (python, setup) = stage.folder / "their work", SHAPES[shape]
    (theirs / ".github" / "workflows").mkdir(parents=True)
    (theirs / "data").mkdir()
    (theirs / "data" / "tokens.txt").write_text("1 2 3")
    (theirs / "train.py").write_text(
        TRAINER.read_text().replace("parser.parse_args()", "parser.parse_known_args()[0]")
    )
    (theirs / "trainyard.yaml").write_text(CONFIGURATION.format(python=python))
    if shape == "uv":
        (theirs / "pyproject.toml").write_text(
            '[project]\nname = "theirs"\nversion = "1"\nrequires-python = ">=3.11"\n'
        )
        subprocess.run([UV, "lock", "--offline", "--quiet"], cwd=theirs, check=True)
    else:
        (theirs / "requirements.txt").write_text("colorama==0.4.6 ; sys_platform == 'win32'\n")
    (theirs / ".gitignore").write_text(".venv\nout/\n")
    (theirs / ".github" / "workflows" / "training.yml").write_text(
        changed(EXAMPLE.read_text(), stage.folder.name, setup)
    )
    git(theirs, "init", "--quiet", "--initial-branch=main")
    commit(theirs)
    return dataclasses.replace(stage, repository=theirs)


def play(stage: Stage, bucket: Bucket, event: str = "push", **more: Any) -> Any:
    keys = {"AWS_ENDPOINT_URL": bucket.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    environment = keys | {"PYTHONPATH": "", "PATH": f"{UV.parent}:{stage.path}"} | more.pop("environment", {})
    return stage.play(
        event, workflow="training.yml", job="train", environment=environment, is_fresh=True, **more
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_example_trains_stores_and_proves_somebodys_program(
    stage: Stage, bucket: Bucket, shape: str
) -> None:
    """In a container the checkout is another user's, which git refuses; GitHub refuses the artifact."""
    theirs = somebody(stage, shape)
    troubles = dict.fromkeys(("GIT_TEST_ASSUME_DIFFERENT_OWNER", "UPLOAD_REFUSED"), "1")
    played = play(theirs, bucket, environment=troubles if shape == "container" else {})
    assert played.green, played.log
    assert "Trained and proven" in played.summary
    assert any("manifests/" in key for key in bucket.keys(f"{stage.folder.name}/"))
    assert len(played.messages) == 2, "Slack hears of the start and of the end"
