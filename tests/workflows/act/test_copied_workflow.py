"""training_ci.yml in a repository of somebody else, by the five steps of docs/workflows.md."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.git_repository import git
from tests.workflows.act.conftest import KEY, ROOT, SECRET, Bucket, Stage, commit

pytestmark = pytest.mark.act
TRAINER = ROOT / "tests" / "integration" / "any_program" / "plain_trainer.py"
PROGRAM = """\
recipe: command
program:
  command: [python3, train.py, --steps, "6"]
  lock: requirements.txt
  data: [data/tokens.txt]
  checkpoints: out/checkpoint-*
"""


@pytest.fixture
def theirs(tmp_path: Path, repository: Path) -> Path:
    """A repository with a training script, after the five steps."""
    theirs = tmp_path / "their work"
    workflows, action = theirs / ".github" / "workflows", theirs / ".github" / "actions" / "setup"
    workflows.mkdir(parents=True)
    action.mkdir(parents=True)
    for name in ("training_ci.yml", "deploy_eks.yml", "watch_eks.yml"):  # step 1
        text = (repository / ".github" / "workflows" / name).read_text()
        workflows.joinpath(name).write_text(text)
    text = (ROOT / "docs" / "examples" / "setup_action.yml").read_text()  # step 2
    assert text.count("CHANGE") == 3
    (action / "action.yml").write_text(text.replace("python3 -m pip install --requirement", "cat"))
    (theirs / "configs").mkdir()  # step 3
    (theirs / "configs" / "training_configuration.yaml").write_text(PROGRAM)
    (theirs / ".gitignore").write_text(".venv/\n.trainyard/\nruns/\nout/\n")
    (theirs / "data").mkdir()
    (theirs / "data" / "tokens.txt").write_text("1 2 3")
    (theirs / "train.py").write_text(
        TRAINER.read_text().replace("parser.parse_args()", "parser.parse_known_args()[0]")
    )
    (theirs / "requirements.txt").write_text("# nothing\n")
    git(theirs, "init", "--quiet", "--initial-branch=main")
    commit(theirs)
    return theirs


def test_five_steps_train_somebodys_program_in_their_repository(
    stage: Stage, release: Path, theirs: Path, bucket: Bucket
) -> None:
    somebody: Any = dataclasses.replace(stage, repository=theirs)
    played = somebody.play(
        "push",  # step 5
        variables={"TRAINYARD_STORE": "s3://ml-runs/theirs", "TRAINYARD_RUNS_DIRECTORY": "runs"},  # step 4
        environment={
            "AWS_ENDPOINT_URL": bucket.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "OTHER_REPOSITORY": str(release),
            "PYTHONPATH": "",
        },
    )
    assert played.green, played.log
    assert "Trained and proven" in played.summary
    assert any("manifests/" in key for key in bucket.keys("theirs/"))
    assert len(played.messages) == 2
