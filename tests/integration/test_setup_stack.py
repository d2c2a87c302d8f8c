"""`trainyard init aws` on a scripted CloudFormation: states of an account x dry run, real run, delete.

A dry run changes nothing, and the real run does what it printed. After a real run nothing is left to do.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.integration.scripted_cloudformation import NAMED_BY, READS, ScriptedCloudFormation, parsed
from tests.unit.infrastructure.template_reader import ACCOUNT, REGION, SUBJECT, ResolvedTemplate

from trainyard.command import handler
from trainyard.commands import init_aws
from trainyard.gateways import cloudformation
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.image.building.stack_template import IDENTIFIERS, Account, importable_template

GITHUB = ("--github", "me/lab", "--environment", "training")
DONE = {
    "would make": "made",
    "would import": "imported",
    "would change": "changed",
    "would remove": "removed",
    "would replace": "replaced",
}
PROVIDER, PROJECT = "https://token.actions.githubusercontent.com", "trainyard"
Rows = dict[str, dict[str, Any]]
Aws = ScriptedCloudFormation
State = Callable[[Aws], None]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    scripted = Aws()
    monkeypatch.setattr(AwsAccount, "call", lambda _self, *args, **given: scripted(*args, **given))
    monkeypatch.setattr(AwsAccount, "identity", lambda _self: (ACCOUNT, "aws"))
    monkeypatch.setattr(cloudformation, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("AWS_REGION", REGION)
    yield scripted


def rows(*flags: str) -> tuple[int, Rows]:
    """Exit code, and resource -> its record."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = int(init_aws.main([*flags, "--json"]))
    return code, {each["resource"]: each for each in json.loads(printed.getvalue())["resources"]}


def refusal(*flags: str, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert handler.exit_code_of(partial(init_aws.main, list(flags))) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return " ".join(printed.err.split())


def nothing(_aws: Aws) -> None:
    """An account in which nothing was ever set up."""


def set_up(aws: Aws) -> None:
    assert rows(*GITHUB)[0] == 0
    aws.calls.clear()


def set_up_by_hand(aws: Aws) -> None:
    set_up(aws)
    aws.drifted = {"SourceBucket", "BuildRole"}


def deleted(aws: Aws) -> None:
    """The stack was deleted, and resources that hold data were retained."""
    set_up(aws)
    assert rows("--delete")[0] == 0


def earlier_version(aws: Aws) -> None:
    """All resources exist without a stack, except the project, which the user deleted as the message asks."""
    for kind, properties in ResolvedTemplate({"Subjects": SUBJECT}).resources().values():
        if kind != "AWS::CodeBuild::Project":
            aws.taken.setdefault(kind, set()).add(properties[NAMED_BY[kind]])


def half_of_the_earlier_version(aws: Aws) -> None:
    earlier_version(aws)
    for kind in ("AWS::IAM::Role", "AWS::S3::BucketPolicy", "AWS::IAM::OIDCProvider"):
        aws.taken[kind].clear()


def interrupted_dry_run(aws: Aws) -> None:
    aws.status = "REVIEW_IN_PROGRESS"


def rolled_back_change(aws: Aws) -> None:
    set_up(aws)
    aws.status = "UPDATE_ROLLBACK_COMPLETE"


def provider_of_others(aws: Aws) -> None:
    aws.taken["AWS::IAM::OIDCProvider"] = {PROVIDER}


STATES: tuple[State, ...] = (
    *(nothing, set_up, set_up_by_hand, deleted, earlier_version, half_of_the_earlier_version),
    *(interrupted_dry_run, rolled_back_change, provider_of_others),
)
FLAGS = {"apply": GITHUB, "other values": (*GITHUB, "--log-days", "7", "--cluster", "gpus")}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_dry_run_changes_nothing_and_the_real_run_does_what_it_said(
    aws: Aws, state: State, flags: tuple[str, ...]
) -> None:
    state(aws)
    before = aws.snapshot()
    aws.calls.clear()
    code, planned = rows(*flags, "--dry-run")
    assert aws.change_sets == {}
    if state is not interrupted_dry_run:
        assert aws.snapshot() == before
    changing = {call for call in aws.calls if not call.startswith(READS)}
    assert changing <= {"create_change_set", "delete_change_set", "delete_stack"}
    assert ("delete_stack" in changing) <= (aws.status == "")
    works = {name for name, row in planned.items() if row["standing"] in DONE}
    assert code == (1 if works else 0)
    really, done = rows(*flags)
    assert really == 0
    standings = {name: DONE.get(row["standing"], row["standing"]) for name, row in planned.items()}
    assert {name: row["standing"] for name, row in done.items()} == standings
    assert aws.change_sets == {} and aws.status in (
        "CREATE_COMPLETE",
        "UPDATE_COMPLETE",
        "UPDATE_ROLLBACK_COMPLETE",
    )
    assert rows(*flags, "--dry-run") == (0, {})
    assert aws.drifted == set(), "settings differ from the template"
    policies = {name: each.get("DeletionPolicy") for name, each in parsed(aws.body)["Resources"].items()}
    assert policies["BuildRole"] is None and policies["SourceBucket"] == "Retain"


def test_resources_that_exist_are_imported_and_the_rest_is_made(aws: Aws) -> None:
    half_of_the_earlier_version(aws)
    _, done = rows(*GITHUB)
    imported = {name for name, row in done.items() if row["standing"] == "imported"}
    assert imported == {"ImageRepository", "CacheRepository", "SourceBucket", "ArtifactBucket", "LogGroup"}
    assert {row["standing"] for name, row in done.items() if name not in imported} == {"made"}


def test_an_account_without_these_resources_gets_the_template_as_it_is_in_one_step(aws: Aws) -> None:
    assert rows(*GITHUB)[0] == 0
    assert aws.body == init_aws.TEMPLATE.read_text()
    assert (aws.status, aws.calls.count("execute_change_set")) == ("CREATE_COMPLETE", 1)


def test_a_provider_of_others_is_used_and_not_made(aws: Aws) -> None:
    provider_of_others(aws)
    _, done = rows(*GITHUB)
    assert "GitHubProvider" not in done and aws.parameters["CreateProvider"] == "false"
    assert rows(*GITHUB, "--dry-run")[0] == 0


def test_a_provider_of_the_stack_stays_in_it(aws: Aws) -> None:
    set_up(aws)
    assert rows(*GITHUB) == (0, {})
    assert rows(*GITHUB, "--no-provider")[1]["GitHubProvider"]["standing"] == "kept"
    assert aws.taken["AWS::IAM::OIDCProvider"] == {PROVIDER}


def test_without_github_the_provider_is_not_looked_for(aws: Aws) -> None:
    assert rows()[0] == 0
    assert "get_open_id_connect_provider" not in aws.calls


@pytest.mark.parametrize("early", [False, True], ids=["when executed", "early validation"])
@pytest.mark.parametrize("name", ["GitHubRole", "GitHubProvider"])
def test_a_name_that_is_taken_when_the_stack_exists_is_named_with_the_fix(
    aws: Aws, capsys: pytest.CaptureFixture[str], name: str, early: bool
) -> None:
    assert rows()[0] == 0
    kind, properties = ResolvedTemplate({"Subjects": SUBJECT}).resources()[name]
    aws.taken.setdefault(kind, set()).add(properties[NAMED_BY[kind]])
    aws.validates_early = early
    if name == "GitHubProvider":
        aws.get_open_id_connect_provider = lambda _given: None  # type: ignore[method-assign]
    text = refusal(*GITHUB, code=4, capsys=capsys)
    assert f"{name} ({kind}" in text and "already exists" in text
    assert "cancelled" not in text
    assert rows("--dry-run")[0] == 0, "the change was rolled back"


@pytest.mark.parametrize("kind", IDENTIFIERS)
def test_only_the_importable_template_imports_a_resource_of_each_type(aws: Aws, kind: str) -> None:
    values = {"Subjects": SUBJECT, "Cluster": "gpus"}
    found = ResolvedTemplate(values).resources()
    name = next(name for name, each in found.items() if each[0] == kind)
    aws.taken[kind] = {found[name][1][NAMED_BY[kind]]}
    text = init_aws.TEMPLATE.read_text()
    importable = importable_template(parsed(text), values, Account(ACCOUNT, REGION))
    for body, action in ((text, "Add"), (json.dumps(importable), "Import")):
        stack = cloudformation.CloudFormationStack(aws, PROJECT)
        change_set = stack.create_change_set(body, values, new=True, imports=True)
        assert change_set is not None
        assert {change.action for change in change_set.changes if change.name == name} == {action}
        stack.discard(change_set)
    assert ResolvedTemplate(values, importable).resources() == found, "the import has other settings"


def test_the_reason_of_a_failure_is_printed_and_a_second_run_starts_again(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.refuses = {"Builds": "Could not find access token for server type github"}
    text = refusal(*GITHUB, code=4, capsys=capsys)
    assert "Builds (AWS::CodeBuild::Project trainyard): Could not find access token" in text
    assert "ROLLBACK_COMPLETE" in text
    assert not any(aws.taken.values()), "a failed creation left something"
    aws.refuses = {}
    assert "run this with --delete, and then again" in refusal(*GITHUB, code=4, capsys=capsys)
    assert rows("--delete")[0] == rows(*GITHUB)[0] == 0


def test_a_stack_of_somebody_else_is_not_touched(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.status = "CREATE_COMPLETE"
    aws.resources = {"Database": ("AWS::RDS::DBInstance", "db", "CREATE_COMPLETE", "")}
    aws.body = '{"Resources": {"Database": {"Type": "AWS::RDS::DBInstance"}}}'
    before = aws.snapshot()
    for flags in ((), ("--delete",)):
        assert "--project-name" in refusal(*flags, code=2, capsys=capsys)
    aws.status = "ROLLBACK_COMPLETE"
    refusal(code=2, capsys=capsys)
    aws.status = "CREATE_COMPLETE"
    assert aws.snapshot() == before


def test_a_flag_that_is_not_given_keeps_its_value_and_an_empty_one_takes_it_away(aws: Aws) -> None:
    hook = ("--webhook-repository", "me/lab")
    assert rows(*GITHUB, *hook, "--timeout-minutes", "45")[0] == 0
    assert rows("--dry-run") == (0, {})
    assert aws.parameters["TimeoutMinutes"] == "45"
    assert rows("--webhook-repository", "", "--dry-run")[1]["Builds"]["standing"] == "would change"
    assert rows("--webhook-repository", "")[0] == 0
    assert aws.parameters["WebhookRepository"] == "" and aws.parameters["TimeoutMinutes"] == "45"
    _, removed = rows("--github", "", "--dry-run")
    assert removed["GitHubRole"]["standing"] == "would remove"
    assert removed["GitHubProvider"]["standing"] == "kept"


def test_what_was_changed_outside_is_shown_with_both_values(aws: Aws) -> None:
    set_up_by_hand(aws)
    _, planned = rows(*GITHUB, "--dry-run")
    assert planned["SourceBucket"]["differences"] == ["Changed: theirs -> ours"]


@pytest.mark.parametrize("state", [set_up, set_up_by_hand, rolled_back_change])
def test_deleting_removes_what_holds_no_data_and_a_dry_run_says_so(aws: Aws, state: State) -> None:
    state(aws)
    before = aws.snapshot()
    code, planned = rows("--delete", "--dry-run")
    assert code == 1 and aws.snapshot() == before
    code, done = rows("--delete")
    assert code == 0
    assert {name: DONE.get(row["standing"], row["standing"]) for name, row in planned.items()} == {
        name: row["standing"] for name, row in done.items()
    }
    kept = {name for name, row in done.items() if row["standing"] == "kept"}
    buckets = {"SourceBucket", "SourceBucketPolicy", "ArtifactBucket", "ArtifactBucketPolicy"}
    assert kept == {"ImageRepository", "CacheRepository", *buckets, "GitHubProvider"}
    assert all("to remove it" in done[name]["text"] for name in kept)
    assert aws.taken["AWS::S3::BucketPolicy"], "a bucket that stays keeps its policy"
    assert not aws.taken["AWS::IAM::Role"] and not aws.taken["AWS::CodeBuild::Project"]
    assert rows("--delete", "--dry-run") == rows("--delete")
    assert rows("--delete")[1][""]["standing"] == "not there"


def test_a_role_that_others_use_ends_the_deletion_with_the_reason(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(aws)
    aws.refuses = {"BuildRole": "Cannot delete entity, must detach all policies first."}
    text = refusal("--delete", code=4, capsys=capsys)
    assert (
        "BuildRole (AWS::IAM::Role trainyard-build): Cannot delete entity" in text and "DELETE_FAILED" in text
    )
    aws.refuses = {}
    assert rows("--delete")[0] == 0


def test_a_change_set_that_does_not_settle_ends_with_5(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "describe_change_set", lambda _given: {"Status": "CREATE_IN_PROGRESS"})
    monkeypatch.setattr(cloudformation, "_CHANGE_SET_SECONDS", 0.05)
    assert "continues without this command" in refusal(*GITHUB, code=5, capsys=capsys)
    assert aws.change_sets == {} and aws.status == "", "the change set is discarded"
    monkeypatch.undo()


def test_the_progress_of_the_stack_is_printed_while_it_is_made(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init_aws.main([*GITHUB]) == 0
    printed = capsys.readouterr()
    assert "CREATE_COMPLETE" in printed.err and "S3 Bucket SourceBucket" in printed.err
    assert printed.err.count("CREATE_IN_PROGRESS") == 1
    assert "made         IAM Role             trainyard-github" in printed.out
