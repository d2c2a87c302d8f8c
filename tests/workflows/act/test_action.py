"""action.yml in a repository of somebody else: docs/examples/minimal_training.yml, played on a push."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.git_repository import git
from tests.github_identity import github_identity
from tests.workflows.act.conftest import BUCKET, KEY, ROOT, SECRET, Bucket, Stage, commit, lowered

pytestmark = pytest.mark.act
TRAINER = ROOT / "tests" / "integration" / "any_program" / "plain_trainer.py"
EXAMPLE_ROLE = "arn:aws:iam::123456789012:role/training"
CONFIGURATION = """\
recipe: command
program:
  command: [.venv/bin/python, train.py, --output_dir, out, --num_train_epochs, "3"]
  data: [data]
  checkpoints: out/checkpoint-*
  resume: [--resume_from_checkpoint, "{checkpoint}"]
evaluation:
  command: [echo, '{"accuracy": 0.9}']
  thresholds: {accuracy: ">= 0.8"}
"""
EXAMPLE = ROOT / "docs" / "examples" / "minimal_training.yml"


def changed(text: str, prefix: str) -> str:
    """The example as somebody adapts it: another runner and another store, in lines marked CHANGE."""
    kept, marked = [], 0
    for line in text.splitlines():
        marked += "CHANGE" in line
        if "runs-on:" in line:
            line = "    runs-on: [self-hosted]"
        kept.append(line.replace("s3://BUCKET/PREFIX", f"s3://{BUCKET}/{prefix}"))
    assert marked >= 5
    return lowered("\n".join(kept) + "\n")


@pytest.fixture
def somebody(stage: Stage, tmp_path: Path, release: Path) -> Stage:
    """A repository with a training script and the example as its workflow, and nothing else of ours."""
    theirs = tmp_path / "their work"
    (theirs / ".github" / "workflows").mkdir(parents=True)
    (theirs / "data").mkdir()
    (theirs / "data" / "tokens.txt").write_text("1 2 3")
    (theirs / "train.py").write_text(
        TRAINER.read_text().replace("parser.parse_args()", "parser.parse_known_args()[0]")
    )
    (theirs / "trainyard.yaml").write_text(CONFIGURATION)
    (theirs / "requirements.txt").write_text("colorama==0.4.6 ; sys_platform == 'win32'\n")
    (theirs / ".gitignore").write_text(".venv/\nout/\n")
    (theirs / ".github" / "workflows" / "training.yml").write_text(
        changed(EXAMPLE.read_text(), tmp_path.name)
    )
    git(theirs, "init", "--quiet", "--initial-branch=main")
    commit(theirs)
    return dataclasses.replace(stage, repository=theirs, actions={"OWNER/trainyard@COMMIT": release})


def play(somebody: Stage, bucket: Bucket, **more: Any) -> Any:
    """Play the example with a role from stand-ins of GitHub's endpoint and of STS on loopback."""
    with github_identity(role=EXAMPLE_ROLE, keys=(KEY, SECRET)) as identity:
        step = identity.variables()
        environment = {name: step[name] for name in step if name.startswith(("ACTIONS_", "AWS_"))}
        environment |= {"AWS_ENDPOINT_URL": bucket.endpoint, "PYTHONPATH": ""}
        played = somebody.play(
            "push", workflow="training.yml", job="train", environment=environment, is_fresh=True, **more
        )
        assert "sts" in identity.calls, played.log
        return played


def test_the_example_trains_stores_and_proves_somebodys_program(somebody: Stage, bucket: Bucket) -> None:
    played = play(somebody, bucket)

    assert played.green, played.log
    keys = bucket.keys(f"{somebody.folder.name}/")
    assert any(key.endswith("manifest.json") for key in keys), keys
    assert "proven" in played.summary
    assert "accuracy" in played.summary
    assert len(played.messages) == 2, "Slack hears of the start and of the end"
    assert list((played.record / "artifacts" / "training").rglob("run.json")), "comment.yml compares them"


def test_the_example_is_short_and_valid(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 60
    # The tag of an owner that nobody has yet; people are advised to pin a commit.
    (example := tmp_path / "training.yml").write_text(
        text.replace("trainyard@COMMIT", f"trainyard@{'0' * 40}")
    )
    for tool in ("actionlint", "zizmor"):
        found = shutil.which(tool, path=str(Path(sys.executable).parent))
        if found is not None:
            options = ["--offline", "--persona=regular"] if tool == "zizmor" else []
            done = subprocess.run(
                [found, *options, str(example)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
