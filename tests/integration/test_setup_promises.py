"""`--dry-run` and `--delete` of the set-up do what they say, whatever state the account is in.

A proxy before moto notes every call: a dry run makes none that changes something, and what it says is what
the real run then says and does. Every call x a refusal of it: exit code 4, with the call and the fix.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
from tests.integration.conftest import Endpoint
from tests.integration.scripted_aws import REGION, ScriptedAws
from tests.integration.test_image_refusals import REFUSALS
from tests.integration.test_setup_codebuild import BUCKET, GITHUB, MANIFEST

from scripts import setup_codebuild
from trainyard.command import handler

READS = ("Get", "List", "Describe", "BatchGet", "Head")
DONE = {"would make": "made", "would change": "changed", "would remove": "removed"}
Rows = dict[str, dict[str, Any]]
State = Callable[[Callable[[str], Any]], None]


@pytest.fixture
def aws(moto: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAws]:
    urlopen(Request(f"{moto.url}/moto-api/reset", method="POST"), timeout=10).close()
    with ScriptedAws(moto.url).serving() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("time.sleep", lambda _seconds: None)
        yield server


def rows(*flags: str) -> tuple[int, Rows]:
    """Exit code, and resource -> its record."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = int(setup_codebuild.main([*flags, "--json"]))
    return code, {each["resource"]: each for each in json.loads(said.getvalue())["resources"]}


def changing(calls: list[str]) -> list[str]:
    return [call for call in calls if not call.startswith(READS)]


def nothing(_client: Callable[[str], Any]) -> None:
    """Leave everything as it was made."""


def data_in_it(client: Callable[[str], Any]) -> None:
    client("s3").delete_bucket_policy(Bucket=BUCKET)  # moto speaks HTTP, which the policy denies
    client("s3").put_object(Bucket=BUCKET, Key="trainyard/source/a.zip", Body=b"a")
    client("ecr").put_image(repositoryName="trainyard", imageManifest=MANIFEST, imageTag="v1")


def only_old_versions(client: Callable[[str], Any]) -> None:
    data_in_it(client)
    client("s3").delete_object(Bucket=BUCKET, Key="trainyard/source/a.zip")


def half_of_it_is_gone(client: Callable[[str], Any]) -> None:
    client("codebuild").delete_project(name="trainyard")
    client("logs").delete_log_group(logGroupName="/aws/codebuild/trainyard")
    client("iam").delete_role_policy(RoleName="trainyard-build", PolicyName="build")
    client("ecr").delete_repository(repositoryName="trainyard-cache")


def others_have_added_to_it(client: Callable[[str], Any]) -> None:
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "s3:*", "Resource": "*"}]}
    client("iam").put_role_policy(
        RoleName="trainyard-github", PolicyName="theirs", PolicyDocument=json.dumps(policy)
    )
    made = client("iam").create_policy(PolicyName="managed", PolicyDocument=json.dumps(policy))
    client("iam").attach_role_policy(RoleName="trainyard-build", PolicyArn=made["Policy"]["Arn"])


def it_was_changed(client: Callable[[str], Any]) -> None:
    client("ecr").put_image_tag_mutability(repositoryName="trainyard", imageTagMutability="MUTABLE")
    client("s3").put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    client("logs").delete_retention_policy(logGroupName="/aws/codebuild/trainyard")


def it_belongs_to_others(client: Callable[[str], Any]) -> None:
    """The names of the project and of a role are taken by somebody's own."""
    client("iam").update_role(RoleName="trainyard-github", Description="our deployments")
    project = client("codebuild").batch_get_projects(names=["trainyard"])["projects"][0]
    client("codebuild").delete_project(name="trainyard")
    kept = ("name", "source", "artifacts", "environment", "serviceRole")
    client("codebuild").create_project(**{key: project[key] for key in kept}, description="nightly tests")


STATES: list[State] = [nothing, data_in_it, only_old_versions, half_of_it_is_gone, others_have_added_to_it]
STATES += [it_was_changed]


CASES = [pytest.param(GITHUB, state, id=f"apply-{state.__name__}") for state in STATES]
CASES += [
    pytest.param(("--delete",), state, id=f"delete-{state.__name__}")
    for state in (*STATES, it_belongs_to_others)  # moto cannot change a project, so apply is not tried on it
]


@pytest.mark.parametrize(("flags", "state"), CASES)
def test_a_dry_run_changes_nothing_and_says_what_the_real_run_does(
    aws: ScriptedAws, flags: tuple[str, ...], state: State
) -> None:
    assert rows(*GITHUB)[0] == 0
    state(partial(boto3.client, region_name=REGION, endpoint_url=aws.moto))
    aws.calls.clear()
    code, said = rows(*flags, "--dry-run")
    assert changing(aws.calls) == []
    aws.calls.clear()
    assert rows(*flags, "--dry-run") == (code, said)
    works = {name for name, row in said.items() if row["standing"] in DONE}
    assert code == (1 if works else 0)
    aws.calls.clear()
    really, done = rows(*flags)
    assert really == 0, done
    expected = {
        name: row | {"standing": DONE.get(row["standing"], row["standing"])} for name, row in said.items()
    }
    assert done == expected
    assert bool(changing(aws.calls)) == bool(works)
    after, found = rows(*GITHUB, "--dry-run")
    gone = {name for name, row in done.items() if row["standing"] == "removed"}
    assert {name for name, row in found.items() if row["standing"] == "would make"} >= gone
    assert "--delete" in flags or after == 0


def test_what_others_made_or_added_to_is_not_removed(aws: ScriptedAws) -> None:
    assert rows(*GITHUB)[0] == 0
    client = partial(boto3.client, region_name=REGION, endpoint_url=aws.moto)
    others_have_added_to_it(client)
    _, done = rows("--delete")
    assert "managed" in done["BuildRole"]["text"] and "theirs" in done["GitHubRole"]["text"]
    iam = client("iam")
    assert iam.get_role_policy(RoleName="trainyard-build", PolicyName="build"), "half of a role was removed"
    rows(*GITHUB)
    it_belongs_to_others(client)
    _, done = rows("--delete")
    assert "nightly tests" in done["Builds"]["text"] and "our deployments" in done["GitHubRole"]["text"]
    assert client("codebuild").batch_get_projects(names=["trainyard"])["projects"]


def calls_of(aws: ScriptedAws, *flags: str) -> list[str]:
    aws.calls.clear()
    rows(*flags)
    return sorted(set(aws.calls))


def test_every_call_that_is_refused_ends_with_4_and_names_the_call_and_the_fix(
    aws: ScriptedAws, moto: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes of refusals take turns, so that each class meets many calls."""
    made, removed = calls_of(aws, *GITHUB), calls_of(aws, "--delete")
    removed = [call for call in removed if call not in made]
    assert len(made) > 25 and len(removed) > 5
    classes = [kind for kind in REFUSALS if kind != "unknown code"]
    turn = 0
    for flags, calls in (((*GITHUB,), made), (("--delete",), removed)):
        for call in calls:
            urlopen(Request(f"{moto.url}/moto-api/reset", method="POST"), timeout=10).close()
            if flags == ("--delete",):
                rows(*GITHUB)
            kind, turn = classes[turn % len(classes)], turn + 1
            aws.refusals = {call: [(REFUSALS[kind][0], "because of this")] * 99}
            capsys.readouterr()
            code = handler.exit_code_of(partial(setup_codebuild.main, list(flags)))
            said = capsys.readouterr()
            aws.refusals = {}
            text = " ".join((said.out + said.err).split())
            assert code == 4, (call, kind, text)
            assert "Traceback" not in text and REGION in text, (call, kind, text)
            if not call.startswith("Head"):
                assert re.search(REFUSALS[kind][1], text), (call, kind, text)
