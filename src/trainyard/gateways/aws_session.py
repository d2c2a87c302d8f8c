"""Create the sessions of botocore and boto3 from which every AWS client of Trainyard comes.

    TRAINYARD_AWS_ROLE ──> GitHub's OIDC token ──> AssumeRoleWithWebIdentity, refreshed by botocore
    without it         ──> AWS's own settings (environment, profile, role of the machine), unchanged

A job of GitHub Actions needs the permission `id-token: write`. TRAINYARD_AWS_REGION is the region, default
AWS's own setting, else us-east-1. TRAINYARD_AWS_ACCESS narrows the role for one step by a session policy:
`read`, `check` (what trainyard doctor does) or `write`, the default: all that the role may do.
"""

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from trainyard.errors import (
    ConfigError,
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    ServiceTroubleError,
)
from trainyard.gateways.bounded_calls import call_again
from trainyard.gateways.http_requests import is_http, send_request

ROLE, REGION, ACCESS = "TRAINYARD_AWS_ROLE", "TRAINYARD_AWS_REGION", "TRAINYARD_AWS_ACCESS"
TOKEN_URL, TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
# The `aud` of the token, which the identity provider in AWS and the role's trust policy have to list.
AUDIENCE = "sts.amazonaws.com"
# Seconds to connect to STS, and to wait for one answer. No attempt starts after ATTEMPTS_SECONDS.
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
ATTEMPTS, ATTEMPTS_SECONDS = 5, 20.0
# botocore refreshes in the last 15 minutes, in one thread; in the last two every thread waits for it.
_LATE_SECONDS = 120
_ARN = re.compile(r"arn:(aws|aws-cn|aws-us-gov):iam::(\d{12}):role/([\w+=,.@/-]{1,576})", re.ASCII)
# Error codes of STS that another attempt, which gets a new token, can pass.
_TROUBLE = (
    *("Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException"),
    *("IDPCommunicationError", "ExpiredTokenException", "InternalFailure", "ServiceUnavailable"),
)
# An error code of STS -> the class of the error, and what to do.
_FIXES = {
    "AccessDenied": (
        PermissionRefusedError,
        "There is no such role, or it does not trust this job. Compare its policy's sub with the "
        "token's: {sub}. trainyard init github --aws-role ARN prints the commands that trust it. ",
    ),
    "InvalidIdentityToken": (
        CredentialsRefusedError,
        f"The account's identity provider does not list GitHub's issuer, or not the audience {AUDIENCE}. ",
    ),
}


def _allow(actions: str, resource: str = "*") -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions.split(), "Resource": resource}


# The statements of each session policy; none for the complete role. `check` reads who has which run number,
# and writes only the objects of the check, which belong to no run.
_STATEMENTS = {
    "read": [_allow("s3:ListBucket s3:GetObject kms:Decrypt")],
    "check": [
        _allow("s3:ListBucket kms:Decrypt kms:GenerateDataKey"),
        _allow("s3:GetObject", "arn:*:s3:::*/run-*/identity.json"),
        _allow("s3:GetObject", "arn:*:s3:::*/ids/*"),
        _allow("s3:GetObject s3:PutObject s3:AbortMultipartUpload", "arn:*:s3:::*/trainyard-readiness.*"),
    ],
    "write": [],
}


@dataclass(frozen=True)
class WorkflowRole:
    """The role that the steps of a workflow assume with GitHub's OIDC token."""

    arn: str
    session_name: str
    policy: str
    """The session policy; empty for none."""
    token_url: str
    """GitHub's address for a token of this job."""
    token: str = field(repr=False)
    """The job's secret that requests the token."""


def workflow_role(environment: Mapping[str, str] = os.environ) -> WorkflowRole | None:
    """Return the role that the environment names; None without one.

    Raises ConfigError that names the wrong or missing variable.
    """
    arn, access = environment.get(ROLE, "").strip(), environment.get(ACCESS) or "write"
    if not arn:
        return None
    if not _ARN.fullmatch(arn):
        raise ConfigError(
            f"{ROLE}: {arn[:200]!r} is not a role such as arn:aws:iam::123456789012:role/trainyard-ci"
        )
    if access not in _STATEMENTS:
        raise ConfigError(f"{ACCESS}: {access[:80]!r} is none of {', '.join(_STATEMENTS)}")
    if missing := [name for name in (TOKEN_URL, TOKEN) if not environment.get(name)]:
        raise ConfigError(
            f"{ROLE} is {arn}, and {missing[0]} is not set: GitHub sets it in jobs with "
            "`permissions: id-token: write`. Add that permission to the job. Outside GitHub Actions, remove "
            f"{ROLE}, so that AWS's own settings apply."
        )
    url = environment[TOKEN_URL]
    if not is_http(url):
        raise ConfigError(f"{TOKEN_URL} is not an http or https address")
    run = re.sub(r"[^\w+=,.@-]", "-", environment.get("GITHUB_RUN_ID") or "local", flags=re.ASCII)
    document = {"Version": "2012-10-17", "Statement": _STATEMENTS[access]}
    policy = json.dumps(document, separators=(",", ":")) if _STATEMENTS[access] else ""
    url += f"{'&' if '?' in url else '?'}audience={AUDIENCE}"
    return WorkflowRole(arn, f"trainyard-{run}"[:64], policy, url, environment[TOKEN])


def botocore_session(*, region: str = "") -> Any:
    """Return a session of botocore. Raises ConfigError for variables that cannot be used."""
    import botocore.session

    core = botocore.session.get_session()
    role = workflow_role()
    if role is not None:
        own = core.get_config_variable("region") or os.environ.get("AWS_REGION")
        region = region or os.environ.get(REGION) or own or "us-east-1"
        core.get_component("credential_provider").providers.insert(0, RoleProvider(role, core))
    if region:
        core.set_config_variable("region", region)
    return core


def boto3_session(*, region: str = "") -> Any:
    """Return a session of boto3.

    Raises ConfigError for variables that cannot be used, and the errors of botocore for its own settings.
    """
    import boto3

    core = botocore_session(region=region)
    return boto3.session.Session(botocore_session=core, region_name=region or None)


def credential_variables() -> dict[str, str]:
    """Return AWS's variables with credentials of the workflow's role, for a program that is not ours.

    They are not refreshed, and live for an hour. Empty without such a role. Raises ConfigError, ServiceError.
    """
    if workflow_role() is None:
        return {}
    core = botocore_session()
    credentials, region = core.get_credentials().get_frozen_credentials(), core.get_config_variable("region")
    return {
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.token,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
    }


def assume_workflow_role() -> None:
    """Assume the workflow's role once. Raises ConfigError or ServiceError if that is not possible."""
    if workflow_role() is not None:
        botocore_session().get_credentials()


class RoleProvider:
    """The first provider in a session's chain of credentials: those of the workflow's role, and no others."""

    METHOD = "assume-role-with-github-token"

    def __init__(self, role: WorkflowRole, core: Any) -> None:
        """`core` is the session of botocore whose credentials these will be."""
        self._assume = partial(
            call_again, partial(_assume, role, core), attempts=ATTEMPTS, seconds=ATTEMPTS_SECONDS
        )

    def load(self) -> Any:
        """Return credentials that botocore refreshes. Raises ServiceError when the role cannot be assumed."""
        from botocore.credentials import RefreshableCredentials

        return RefreshableCredentials.create_from_metadata(
            self._assume(), self._assume, self.METHOD, mandatory_timeout=_LATE_SECONDS
        )


def _assume(role: WorkflowRole, core: Any) -> dict[str, str]:
    """Return new credentials as botocore's metadata. Raises ServiceTroubleError for another attempt."""
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    token = request_token(role)
    limits = Config(
        signature_version=UNSIGNED,
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 1},  # each attempt needs a new token
    )
    # With keys, even empty ones, botocore does not look for credentials, which would lead here again.
    no_keys = {"aws_access_key_id": "", "aws_secret_access_key": ""}
    policy = {"Policy": role.policy} if role.policy else {}
    try:
        sts = core.create_client("sts", config=limits, **no_keys)
        found = sts.assume_role_with_web_identity(
            RoleArn=role.arn, RoleSessionName=role.session_name, WebIdentityToken=token, **policy
        )["Credentials"]
        expires, names = found["Expiration"], ("AccessKeyId", "SecretAccessKey", "SessionToken")
        access_key, secret_key, session_token = (found[name] for name in names)
    except ClientError as error:
        raise _refusal(error, role.arn, token) from None
    except (BotoCoreError, ResponseParserError, KeyError, TypeError, ValueError) as error:
        raise ServiceTroubleError(
            f"The role {role.arn} could not be assumed: AWS STS gave no usable answer "
            f"({type(error).__name__}: {error})."
        ) from None
    if expires <= datetime.now(UTC):
        raise ServiceError(f"The credentials of {role.arn} have expired already: set this machine's clock.")
    return {
        "access_key": access_key,
        "secret_key": secret_key,
        "token": session_token,
        "expiry_time": expires.isoformat(),
    }


def request_token(role: WorkflowRole) -> str:
    """Return a new OIDC token of this job. Raises ServiceError if GitHub refuses, or cannot be reached."""
    cause, host = f"GitHub gave no OIDC token for the role {role.arn}", role.token_url.split("/")[2]
    try:
        answer = send_request(
            "GET",
            role.token_url,
            seconds=ANSWER_SECONDS,
            headers={"Accept": "application/json"},
            authorization=f"Bearer {role.token}",
        )
        if answer.status == 200:
            return str(json.loads(answer.content)["value"])
    except ServiceTroubleError as error:
        raise ServiceTroubleError(
            f"{cause}: {error}. Let the runner reach *.actions.githubusercontent.com."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ServiceTroubleError(f"{cause}: {host} answered without one.") from None
    if answer.status == 429 or answer.status >= 500:  # a proxy has statuses of its own
        raise ServiceTroubleError(f"{cause}: {host} answered {answer.status}, after several attempts.")
    raise CredentialsRefusedError(
        f"{cause}: {host} answered {answer.status} to this job's {TOKEN}. That secret is valid only while "
        "its job runs: check that the job has not ended and has `permissions: id-token: write`. Run it again."
    )


def _refusal(error: Any, arn: str, token: str) -> ServiceError:
    """Return the error for an answer of STS."""
    found: Mapping[str, Any] = error.response.get("Error", {})
    code, message = str(found.get("Code", "")), str(found.get("Message", "")).strip().rstrip(".")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    cause = f"The role {arn} could not be assumed with GitHub's OIDC token ({code}: {message})."
    if code in _TROUBLE or status >= 500 or status == 429 or "retrieve verification key" in message:
        return ServiceTroubleError(f"{cause} Several attempts failed. Run the job again.")
    kind, fix = _FIXES.get(code, (ServiceError, ""))
    return kind(f"{cause} {fix.format(sub=_subject(token))}See docs/runbooks/permissions.md#aws-role.")


def _subject(token: str) -> str:
    """Return the `sub` of a JSON web token, unverified, for a message."""
    try:
        part = token.split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["sub"])
    except (ValueError, LookupError, TypeError):
        return "unknown"
