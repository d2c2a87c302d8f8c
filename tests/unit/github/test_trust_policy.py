"""The jobs that a role trusts, by the tokens that GitHub gives them, in the old and the new form."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ConfigError
from trainyard.github.trust_policy import (
    AUDIENCE,
    ISSUER,
    Form,
    Subject,
    is_immutable,
    trust_command,
    trust_policy,
)

ACCOUNT = "123456789012"
IDS = {"owner_id": 11, "repository_id": 22}
MAIN, OTHER = "refs/heads/main", "refs/heads/somebodys-idea"
FORMS = (Form.NAMES, Form.IMMUTABLE)
PAGE = Path(__file__).parents[3] / "docs" / "runbooks" / "permissions.md"


def token(
    form: Form, *, ids: tuple[int, int] = (11, 22), where: str, ref: str = MAIN, **claims: str
) -> dict[str, str]:
    """Return the claims of GitHub's token for a job of me/lab; `where` is the end of its subject."""
    repository = f"me@{ids[0]}/lab@{ids[1]}" if form is Form.IMMUTABLE else "me/lab"
    workflow = f"me/lab/.github/workflows/train.yml@{ref}"
    named = {"aud": AUDIENCE, "repository_id": str(ids[1]), "job_workflow_ref": workflow}
    return named | {"sub": f"repo:{repository}:{where}"} | claims


def trusts(policy: dict[str, Any], claims: dict[str, str]) -> bool:
    """Whether STS trusts the claims: for each condition of StringEquals a claim equals one of its values."""
    statement = policy["Statement"][0]
    assert list(statement["Condition"]) == ["StringEquals"]
    for key, wanted in statement["Condition"]["StringEquals"].items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if claims.get(key.removeprefix(f"{ISSUER}:")) not in values:
            return False
    return bool(statement["Action"] == "sts:AssumeRoleWithWebIdentity")


def policy_for(form: Form, **more: Any) -> dict[str, Any]:
    workflow = more.pop("workflow", "")
    subject = Subject("me/lab", **({"environment": "training"} | IDS | more))
    return trust_policy(subject, account=ACCOUNT, form=form, workflow=workflow)


@pytest.mark.parametrize("form", FORMS)
def test_the_named_jobs_are_trusted_and_no_other(form: Form) -> None:
    places = ["environment:training", f"ref:{MAIN}", "pull_request", "environment:release", f"ref:{OTHER}"]
    places += ["environment:training2", "ref:refs/tags/main"]
    for where, more in ((places[0], {}), (places[1], {"environment": "", "ref": MAIN})):
        policy = policy_for(form, **more)
        assert [place for place in places if trusts(policy, token(form, where=place))] == [where]
        assert not trusts(policy, token(form, where=where, aud="https://github.com/me"))
        other = next(each for each in FORMS if each is not form)
        assert not trusts(policy_for(other, **more), token(form, where=where)), "the wrong form"
        assert trusts(policy_for(Form.BOTH, **more), token(form, where=where))


def test_a_repository_that_took_over_the_name_is_trusted_by_the_names_alone() -> None:
    stranger = token(Form.IMMUTABLE, ids=(98, 99), where="environment:training")
    assert not trusts(policy_for(Form.IMMUTABLE), stranger)
    assert not trusts(policy_for(Form.BOTH), stranger)
    taken_over = token(Form.NAMES, ids=(98, 99), where="environment:training")
    assert trusts(policy_for(Form.NAMES), taken_over)  # why the immutable form is there
    assert not trusts(policy_for(Form.NAMES, workflow="train.yml"), taken_over)


def test_further_claims_keep_out_other_workflows_and_branches() -> None:
    """The claim names the file that has the job: a called workflow, not its caller."""
    where = "environment:training"
    claim = "me/lab/.github/workflows/train.yml@"
    for named, trusted in (
        ("train.yml", f"{claim}{MAIN}"),
        ("train.yml@refs/heads/master", f"{claim}refs/heads/master"),
        (
            "them/trainyard/.github/workflows/train.yml@" + "a" * 40,
            "them/trainyard/.github/workflows/train.yml@" + "a" * 40,
        ),
    ):
        policy = policy_for(Form.IMMUTABLE, workflow=named)
        for other in (f"{claim}{MAIN}", f"{claim}refs/heads/master", f"{claim}{OTHER}", trusted, ""):
            claims = token(Form.IMMUTABLE, where=where, job_workflow_ref=other)
            assert trusts(policy, claims) is (other == trusted)


def test_a_colon_in_a_name_is_written_as_github_does() -> None:
    assert Subject("me/lab", "eu:gpu").text(Form.NAMES) == "repo:me/lab:environment:eu%3Agpu"


def test_a_subject_that_is_none_or_many_is_refused() -> None:
    for changed, message in (
        ({"repository": "me"}, "is not OWNER/REPO"),
        ({"repository": "me/*"}, "is not OWNER/REPO"),
        ({"repository": "me/lab\n"}, "is not OWNER/REPO"),
        ({"environment": ""}, "Name either an environment or a ref"),
        ({"ref": MAIN}, "Name either an environment or a ref"),
        ({"environment": "*"}, "would match more than one place"),
        ({"environment": "", "ref": "refs/heads/*"}, "would match more than one place"),
        ({"environment": "", "ref": "main"}, "is not a ref such as refs/heads/main"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            Subject(**({"repository": "me/lab", "environment": "training"} | changed))  # type: ignore[arg-type]


def test_what_is_missing_or_impossible_is_named() -> None:
    names = Subject("me/lab", "training")
    with pytest.raises(ConfigError, match=r"gh api repos/me/lab --jq '\.owner\.id, \.id'"):
        trust_policy(names, account=ACCOUNT, form=Form.IMMUTABLE)
    with pytest.raises(ConfigError, match="twelve digits"):
        trust_policy(names, account="12345678901", form=Form.NAMES)
    with pytest.raises(ConfigError, match="is none of aws, aws-cn"):
        trust_policy(names, account=ACCOUNT, form=Form.NAMES, partition="aws:iam")
    with pytest.raises(ConfigError, match=r"is not a file of \.github/workflows"):
        trust_policy(names, account=ACCOUNT, form=Form.NAMES, workflow="../x.yml")


def test_iam_takes_the_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        iam = boto3.client("iam", region_name="us-east-1")
        for form in Form:
            text = json.dumps(policy_for(form, workflow="train.yml"))
            role = iam.create_role(RoleName=str(form), AssumeRolePolicyDocument=text)["Role"]
            assert role["AssumeRolePolicyDocument"] == json.loads(text)


def test_the_page_on_permissions_names_the_subjects_that_are_written() -> None:
    page = PAGE.read_text()
    given: dict[Form, Any] = {Form.IMMUTABLE: {"owner_id": 1, "repository_id": 2}, Form.NAMES: {}}
    for form, ids in given.items():
        policy = trust_policy(Subject("OWNER/REPO", "training", **ids), account=ACCOUNT, form=form)
        (condition,) = policy["Statement"][0]["Condition"].values()
        subject = condition[f"{ISSUER}:sub"].replace("@1", "@OWNER_ID").replace("@2", "@REPO_ID")
        assert f"`{subject}`" in page
        assert f"`{condition[f'{ISSUER}:aud']}`" in page


def test_the_form_comes_from_github_or_from_the_creation_date() -> None:
    for answer, created, immutable in (
        ({"use_immutable_subject": True}, "2020-01-01T00:00:00Z", True),
        ({"use_immutable_subject": False}, "2026-11-01T00:00:00Z", False),
        ({}, "2026-07-14T23:59:59Z", False),
        ({"use_default": True}, "2026-07-15T00:00:00Z", True),
    ):
        assert is_immutable(answer, created) is immutable


def test_the_command_names_the_account_the_partition_and_the_ids_of_the_form() -> None:
    role = "arn:aws-cn:iam::123456789012:role/ci/trainyard-ci"
    line = trust_command(role, "me/lab", (11, 22))
    assert "--account 123456789012 --environment training --owner-id 11 --repository-id 22 " in line
    assert line.endswith("--partition aws-cn --output trust.json")
    assert "--owner-id" not in trust_command(role, "me/lab", ())
