"""The workflow's role and account against endpoints on loopback: each fault, each client, refresh."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.github_identity import (
    BROKEN,
    PASSING,
    REFUSED_ROLES,
    REFUSED_TOKENS,
    REQUEST_TOKEN,
    ROLE,
    GitHubIdentity,
    github_identity,
)

from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways import aws_session, bounded_calls
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.kubernetes.eks import eks_token
from trainyard.gateways.prometheus import Prometheus
from trainyard.gateways.s3.client import connect

InStep = Callable[..., None]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of AWS, no role of the machine, and no pauses."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "TRAINYARD_AWS", "ACTIONS_ID"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.001)


@pytest.fixture
def identity() -> Iterator[GitHubIdentity]:
    with github_identity() as server:
        yield server


@pytest.fixture
def in_step(monkeypatch: pytest.MonkeyPatch, identity: GitHubIdentity) -> InStep:
    """Sets the variables of a step that has the role, changed by the keyword arguments."""

    def enter(server: GitHubIdentity = identity, **more: str) -> None:
        for name, value in server.variables(**more).items():
            monkeypatch.setenv(name, value)

    return enter


def shorten_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_session, "ANSWER_SECONDS", 1.0)


def sign_prometheus() -> str:
    workspace = Prometheus("https://aps-workspaces.us-east-1.amazonaws.com/x", region="us-east-1")
    return str(workspace._sign("https://x", b"").headers["X-Amz-Security-Token"])


def session_token(credentials: Any) -> str:
    return str(credentials.get_frozen_credentials().token)


CLIENTS: dict[str, Callable[[], str]] = {
    "S3": lambda: session_token(connect(attempts=1, call_seconds=1)._request_signer._credentials),
    "an account's services": lambda: session_token(
        AwsAccount("").client("codebuild")._request_signer._credentials
    ),
    "EKS": lambda: session_token(AwsAccount("").client("eks")._request_signer._credentials),
    "the token of EKS": lambda: eks_token("cluster"),
    "Prometheus": sign_prometheus,
    "a program of somebody else": lambda: aws_session.credential_variables()["AWS_SESSION_TOKEN"],
}
"""Everything that makes a client of AWS -> a call that returns the session token the client signs with."""


def test_every_client_signs_with_the_workflows_role(
    identity: GitHubIdentity, in_step: InStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    in_step()
    for number, (client, sign) in enumerate(CLIENTS.items()):
        assert f"session-{number}" in sign() or client == "the token of EKS"
    assert identity.calls == ["oidc", "sts"] * len(CLIENTS)
    assert set(identity.sessions) == {"trainyard-4711"}


@pytest.mark.slow
@pytest.mark.parametrize(("service", "fault"), [*itertools.product(("oidc", "sts"), BROKEN)])
def test_a_broken_answer_is_requested_again(
    service: str,
    fault: str,
    identity: GitHubIdentity,
    in_step: InStep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_step()
    if fault == "stall":
        shorten_answers(monkeypatch)
    identity.faults[service] = [fault]
    aws_session.assume_workflow_role()
    assert identity.calls.count(service) == 2


@pytest.mark.parametrize(("service", "fault"), [*itertools.product(("oidc", "sts"), BROKEN[1:])])
def test_attempts_are_bounded(service: str, fault: str, identity: GitHubIdentity, in_step: InStep) -> None:
    in_step()
    identity.faults[service] = [f"always:{fault}"]
    with pytest.raises(ServiceError, match=ROLE) as caught:
        aws_session.assume_workflow_role()
    assert identity.calls.count(service) == aws_session.ATTEMPTS
    assert caught.value.exit_code == ExitCode.REFUSED
    assert REQUEST_TOKEN not in str(caught.value)


@pytest.mark.parametrize("fault", PASSING)
def test_what_is_no_refusal_of_the_role_is_tried_again_with_a_new_token(
    fault: str, identity: GitHubIdentity, in_step: InStep
) -> None:
    in_step()
    identity.faults["sts"] = [fault, fault]
    aws_session.assume_workflow_role()
    assert identity.calls == ["oidc", "sts"] * 3


def test_no_attempt_starts_after_the_time_for_attempts(
    identity: GitHubIdentity, in_step: InStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_step()
    shorten_answers(monkeypatch)
    monkeypatch.setattr(aws_session, "ATTEMPTS_SECONDS", 0.5)
    identity.faults["sts"] = ["always:stall"]
    with pytest.raises(ServiceError):
        aws_session.assume_workflow_role()
    assert identity.calls == ["oidc", "sts"]


ADVICE = {
    "AccessDenied": "trainyard init github --aws-role",
    "no provider": "identity provider does not list",
    "wrong audience": "audience sts.amazonaws.com",
}


@pytest.mark.parametrize(
    ("service", "fault"), [*(("oidc", each) for each in REFUSED_TOKENS), *(("sts", e) for e in REFUSED_ROLES)]
)
def test_what_is_refused_is_not_requested_again_and_has_a_fix(
    service: str, fault: str, identity: GitHubIdentity, in_step: InStep
) -> None:
    in_step()
    identity.faults[service] = [f"always:{fault}"]
    with pytest.raises(ServiceError) as caught:
        aws_session.assume_workflow_role()
    text = str(caught.value)
    if service == "oidc":
        assert identity.calls == ["oidc"]
        assert "id-token: write" in text and " to this job" in text
    else:
        assert identity.calls == ["oidc", "sts"]
        assert ROLE in text and ADVICE.get(fault, "permissions.md#aws-role") in text
    assert caught.value.exit_code == ExitCode.REFUSED
    assert REQUEST_TOKEN not in text


WRONG: list[tuple[dict[str, str], str]] = [
    ({"ACTIONS_ID_TOKEN_REQUEST_URL": ""}, "ACTIONS_ID_TOKEN_REQUEST_URL is not set"),
    ({"ACTIONS_ID_TOKEN_REQUEST_TOKEN": ""}, "ACTIONS_ID_TOKEN_REQUEST_TOKEN is not set"),
    ({"ACTIONS_ID_TOKEN_REQUEST_URL": "file:///etc/passwd"}, "not an http or https address"),
    ({"TRAINYARD_AWS_ROLE": "trainyard-ci"}, "is not a role such as arn:aws:iam::"),
    ({"TRAINYARD_AWS_ROLE": "arn:aws:iam::123456789012:user/me"}, "is not a role such as"),
    ({"TRAINYARD_AWS_ACCESS": "admin"}, "'admin' is none of read, check, write"),
]


def test_wrong_variables_are_named_first(identity: GitHubIdentity, in_step: InStep) -> None:
    for variables, words in WRONG:
        in_step(**variables)
        for sign in CLIENTS.values():
            with pytest.raises(ConfigError, match=words) as caught:
                sign()
            assert caught.value.exit_code == ExitCode.USAGE
    assert identity.calls == []


def test_the_session_policy_follows_the_access_of_the_step(identity: GitHubIdentity, in_step: InStep) -> None:
    reads = {"s3:ListBucket", "s3:GetObject", "kms:Decrypt"}
    writes = {"s3:PutObject", "s3:AbortMultipartUpload", "kms:GenerateDataKey"}
    for access, expected in {"": set(), "read": reads, "check": reads | writes, "write": set()}.items():
        in_step(TRAINYARD_AWS_ACCESS=access)
        aws_session.assume_workflow_role()
        statements = json.loads(identity.policies[-1] or "{}").get("Statement", [])
        assert {action for each in statements for action in each["Action"]} == expected
        assert len(identity.policies[-1]) < 2048, "the limit of STS"


def test_one_region_holds_for_every_client(in_step: InStep, monkeypatch: pytest.MonkeyPatch) -> None:
    for variables, region in (
        ({}, "us-east-1"),
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
        ({"TRAINYARD_AWS_REGION": "us-west-2"}, "us-west-2"),
    ):  # each is set beside those before it
        in_step(**variables)
        s3 = connect(attempts=1, call_seconds=1).meta.region_name
        given = aws_session.credential_variables()["AWS_REGION"]
        assert {s3, given, AwsAccount("").region} == {region}
    assert AwsAccount("ap-south-1").region == "ap-south-1"
    for name in ("TRAINYARD_AWS_REGION", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.setenv(name, "")
    assert AwsAccount("").region == "us-east-1"


def test_without_a_role_nothing_changes(
    identity: GitHubIdentity, in_step: InStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    in_step(TRAINYARD_AWS_ROLE="", TRAINYARD_AWS_REGION="us-west-2")
    client = connect(attempts=1, call_seconds=1)
    assert client._request_signer._credentials.access_key == "AKIAOWN"
    assert client.meta.region_name == "us-east-1"
    assert aws_session.credential_variables() == {}
    assert identity.calls == []


def test_credentials_are_refreshed_early_and_once_for_all_threads(in_step: InStep) -> None:
    with github_identity(life=600) as identity:  # less than the 15 minutes in which botocore refreshes
        in_step(identity)
        credentials = aws_session.botocore_session().get_credentials()
        identity.life = 3600
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: session_token(credentials), range(64)))
            assert set(threads.map(lambda _: session_token(credentials), range(64))) == {"session-1"}
        assert identity.calls == ["oidc", "sts"] * 2


@pytest.mark.parametrize(("life", "ends"), [(600, False), (60, True)])
def test_a_refresh_that_fails_ends_what_uses_the_credentials_only_shortly_before_they_expire(
    life: float, ends: bool, in_step: InStep
) -> None:
    with github_identity(life=life) as identity:
        in_step(identity)
        credentials = aws_session.botocore_session().get_credentials()
        identity.faults["sts"] = ["always:AccessDenied"]
        if not ends:
            assert session_token(credentials) == "session-0"
            return
        with pytest.raises(ServiceError, match=ROLE):
            session_token(credentials)


def test_credentials_that_have_expired_already_are_no_answer(in_step: InStep) -> None:
    with github_identity(life=-5) as identity:
        in_step(identity)
        with pytest.raises(ServiceError, match="expired already"):
            aws_session.assume_workflow_role()


@pytest.mark.parametrize("region", ["", "us west", "-us", "us_west_2", "a" * 64])
def test_a_region_that_is_none_is_refused_with_the_option_that_names_one(region: str) -> None:
    with pytest.raises(ConfigError, match="--region, such as") as caught:
        AwsAccount(region)
    assert region in str(caught.value)
    assert ".;" not in str(caught.value)


def test_a_missing_profile_is_named_and_not_called_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(ConfigError, match=r"nope.*AWS_PROFILE") as caught:
        AwsAccount("us-west-2")
    assert "--region" not in str(caught.value)
