"""The jobs that a role trusts, by the tokens that GitHub gives them, in the old and the new form."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ConfigError
from trainyard.github.trust_policy import AUDIENCE, ISSUER, Subject, is_immutable, trust_policy

ROLE = "arn:aws:iam::123456789012:role/ci/trainyard-ci"
IDS = (11, 22)
PAGE = Path(__file__).parents[3] / "docs" / "runbooks" / "permissions.md"


def token(ids: tuple[int, ...], where: str, **claims: str) -> dict[str, str]:
    """Return the claims of GitHub's token for a job of me/lab; `where` is the end of its subject."""
    repository = f"me@{ids[0]}/lab@{ids[1]}" if ids else "me/lab"
    return {"aud": AUDIENCE, "sub": f"repo:{repository}:{where}"} | claims


def trusts(ids: tuple[int, ...], claims: dict[str, str]) -> bool:
    """Whether STS trusts the claims: each condition of StringEquals equals its claim."""
    (statement,) = trust_policy(Subject("me/lab", "training", *ids), ROLE)["Statement"]
    assert (list(statement["Condition"]), statement["Action"]) == (
        ["StringEquals"],
        "sts:AssumeRoleWithWebIdentity",
    )
    wanted: dict[str, Any] = statement["Condition"]["StringEquals"]
    return all(claims.get(key.removeprefix(f"{ISSUER}:")) == value for key, value in wanted.items())


def test_the_jobs_of_the_environment_are_trusted_and_no_other() -> None:
    places = ["environment:training", "ref:refs/heads/main", "pull_request", "environment:release"]
    places += ["environment:training2", "ref:refs/tags/training"]
    for ids in ((), IDS):
        assert [place for place in places if trusts(ids, token(ids, place))] == ["environment:training"]
        assert not trusts(ids, token(ids, "environment:training", aud="https://github.com/me"))
        assert not trusts(IDS if ids == () else (), token(ids, "environment:training")), "the wrong form"


def test_a_repository_that_took_over_the_name_is_trusted_by_the_names_alone() -> None:
    assert not trusts(IDS, token((98, 99), "environment:training"))
    assert trusts((), token((), "environment:training"))  # why the immutable form is there


def test_a_colon_in_a_name_is_written_as_github_does() -> None:
    assert Subject("me/lab", "eu:gpu").text == "repo:me/lab:environment:eu%3Agpu"


def test_a_subject_that_is_none_or_many_is_refused() -> None:
    for repository, environment, message in (
        ("me", "training", "is not OWNER/REPO"),
        ("me/*", "training", "is not OWNER/REPO"),
        ("me/lab\n", "training", "is not OWNER/REPO"),
        ("me/lab", "", "would match more than one place, or none"),
        ("me/lab", "*", "would match more than one place"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            Subject(repository, environment)


def test_the_page_on_permissions_has_the_policy_that_is_written() -> None:
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)
    (block,) = [each for each in blocks if "oidc-provider" in each]
    policy = json.dumps(trust_policy(Subject("OWNER/REPO", "training", 1, 2), ROLE))
    assert json.loads(block) == json.loads(policy.replace("@1", "@OWNER_ID").replace("@2", "@REPO_ID"))
    provider = trust_policy(Subject("me/lab", "training"), ROLE.replace("aws", "aws-cn"))["Statement"][0]
    assert provider["Principal"]["Federated"] == f"arn:aws-cn:iam::123456789012:oidc-provider/{ISSUER}"


def test_the_form_comes_from_github_or_from_the_creation_date() -> None:
    for answer, created, immutable in (
        ({"use_immutable_subject": True}, "2020-01-01T00:00:00Z", True),
        ({"use_immutable_subject": False}, "2026-11-01T00:00:00Z", False),
        ({}, "2026-07-14T23:59:59Z", False),
        ({"use_default": True}, "2026-07-15T00:00:00Z", True),
    ):
        assert is_immutable(answer, created) is immutable
