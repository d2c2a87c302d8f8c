"""The comparison of trust policies: every form that fits, and each change that does not."""

import copy
from itertools import product
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.github.trust_policy import ISSUER, Form, Trusted, is_immutable, subjects_of, trust_policy

ROLE = "arn:aws-cn:iam::123456789012:role/ci/trainyard-ci"


def trusted(*, immutable: bool = True) -> Trusted:
    return Trusted(ROLE, "me/lab", 11, 22, immutable)


def policy(form: Form = Form.IMMUTABLE, **more: Any) -> dict[str, Any]:
    return trust_policy(trusted().subject, account="123456789012", partition="aws-cn", form=form, **more)


@each_case(
    ("immutable", "form", "workflow"), list(product((True, False), Form, ("", "training_ci.yml", "ci.yml")))
)
def test_the_needed_form_or_both_fits(immutable: bool, form: Form, workflow: str) -> None:
    fits = form in (Form.BOTH, Form.IMMUTABLE if immutable else Form.NAMES) and workflow != "ci.yml"
    assert trusted(immutable=immutable).fits(policy(form, workflow=workflow)) is fits


def test_equivalent_iam_policies_fit() -> None:
    held = policy(Form.BOTH)
    statement = held["Statement"][0]
    statement["Sid"] = "Trainyard"
    statement["Action"] = [statement["Action"]]
    statement["Condition"]["StringEquals"][f"{ISSUER}:sub"].reverse()
    held["Statement"] = statement
    assert trusted().fits(held)


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    held = copy.deepcopy(policy())
    place: Any = held["Statement"][0]
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return held


@each_case(
    ("path", "value"),
    [
        (("Condition", "StringEquals", f"{ISSUER}:sub"), "repo:me@11/lab@22:*"),
        (("Condition", "StringEquals", f"{ISSUER}:sub"), "repo:me@11/lab@23:environment:training"),
        (("Condition", "StringEquals", f"{ISSUER}:sub"), None),
        (("Condition", "StringEquals", f"{ISSUER}:aud"), None),
        (("Condition",), {"StringLike": {f"{ISSUER}:sub": "repo:me@11/lab@22:environment:training"}}),
        (("Condition",), None),
        (("Principal",), "*"),
        (("Principal", "Federated"), "arn:aws-cn:iam::999999999999:oidc-provider/x"),
        (("Effect",), "Deny"),
        (("Action",), ["sts:AssumeRoleWithWebIdentity", "sts:AssumeRole"]),
    ],
)
def test_a_policy_with_one_change_does_not_fit(path: tuple[Any, ...], value: Any) -> None:
    assert trusted().fits(policy())
    assert not trusted().fits(changed(path, value))


def test_a_second_statement_does_not_fit() -> None:
    held = policy()
    held["Statement"].append({"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"})
    assert not trusted().fits(held)


@pytest.mark.parametrize(
    "held", [{}, {"Statement": "x"}, {"Statement": [None]}, {"Statement": {"Condition": "x"}}]
)
def test_an_invalid_policy_does_not_fit_and_has_no_subjects(held: dict[str, Any]) -> None:
    assert not trusted().fits(held)
    assert subjects_of(held) == []


def test_the_commands_make_the_policy_fit() -> None:
    write, give = trusted().commands()
    assert "--owner-id 11 --repository-id 22 --partition aws-cn --output trust.json" in write
    assert give.startswith("aws iam update-assume-role-policy --role-name trainyard-ci ")
    assert "--owner-id" not in trusted(immutable=False).commands()[0]


@pytest.mark.parametrize(
    ("answer", "created", "immutable"),
    [
        ({"use_immutable_subject": True}, "2020-01-01T00:00:00Z", True),
        ({"use_immutable_subject": False}, "2026-11-01T00:00:00Z", False),
        ({}, "2026-07-14T23:59:59Z", False),
        ({}, "2026-07-15T00:00:00Z", True),
        ({"use_default": True}, "2026-11-01T00:00:00Z", True),
    ],
)
def test_the_form_comes_from_github_or_from_the_creation_date(
    answer: dict[str, Any], created: str, immutable: bool
) -> None:
    assert is_immutable(answer, created) is immutable
