"""train.yml and action.yml in a repository of somebody else: the examples of docs, played on a push."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.git_repository import git
from tests.github_identity import github_identity
from tests.workflows.act.conftest import BUCKET, KEY, OURS, ROOT, SECRET, Bucket, Stage, commit, lowered

pytestmark = pytest.mark.act
TRAINER = ROOT / "tests" / "integration" / "any_program" / "plain_trainer.py"
CALLER, ACTION = (ROOT / "docs" / "examples" / name for name in ("training.yml", "minimal_training.yml"))
EXAMPLE_ROLE = "arn:aws:iam::123456789012:role/training"
UV = ROOT / ".uv" / "bin" / "uv"
CONFIGURATION = """\
recipe: command
program:
  command: [.venv/bin/python, train.py, --output_dir, out, --num_train_epochs, "3"]
  data: [data]
  checkpoints: out/checkpoint-*
  resume: [--resume_from_checkpoint, "{checkpoint}"]
"""
EVALUATION = """\
evaluation:
  command: [echo, '{"accuracy": 0.9}']
  thresholds: {accuracy: ">= 0.8"}
"""
PROJECT = '[project]\nname = "theirs"\nversion = "1"\nrequires-python = ">=3.11"\n'


def adapted_caller(prefix: str) -> str:
    """The example of train.yml as somebody adapts it, in lines marked CHANGE."""
    text = CALLER.read_text()
    assert text.count("CHANGE") == 7
    name, _, commit_of_ours = OURS.partition("@")
    text = text.replace("OWNER/trainyard", name).replace("COMMIT #", f"{commit_of_ours} #")
    text = text.replace("s3://BUCKET/PREFIX", f"s3://{BUCKET}/{prefix}")
    text = text.replace("--locked", "--locked --offline")
    return "".join(f"{line}\n" for line in text.splitlines() if "role:" not in line)


def adapted_action(prefix: str) -> str:
    """The example of action.yml with another runner and another store."""
    text = ACTION.read_text()
    assert text.count("CHANGE") >= 5
    lines = ["    runs-on: [self-hosted]" if "runs-on:" in line else line for line in text.splitlines()]
    return lowered("\n".join(lines).replace("s3://BUCKET/PREFIX", f"s3://{BUCKET}/{prefix}") + "\n")


def somebody(stage: Stage, workflow: str, files: Mapping[str, str]) -> Stage:
    """A repository with a training script and the example as its workflow, and nothing else of ours."""
    theirs = stage.folder / "their work"
    script = TRAINER.read_text().replace("parser.parse_args()", "parser.parse_known_args()[0]")
    common = {"data/tokens.txt": "1 2 3", "train.py": script, ".gitignore": ".venv\nout/\n"}
    for name, text in {**common, ".github/workflows/training.yml": workflow, **files}.items():
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text(text)
    if "pyproject.toml" in files:
        subprocess.run([UV, "lock", "--offline", "--quiet"], cwd=theirs, check=True)
    git(theirs, "init", "--quiet", "--initial-branch=main")
    commit(theirs)
    return dataclasses.replace(stage, repository=theirs)


def test_the_called_workflow_trains_stores_and_proves_somebodys_program(stage: Stage, bucket: Bucket) -> None:
    """As in a container, the checkout is another user's, which git refuses; GitHub refuses the artifact."""
    files = {"trainyard.yaml": CONFIGURATION, "pyproject.toml": PROJECT}
    theirs = somebody(stage, adapted_caller(stage.folder.name), files)
    environment = dict.fromkeys(("GIT_TEST_ASSUME_DIFFERENT_OWNER", "UPLOAD_REFUSED"), "1")
    environment |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    environment |= {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "PYTHONPATH": "",
        "PATH": f"{UV.parent}:{stage.path}",
    }
    played = theirs.play("push", workflow="training.yml", job="train", environment=environment, is_fresh=True)
    assert played.green, played.log
    assert "Trained and proven" in played.summary
    assert any("manifests/" in key for key in bucket.keys(f"{stage.folder.name}/"))
    assert len(played.messages) == 2, "Slack hears of the start and of the end"


def test_the_action_trains_stores_and_proves_somebodys_program(
    stage: Stage, bucket: Bucket, release: Path
) -> None:
    """With a role from stand-ins of GitHub's endpoint and of STS on loopback."""
    files = {
        "trainyard.yaml": CONFIGURATION + EVALUATION,
        "requirements.txt": "colorama==0.4.6 ; sys_platform == 'win32'\n",
    }
    theirs = somebody(stage, adapted_action(stage.folder.name), files)
    theirs = dataclasses.replace(theirs, actions={"OWNER/trainyard@COMMIT": release})
    with github_identity(role=EXAMPLE_ROLE, keys=(KEY, SECRET)) as identity:
        step = identity.variables()
        environment = {name: step[name] for name in step if name.startswith(("ACTIONS_", "AWS_"))}
        environment |= {"AWS_ENDPOINT_URL": bucket.endpoint, "PYTHONPATH": ""}
        played = theirs.play(
            "push", workflow="training.yml", job="train", environment=environment, is_fresh=True
        )
        assert "sts" in identity.calls, played.log
    assert played.green, played.log
    keys = bucket.keys(f"{stage.folder.name}/")
    assert any(key.endswith("manifest.json") for key in keys), keys
    assert "proven" in played.summary
    assert "accuracy" in played.summary
    assert len(played.messages) == 2, "Slack hears of the start and of the end"
    assert list((played.record / "artifacts" / "training").rglob("run.json")), "comment.yml compares them"


def test_the_example_of_the_action_is_short_and_valid(tmp_path: Path) -> None:
    text = ACTION.read_text()
    assert len(text.splitlines()) <= 60
    # The tag of an owner that nobody has yet; people are advised to pin a commit.
    pinned = text.replace("trainyard@COMMIT", f"trainyard@{'0' * 40}")
    (example := tmp_path / "training.yml").write_text(pinned)
    for tool in ("actionlint", "zizmor"):
        found = shutil.which(tool, path=str(Path(sys.executable).parent))
        if found is not None:
            options = ["--offline", "--persona=regular"] if tool == "zizmor" else []
            line = [found, *options, str(example)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
