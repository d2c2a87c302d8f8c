"""Images built in AWS: moto with a scripted CodeBuild, by the script as people call it."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.integration.scripted_aws import ACCOUNT, REGION, Script, ScriptedAws
from tests.scripts.conftest import Call, require_success
from tests.waiting import wait_for

from trainyard.image.context.build_context import checked_tag
from trainyard.image.release.check_levels import LEVELS

pytestmark = pytest.mark.usefixtures("without_library")
ROOT = Path(__file__).resolve().parents[2]
MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}


@pytest.fixture
def run(aws: ScriptedAws, bucket: str, context: Path, monkeypatch: pytest.MonkeyPatch, called: Call) -> Call:
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    return lambda *words: called("image build", *line(context, bucket, *words)[2:])


@pytest.fixture
def check(aws: ScriptedAws, bucket: str, monkeypatch: pytest.MonkeyPatch, called: Call) -> Call:
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    return lambda *words: called("image check", "--every", "0.02s", "--source-bucket", bucket, *words)


def line(context: Path, bucket: str, *words: str) -> list[str]:
    script = [sys.executable, str(ROOT / "scripts" / "build_image.py"), "--context", str(context)]
    return [*script, "--source-bucket", bucket, "--every", "0.02s", *words]


def pushed(aws: ScriptedAws, repository: str, tag: Callable[[], str], mark: str = "1") -> str:
    """Put an image into moto's ECR, as the build would push it; return its digest."""
    ecr = aws.client("ecr")
    if repository not in [one["repositoryName"] for one in ecr.describe_repositories()["repositories"]]:
        ecr.create_repository(repositoryName=repository)
    manifest = json.dumps(MANIFEST | {"annotations": {"mark": mark}})
    answer = ecr.put_image(repositoryName=repository, imageManifest=manifest, imageTag=tag())
    return str(answer["image"]["imageId"]["imageDigest"])


def planned(run: Call, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("--dry-run", "--json", *words).stdout)["builds"][0]
    return found


def test_a_build_sends_the_source_once_and_ends_with_the_digest_that_ecr_holds(
    aws: ScriptedAws, run: Call, context: Path, bucket: str
) -> None:
    plan = planned(run)
    digest = pushed(aws, context.name, lambda: "early")

    def at_end() -> None:
        pushed(aws, context.name, lambda: plan["tag"])
        pushed(aws, context.name, lambda: f"git-{'a' * 12}-{plan['content'][:8]}")
        pushed(aws, context.name, lambda: checked_tag("full", plan["tag"], digest))

    aws.scripts = [Script(exported={"IMAGE_DIGEST": digest}, at_end=at_end)]
    done = run("--json", "--project", "images", "--level", "full", "--tags", "git-sha", "--commit", "a" * 40)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["digest"] == digest
    assert data["image"] == f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{context.name}@{digest}"
    for said in ("phase PROVISIONING succeeded in 1 s", "phase BUILD succeeded"):
        assert f"{context.name} | {said}" in done.stderr
    assert "GetLogEvents" not in aws.calls
    (build,) = aws.builds
    assert build.request["projectName"] == "images"
    assert build.variables["TASK"] == "image"
    assert (build.variables["LEVEL"], build.variables["TAGS"]) == ("full", "git-sha")
    assert build.variables["CONTENT"] == plan["content"]
    place = build.request["sourceLocationOverride"]
    body = aws.client("s3").get_object(Bucket=bucket, Key=place.removeprefix(f"{bucket}/"))["Body"].read()
    names = set(zipfile.ZipFile(BytesIO(body)).namelist())
    assert {".image-context/a.txt", ".image-context/Dockerfile", "buildspec.yml"} <= names
    assert build.variables["CONTEXT"] == ".image-context"

    again = require_success(run("--json"))
    assert json.loads(again.stdout)["built"] is False
    assert json.loads(again.stdout)["digest"] == digest
    assert len(aws.builds) == 1

    aws.scripts = [Script(exported={"IMAGE_DIGEST": digest})]
    assert run("--rebuild").returncode == 0
    assert len([c for c in aws.calls if c == "StartBuild"]) == 2


def answers(image: str, level: str, *, spec: bytes = b"", **changed: bool | None) -> str:
    """Return what the buildspec exports about the check of an image."""
    digest = hashlib.sha256(spec or (ROOT / "buildspec.yml").read_bytes()).hexdigest()
    found = dict.fromkeys(LEVELS[level], True) | changed
    return json.dumps({"buildspec": digest, "image": image, "level": level, "answers": found})


def test_a_check_in_aws_has_a_source_of_its_own_and_its_flags(
    aws: ScriptedAws, bucket: str, check: Call
) -> None:
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/trainer@sha256:{'a' * 64}"
    aws.scripts = [Script(exported={"IMAGE_CHECK": answers(image, "quick")})]
    require_success(check("--image", image, "--level", "quick", "--cpu", "--efa", "--json", "--gpus"))
    (build,) = aws.builds
    assert (build.variables["TASK"], build.variables["IMAGE_URI"]) == ("check", image)
    assert build.variables["CHECK_FLAGS"] == "--cpu --efa --gpus"
    assert build.request["environmentTypeOverride"] == "LINUX_GPU_CONTAINER"
    assert build.request["sourceTypeOverride"] == "S3"
    key = build.request["sourceLocationOverride"].removeprefix(f"{bucket}/")
    body = aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    names = set(zipfile.ZipFile(BytesIO(body)).namelist())
    assert {"buildspec.yml", "Makefile", "scripts/check_image.py", "docker/probe/container_probe.py"} <= names


def test_a_check_in_aws_is_green_only_by_its_own_answers(
    aws: ScriptedAws, run: Call, check: Call, context: Path
) -> None:
    """Each end of a build that succeeded; both commands that check an image in AWS read the same answers."""
    tag = planned(run)["tag"]
    digest = pushed(aws, context.name, lambda: tag)
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{context.name}@{digest}"
    right = answers(image, "standard")
    ends = {
        "right": (right, 0, ""),
        "not known": (answers(image, "standard", versions=None), 0, ""),
        "missing": ("", 1, "exported no IMAGE_CHECK"),
        "nothing": ("{}", 1, "exported no IMAGE_CHECK"),
        "no answers": (right.partition(', "answers"')[0] + "}", 1, "these checks failed: any"),
        "a list": ("[]", 1, "exported no IMAGE_CHECK"),
        "a key twice": (right[:-1] + ', "answers": {}}', 1, "exported no IMAGE_CHECK"),
        "other image": (answers(f"{image[:-1]}z", "standard"), 1, "checked by another image"),
        "other buildspec": (answers(image, "standard", spec=b"0.2"), 1, "checked by another buildspec"),
        "lower level": (answers(image, "quick"), 1, "checked by another level, quick"),
        "failed": (answers(image, "standard", torch=False), 1, "these checks failed: torch"),
    }
    wrong = []
    for end, (exported, code, says) in ends.items():
        aws.scripts = [Script(exported={"IMAGE_CHECK": exported} if exported else {}) for _ in range(2)]
        commands = {"check": check("--image", image)}
        commands |= {"build": run()} if end in ("right", "missing", "lower level", "failed") else {}
        for command, done in commands.items():
            if done.returncode != code or says not in done.stderr:
                wrong.append(f"{command}, {end}: {done.returncode} {done.stderr}")
    assert not wrong, "\n".join(wrong)
    assert {build.variables["TASK"] for build in aws.builds} == {"check"}


def test_a_base_that_may_move_is_never_taken_for_built(aws: ScriptedAws, run: Call, context: Path) -> None:
    (context / "Dockerfile").write_text("FROM python:3.11\nUSER 1\n")
    digest = pushed(aws, context.name, lambda: planned(run)["tag"])
    aws.scripts = [Script(exported={"IMAGE_DIGEST": digest})]
    done = require_success(run())
    assert "python:3.11 is not pinned by digest" in done.stderr
    assert len(aws.builds) == 1


@pytest.mark.parametrize(
    ("exported", "says"),
    [({}, "exported no IMAGE_DIGEST"), ({"IMAGE_DIGEST": "sha256:" + "e" * 64}, "ECR holds no image")],
)
def test_a_build_that_succeeded_without_an_image_is_no_success(
    aws: ScriptedAws, run: Call, context: Path, exported: dict[str, str], says: str
) -> None:
    """It is none even if an earlier build left an image of the same content."""
    plan = planned(run)
    pushed(aws, context.name, lambda: plan["tag"])
    aws.scripts = [Script(exported=exported)]
    done = run("--rebuild")
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert done.stdout == ""


# The course of the first build, the exit code after three of it, the number of starts.
PHASES = ("INSTALL", "PRE_BUILD", "BUILD", "POST_BUILD", "UPLOAD_ARTIFACTS")
BROKE: dict[str, Any] = {"message": "Error while executing command", "lines": ("it broke",)}
ENDS = [
    *((Script("FAILED", one, **BROKE), 1, 1) for one in PHASES),
    (Script("FAULT", "PROVISIONING"), 4, 3),
    (Script("FAILED", "PROVISIONING", "CLIENT_ERROR", "BUILD_CONTAINER_UNABLE_TO_PULL_IMAGE"), 4, 3),
    (Script("FAILED", "BUILD", "FAULT"), 1, 3),
    (Script("TIMED_OUT", "QUEUED"), 5, 3),
    (Script("TIMED_OUT", "BUILD"), 5, 1),
    (Script("STOPPED", "BUILD"), 1, 1),
    (Script("FAILED", "BUILD", lines=("connection reset by peer",)), 1, 1),
    (Script("FAILED", "DOWNLOAD_SOURCE", "CLIENT_ERROR", "AccessDenied"), 4, 1),
]


def test_only_a_fault_of_codebuild_is_tried_again_and_three_times_at_most(
    aws: ScriptedAws, run: Call, context: Path
) -> None:
    digest = pushed(aws, context.name, lambda: "other")
    wrong: list[object] = []
    for script, code, starts in ENDS:
        aws.builds.clear()
        aws.scripts = [script] * 3
        done = run()
        says = [f"{script.status.lower().replace('_', ' ')} in {script.fails_in}", script.message]
        says += ["https://log", *script.lines, *(["after 3 attempts"] if starts == 3 else [])]
        is_said = all(one in done.stderr for one in says)
        if (done.returncode, len(aws.builds), is_said) != (code, starts, True):
            wrong.append((script, done.returncode, len(aws.builds), done.stderr))
        if starts == 3:
            aws.scripts = [script, Script(exported={"IMAGE_DIGEST": digest})]
            done = run()
            tokens = {build.request["idempotencyToken"] for build in aws.builds[3:]}
            wrong += [] if (done.returncode, len(tokens)) == (0, 2) else [(script, done)]
    assert not wrong


def test_several_images_are_built_one_after_the_other(
    aws: ScriptedAws, run: Call, context: Path, tmp_path: Path
) -> None:
    digests = {}
    for name in ("one", "two"):
        (context / name).mkdir()
        (context / name / "Dockerfile").write_text(f"FROM scratch\n# {name}\nCOPY a.txt /\n")
        digests[name] = pushed(aws, name, lambda: "other", mark=name)
    pushed(aws, "one", lambda: "x", mark="two")
    aws.scripts = [Script(exported={"IMAGE_DIGEST": digests["two"]}) for _ in range(2)]
    files = [str(context / name / "Dockerfile") for name in ("one", "two")]
    done = require_success(run("--dockerfile", files[0], "--dockerfile", files[1], "--json"))
    assert {b["image"] for b in json.loads(done.stdout)["builds"]} == {"one", "two"}
    assert {b.variables["DOCKERFILE"] for b in aws.builds} == {"one/Dockerfile", "two/Dockerfile"}


def test_an_interrupt_stops_the_build(aws: ScriptedAws, bucket: str, context: Path) -> None:
    pushed(aws, context.name, lambda: "other")
    aws.scripts = [Script(hangs=True)]
    environment = {**os.environ, **aws.environment()}
    process = warm_start.Popen(line(context, bucket), stderr=subprocess.PIPE, text=True, env=environment)
    try:
        wait_for(lambda: "BatchGetBuilds" in aws.calls, "the first poll")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "Interrupted." in said
    assert aws.builds[0].stopped


def sent_variables(aws: ScriptedAws) -> dict[str, tuple[str, str]]:
    given = aws.builds[-1].request["environmentVariablesOverride"]
    return {one["name"]: (one["value"], one["type"]) for one in given}


def test_a_tag_of_ones_own_and_secrets_are_sent_by_name(run: Call, aws: ScriptedAws, context: Path) -> None:
    (context / "Dockerfile").write_text(
        "ARG BASE=scratch\nFROM ${BASE}\nRUN --mount=type=secret,id=pip true\nCOPY a.txt /\nUSER 1\n"
    )
    (context / "key").write_text("s3cret-value")
    refused = run("--secret", f"id=pip,src={context}/key")
    assert refused.returncode == 2
    assert "--secret id=pip: " in refused.stderr and "a name that begins with trainyard/" in refused.stderr
    assert not aws.builds
    digest = pushed(aws, context.name, lambda: "early")
    aws.scripts = [Script(exported={"IMAGE_DIGEST": digest})]
    named = ("--secret", "id=pip,secretsmanager=trainyard/pip")
    base = "nvcr.io/nvidia/pytorch:26.01-py3"
    require_success(run("--image-tag", "demo", "--base-image", base, *named))
    sent = sent_variables(aws)
    assert sent["IMAGE_TAGS"] == ("demo", "PLAINTEXT")
    assert sent["BUILD_SECRETS"] == ("id=pip,env=BUILD_SECRET_1", "PLAINTEXT")
    assert sent["BUILD_SECRET_1"] == ("trainyard/pip", "SECRETS_MANAGER")
    assert sent["BUILD_ARGS"] == (f"BASE={base}", "PLAINTEXT")
    assert "s3cret-value" not in json.dumps(aws.builds[-1].request)


def test_the_layer_cache_is_used_where_its_repository_is(run: Call, aws: ScriptedAws, context: Path) -> None:
    digest = pushed(aws, context.name, lambda: "early")
    ecr = aws.client("ecr")
    uri = ecr.create_repository(repositoryName=f"{context.name}-cache")["repository"]["repositoryUri"]
    aws.scripts = [Script(exported={"IMAGE_DIGEST": digest})] * 2
    for words, expected in (((), (f"{uri}:latest", "PLAINTEXT")), (("--cache", "none", "--rebuild"), None)):
        assert run(*words).returncode == 0
        assert sent_variables(aws).get("CACHE") == expected


def test_a_dry_run_lints_and_refuses_what_the_build_would_refuse(
    run: Call, aws: ScriptedAws, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    baked = "FROM scratch\nCOPY a.txt /\nENV AWS_SECRET_ACCESS_KEY=abcdefgh\nUSER 1\n"
    for text, code, said in (
        ("FROM scratch\nCOPY a.txt /\nUSER 1\n", 0, "nothing would break"),
        (baked, 1, "AWS_SECRET_ACCESS_KEY"),
        ("FROM scratch\nCOPY absent.txt /\nUSER 1\n", 2, "absent.txt: the Dockerfile copies it"),
    ):
        (context / "Dockerfile").write_text(text)
        done = run("--dry-run")
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not aws.builds


def test_files_that_git_does_not_track_are_named(run: Call, context: Path) -> None:
    git = ["git", "-C", str(context), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "Dockerfile"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    refused = run()
    assert refused.returncode == 2
    assert "a.txt: the Dockerfile copies it, but it is not sent" in refused.stderr


def test_a_wrong_tag_is_refused_before_anything_is_sent(run: Call, aws: ScriptedAws) -> None:
    wrong = {"a b": "is not a tag", "git-1": "are reserved", "-x": "is not a tag"}
    for name, said in wrong.items():
        done = run(f"--image-tag={name}")
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "an image has one version" in run("--image-tag", "1.0.0", "--version", "2.0.0").stderr
    assert not aws.builds
