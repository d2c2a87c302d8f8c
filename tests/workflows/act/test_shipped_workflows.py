"""The other shipped workflows, played: compare.yml, release.yml, image.yml and the watchdog."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.git_repository import git
from tests.github_identity import ROLE, github_identity
from tests.integration.conftest import aws, bucket, moto  # noqa: F401 - fixtures
from tests.integration.scripted_aws import REGION, Script, ScriptedAws

from trainyard.image.context.build_context import content_tag
from trainyard.proof import PARTS
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import digests_now

pytestmark = pytest.mark.act

WORKFLOWS = Path(__file__).resolve().parents[3] / ".github" / "workflows"
CALLER = """\
name: theirs
on: pull_request
jobs:
  train:
    runs-on: ubuntu-24.04
    steps:
      - run: cp -R KEPT records
      - uses: UPLOAD
        with: { name: training-9-1, path: records }
  comment:
    needs: train
    uses: ./.github/workflows/comment.yml
"""
JUDGED = """\
on:
  workflow_call:
jobs:
  ci:
    runs-on: ubuntu-24.04
    steps:
      - run: true
"""
# The newest training run trained nothing; the one before was green.
RUNS = """
case "$*" in
  "run list"*) printf '9\\n8\\n' ;;
  "run download 9"*) exit 1 ;;
  "run download 8"*) for to; do :; done; mkdir -p "$to"; cp -R GREEN "$to/training-8-1" ;;
esac
"""
GH = '#!/bin/sh\necho "$*" >> "$RECORD/gh"\n[ "$2" != view ] || { echo "release not found" >&2; exit 1; }\n'
EDITED = "--edit-last --create-if-none --body-file comparison.md"


@pytest.fixture
def branch(stage: Any, tmp_path: Path) -> Callable[..., str]:
    """Commits files, given by name, to a copy of the stage's repository; returns the commit."""
    own = tmp_path / "own"
    shutil.copytree(stage.repository, own, symlinks=True)

    def change(files: dict[str, str], *more: tuple[str, ...]) -> str:
        for name, content in files.items():
            (own / name).write_text(content)
        git(own, "add", "--all")
        git(own, "commit", "--quiet", "--message", "Change")
        for command in more:
            git(own, *command)
        return git(own, "rev-parse", "HEAD")

    return change


def record(folder: Path, *, run_number: int, validation_loss: float) -> Path:
    """The records of a run that was proven."""
    name = f"r{run_number}"
    outcome = {"status": "succeeded", "exit_code": 0, "steps": 5000, "finished": 9.0}
    parts = [{"name": part, "passed": True, "evidence": ""} for part in PARTS]
    proof = {"proven": True, "parts": parts, "time": 9.0, "run_id": name, "finished": 9.0}
    (folder / "report").mkdir(parents=True)
    run = {"run_id": name, "outcome": outcome | {"validation_loss": validation_loss}}
    (folder / "run.json").write_text(json.dumps(run))
    proof |= {"run_number": run_number, "records": digests_now(RunDirectory(folder))}
    (folder / "report" / "proof.json").write_text(json.dumps(proof))
    return folder


def record_gh(folder: Path, green: Path) -> None:
    """A gh that has the records of the last green run, and records its calls."""
    program = folder / "programs" / "gh"
    runs = RUNS.replace("GREEN", str(green))
    program.write_text(GH.replace("$*", "$* $(cat comparison.md 2>/dev/null)") + runs)
    program.chmod(0o755)


def test_any_repository_compares_the_training_of_a_pull_request_with_its_base(
    stage: Any, branch: Callable[..., str], tmp_path: Path
) -> None:
    [upload] = {*re.findall(r"uses: (actions/upload-artifact@\S+)", (WORKFLOWS / "compare.yml").read_text())}
    kept = record(tmp_path / "head", run_number=9, validation_loss=1.0)
    branch({".github/workflows/theirs.yml": CALLER.replace("UPLOAD", upload).replace("KEPT", str(kept))})
    record_gh(tmp_path, record(tmp_path / "green", run_number=8, validation_loss=1.1))
    side = {"repo": {"full_name": "stage/trainyard"}}
    played = replace(stage, repository=tmp_path / "own").play(
        "pull_request",
        payload={"number": 57, "pull_request": {"number": 57, "base": side, "head": side}},
        environment={"GITHUB_REPOSITORY": "stage/trainyard", "GITHUB_BASE_REF": "main"},
        workflow="theirs.yml",
        job="comment",
    )
    assert played.green, played.log
    listed, _, comment = (played.record / "gh").read_text().partition("pr comment ")
    # act has the called one's name
    assert re.search("run list --workflow .+ --branch main --status success", listed)
    assert comment.startswith(f"57 {EDITED} ### Compared: run 8 ")
    assert "| validation loss | 1.10 | 1.00 | −9.1 % |" in comment


def test_both_sides_are_trained_and_the_difference_is_in_one_comment(
    stage: Any, branch: Callable[..., str], tmp_path: Path
) -> None:
    configs = tmp_path / "own" / "configs"
    tiny = (configs / "tiny.yaml").read_text().replace("smoke.yaml", "usual.yaml")
    base = branch({"configs/usual.yaml": (configs / "smoke.yaml").read_text(), "configs/smoke.yaml": tiny})
    head = branch(
        {"configs/smoke.yaml": tiny.replace("max_steps: 12", "max_steps: 12\n  learning_rate: 1.0e-9")}
    )
    record_gh(tmp_path, record(tmp_path / "green", run_number=8, validation_loss=1.1))
    side = {"repo": {"full_name": "stage/trainyard"}}
    pull = {"number": 57, "base": {"sha": base, "ref": "main", **side}, "head": {"sha": head, **side}}
    played = replace(stage, repository=tmp_path / "own").play(
        "pull_request",
        payload={"number": 57, "pull_request": pull, "repository": {"full_name": "stage/trainyard"}},
        environment={"PYTHONPATH": "src", "GITHUB_REPOSITORY": "stage/trainyard"},
        workflow="compare.yml",
        job="comment",
    )
    assert played.green, played.log
    assert f"(`{base[:7]}`) → " in played.summary and f"(`{head[:7]}`)" in played.summary
    assert "The weights after 40 steps are different." in played.summary
    assert "learning\\_rate" in played.summary and "1e-09" in played.summary
    asked = (played.record / "gh").read_text()
    listed, comment, body = asked.partition("pr comment ")
    steps = ["run list", "run download 9", "run download 8"]
    assert [line.split(" --")[0] for line in listed.splitlines()] == steps
    assert (comment + body).startswith(f"pr comment 57 {EDITED} ### Compared")
    assert "| last green run 8 |" in body
    assert re.search(r"^\| validation loss \|.* 1\.10 \|$", body, re.M)
    assert (played.record / "upload-artifact").read_text() == "comparison 30\n"


def test_a_tag_is_checked_built_attested_and_published(
    stage: Any, branch: Callable[..., str], tmp_path: Path
) -> None:
    log = (tmp_path / "own" / "CHANGELOG.md").read_text()
    branch(
        {
            # ci.yml has tests of its own; here it is only called.
            ".github/workflows/ci.yml": JUDGED,
            "CHANGELOG.md": re.sub(r"^## (\S+), unreleased", r"## \1, 2026-11-21", log, flags=re.M),
            ".gitattributes": ".venv export-ignore\n",
        },
        ("tag", "v0.1.0"),
        ("update-ref", "refs/remotes/origin/master", "HEAD"),
    )
    program = tmp_path / "programs" / "gh"
    program.write_text(GH)
    program.chmod(0o755)
    played = replace(stage, repository=tmp_path / "own").play(
        "push",
        payload={
            "ref": "refs/tags/v0.1.0",
            "repository": {"full_name": "stage/trainyard", "default_branch": "master"},
        },
        workflow="release.yml",
        job="publish",
    )
    assert played.green, played.log
    dist = played.record / "artifacts" / "release" / "dist"
    names = sorted(path.name for path in dist.iterdir() if path.name != ".gitignore")  # uv writes it
    assert names[0] == "SHA256SUMS"
    assert [name.rpartition("0.1.0")[2] for name in names[1:]] == ["-py3-none-any.whl", ".tar.gz"]
    assert (played.record / "attested").read_text() == (dist / "SHA256SUMS").read_text()
    asked = (played.record / "gh").read_text().splitlines()
    assert [line.split()[1] for line in asked] == ["view", "create", "repos/{owner}/{repo}/releases/latest"]
    assert "dist/SHA256SUMS --verify-tag" in asked[1]


MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
FILE = "docker/fsdp/Dockerfile"


def test_an_image_is_built_in_aws_and_told_in_slack_and_summary(
    stage: Any,
    aws: ScriptedAws,  # noqa: F811 - the fixture
    bucket: str,  # noqa: F811 - the fixture
) -> None:
    digest = f"sha256:{hashlib.sha256(b'').hexdigest()}"  # moto's, for a manifest without a configuration
    ecr, name = aws.client("ecr"), f"team/t{time.time_ns()}"
    ecr.create_repository(repositoryName=name)

    def push() -> None:
        tag = content_tag(aws.builds[0].variables["CONTENT"])
        answer = ecr.put_image(repositoryName=name, imageManifest=json.dumps(MANIFEST), imageTag=tag)
        assert answer["image"]["imageId"]["imageDigest"] == digest

    aws.scripts = [Script(at_end=push, exported={"IMAGE_DIGEST": digest})]
    variables = {"TRAINYARD_IMAGE_ROLE": ROLE, "TRAINYARD_SOURCE_BUCKET": bucket}
    variables |= {"TRAINYARD_AWS_REGION": REGION, "TRAINYARD_IMAGE_REPOSITORY": name}
    given = {"AWS_ENDPOINT_URL": aws.url, "AWS_EC2_METADATA_DISABLED": "true"}
    with github_identity() as identity:  # moto's STS takes its tokens
        own = {key: value for key, value in identity.variables().items() if key.startswith("ACTIONS_ID")}
        played = stage.play(
            "workflow_dispatch",
            inputs={"dockerfile": FILE, "level": "full", "tags": "git-sha"},
            workflow="image.yml",
            job="build",
            variables=variables,
            environment={**own, **given},
        )
    assert set(identity.calls) == {"oidc"}
    assert played.green, played.log
    (build,) = aws.builds
    assert [build.variables[key] for key in ("IMAGE", "DOCKERFILE", "LEVEL", "TAGS")] == [
        *(name, FILE, "full", "git-sha")
    ]
    assert "Built, checked and pushed" in played.summary
    assert digest in played.summary
    (message,) = played.messages
    assert json.loads(message)["text"] == f"✅ Image {name} built, checked and pushed"
    assert digest in message


LABELS = [{"name": "self-hosted"}, {"name": "gpu"}]
OFFLINE = {"name": "gpu-1", "status": "offline", "busy": False, "labels": LABELS}


WATCHED = {"TRAINYARD_WATCH": "on"}


def test_a_runner_that_went_away_is_red_with_a_message(stage: Any) -> None:
    stage.github.answers.update({"/actions/runners?": {"runners": [OFFLINE]}})
    played = stage.play("schedule", workflow="watch_runners.yml", job="notify", variables=WATCHED)
    assert played.exit_code == 1
    assert played.steps["Check"] == "failure", played.log
    assert played.steps["Notify Slack"] == "success", played.log
    assert "❌ GPU runner gpu-1 is offline" in played.summary
    [message] = played.messages
    assert "gpu-1 is offline" in message
    assert played.dispatched == []
