"""Every call of AWS that the image scripts make, and every class of refusal: exit code and named fix.

The scripts run as people call them, against moto behind the scripted server. A call that is new in a script
fails `test_the_calls_of_each_script_are_these` until it is listed here.
"""

import itertools
import json
import re
from pathlib import Path

import pytest
from tests.integration.scripted_aws import REGION, Script, ScriptedAws
from tests.integration.test_build_image import answers
from tests.scripts.conftest import Call

pytestmark = pytest.mark.usefixtures("without_library")
CHECK = ("HeadObject", "PutObject", "StartBuild", "BatchGetBuilds")
CALLS = {
    "image build": ("DescribeRepositories", "GetCallerIdentity", "DescribeImages", *CHECK),
    "image check": CHECK,
    "image push": ("DescribeRepositories", "GetAuthorizationToken", "DescribeImageScanFindings"),
}
REFUSALS: dict[str, tuple[str, str]] = {
    "wrong credentials": ("UnrecognizedClientException", r"does not know these credentials.*--region"),
    "expired session": ("ExpiredTokenException", r"session of these credentials has expired.*aws sso login"),
    "region off": ("OptInRequired", r"the region is off for the account.*AWS\s+Regions.*--region"),
    "denied": ("AccessDeniedException", r"docs/runbooks/permissions\.md#images"),
    "busy": ("ThrottlingException", r"after several attempts.*Try again"),
    "fault": ("InternalServerException", r"after several attempts.*Try again"),
    "unknown code": ("MadeUpException", r"MadeUpException: because of this"),
}
"""A class of refusals -> one code of it, and what its message must say. The exit code is 4 for each."""
HEAD_SAYS = {"wrong credentials": "403", "expired session": "400", "denied": "403", "busy": "503"}
"""A class of refusals -> its status in an answer to HEAD, which has no error code."""
MISSING = {
    ("image build", "DescribeImages"): ("RepositoryNotFoundException", "aws ecr create-repository "),
    ("image build", "PutObject"): ("NoSuchBucket", "--source-bucket"),
    ("image build", "StartBuild"): ("ResourceNotFoundException", "--project-name trainyard"),
    ("image check", "StartBuild"): ("ResourceNotFoundException", "--project-name trainyard"),
    ("image push", "DescribeRepositories"): ("RepositoryNotFoundException", "aws ecr create-repository "),
}
"""A call -> AWS's code for a missing resource, and words of the fix. The exit code is 2 for each."""


@pytest.fixture
def repository(aws: ScriptedAws, context: Path) -> str:
    aws.client("ecr").create_repository(repositoryName=context.name)
    return context.name


@pytest.fixture
def run(
    aws: ScriptedAws,
    context: Path,
    repository: str,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    called: Call,
    stand_ins: None,
) -> Call:
    """Runs a script with working arguments and `words`, without the pauses between botocore's attempts."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(context.parent / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(context.parent / "credentials"))
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    (context.parent / "docker-images.json").write_text(json.dumps({"trainer:1": {}}))
    working = {
        "image build": ["--context", str(context), "--source-bucket", bucket, "--every", "0.01s"],
        "image check": [
            *("--image", f"registry.example/{repository}:1", "--every", "0.01s"),
            *("--source-bucket", bucket),
        ],
        "image push": ["--image", "trainer:1", "--repository", repository],
    }
    working["image push"] += ["--commit", "a" * 40, "--tags", "git-sha"]
    return lambda script, *words: called(script, *working[script], *words)


@pytest.fixture
def good(aws: ScriptedAws, repository: str) -> str:
    """Put an image into ECR, script builds that push it, and return its digest."""
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
    answer = aws.client("ecr").put_image(
        repositoryName=repository, imageManifest=json.dumps(manifest), imageTag="early"
    )
    digest = str(answer["image"]["imageId"]["imageDigest"])
    exported = {
        "IMAGE_DIGEST": digest,
        "IMAGE_CHECK": answers(f"registry.example/{repository}:1", "standard"),
    }
    aws.scripts = [Script(exported=exported) for _ in range(3)]
    return digest


@pytest.mark.parametrize("script", CALLS)
@pytest.mark.usefixtures("good")
def test_the_calls_of_each_script_are_these(aws: ScriptedAws, run: Call, script: str) -> None:
    assert run(script).returncode == 0
    made = {operation for operation in aws.calls if not operation.startswith(("Get Object", "CreateBucket"))}
    assert made == set(CALLS[script])


CLASSES = itertools.cycle(REFUSALS)
EVERY = [
    pytest.param(script, operation, kind, id=f"{script}-{operation}-{kind}")
    for script, operations in CALLS.items()
    for operation in operations
    for kind in (HEAD_SAYS if operation == "HeadObject" else itertools.islice(CLASSES, 2))
]
"""The classes take turns, so that each call meets two (HeadObject four), and each class several calls."""


@pytest.mark.parametrize(("script", "operation", "kind"), EVERY)
@pytest.mark.usefixtures("good")
def test_a_refusal_ends_with_4_and_names_the_fix(
    aws: ScriptedAws, run: Call, script: str, operation: str, kind: str
) -> None:
    code, says = REFUSALS[kind]
    if operation == "HeadObject":
        code = HEAD_SAYS[kind]
        says = {"403": REFUSALS["denied"][1], "503": REFUSALS["fault"][1]}.get(code, says)
    aws.refusals = {operation: [(code, "because of this")] * 40}
    said = run(script)
    assert said.returncode == 4, said.stderr
    assert said.stdout == ""
    text = " ".join(said.stderr.split())
    assert re.search(says, text), said.stderr
    assert REGION in text
    assert "Traceback" not in said.stderr
    if aws.builds:  # nobody follows it any more
        assert aws.builds[-1].stopped
        assert "was stopped" in said.stderr


@pytest.mark.parametrize(("script", "operation"), MISSING)
@pytest.mark.usefixtures("good")
def test_what_is_not_there_ends_with_2_and_the_command_that_makes_it(
    aws: ScriptedAws, run: Call, script: str, operation: str
) -> None:
    code, says = MISSING[script, operation]
    aws.refusals = {operation: [(code, "because of this")] * 40}
    said = run(script)
    assert said.returncode == 2, said.stderr
    assert "trainyard init aws" in said.stderr or "create-repository" in says
    assert says in " ".join(said.stderr.split())
    assert aws.builds == []


@pytest.mark.parametrize("kind", ["denied", "busy"])
@pytest.mark.parametrize("script", ["image build", "image check"])
@pytest.mark.usefixtures("good")
def test_a_build_that_failed_needs_no_log_to_be_reported(
    aws: ScriptedAws, run: Call, script: str, kind: str
) -> None:
    code, says = REFUSALS[kind]
    aws.scripts = [Script("FAILED", "BUILD", message="exit status 1")]
    aws.refusals = {"GetLogEvents": [(code, "because of this")] * 40}
    said = run(script)
    assert said.returncode == 1, said.stderr
    text = " ".join(said.stderr.split())
    assert "failed in BUILD: exit status 1" in text and "the log cannot be read" in text
    assert re.search(says, text)


@pytest.mark.usefixtures("good")
def test_a_build_that_cannot_be_stopped_is_named_with_the_command_that_stops_it(
    aws: ScriptedAws, run: Call
) -> None:
    aws.scripts = [Script(hangs=True)]
    aws.refusals = {"StopBuild": [("AccessDeniedException", "no")] * 9}
    said = run("image build", "--time-limit", "1s")
    assert said.returncode == 5, said.stderr
    assert "continues in AWS" in said.stderr
    assert "stop-build --region us-west-2 --id t:1" in said.stderr


def test_a_secret_in_the_context_is_named_and_nothing_is_sent(
    aws: ScriptedAws, run: Call, context: Path
) -> None:
    (context / "notes.txt").write_text("AKIA" + "IOSFODNN7QWERTYU")
    said = run("image build")
    assert said.returncode == 2, said.stderr
    assert "notes.txt: a key of AWS" in said.stderr and "Nothing was sent" in said.stderr
    assert "QWERTYU" not in said.stderr
    assert aws.calls == []
