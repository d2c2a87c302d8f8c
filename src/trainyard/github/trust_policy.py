"""The trust policy of an AWS role: it trusts the jobs of one environment of one repository.

    Subject (which jobs)  ──>  IAM trust policy, equal conditions only

GitHub's OIDC token names its job in `sub`. Repositories created after 15 July 2026 have immutable subjects,
with the numeric ids of owner and repository; older ones have names alone. A policy of the wrong form refuses
every job. Nothing is sent to AWS here.
https://docs.github.com/en/actions/reference/security/oidc
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError

ISSUER = "token.actions.githubusercontent.com"
AUDIENCE = "sts.amazonaws.com"
IMMUTABLE_SINCE = "2026-07-15"
"""Repositories that were created, renamed or transferred from this day on have immutable subjects."""
ENVIRONMENT = "training"
WORKFLOW = "training_ci.yml"


@dataclass(frozen=True)
class Subject:
    """The trusted jobs: those of an environment of a repository."""

    repository: str
    """`OWNER/REPO`."""
    environment: str
    owner_id: int | None = None
    repository_id: int | None = None
    """With both ids the immutable form, which another owner's repository of the same name does not match."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that cannot be in a subject, or that would match several."""
        if not re.fullmatch(r"[A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100}", self.repository, re.ASCII):
            raise ConfigError(f"{self.repository[:140]!r} is not OWNER/REPO")
        place = self.environment
        if not place or re.search(r"[*?$\s\x00-\x1f]", place) or len(place) > 255:
            raise ConfigError(f"{place[:80]!r} would match more than one place, or none. Name exactly one.")

    @property
    def text(self) -> str:
        """Return the `sub` of the token."""
        owner, name = self.repository.split("/")
        if self.owner_id is not None and self.repository_id is not None:
            owner, name = f"{owner}@{self.owner_id}", f"{name}@{self.repository_id}"
        return f"repo:{owner}/{name}:environment:{self.environment.replace(':', '%3A')}"


def trust_policy(subject: Subject, role: str) -> dict[str, Any]:
    """Return the trust policy of the role with this ARN."""
    _, partition, _, _, account, _ = role.split(":")
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Federated": f"arn:{partition}:iam::{account}:oidc-provider/{ISSUER}"},
                "Action": "sts:AssumeRoleWithWebIdentity",
                "Condition": {"StringEquals": {f"{ISSUER}:aud": AUDIENCE, f"{ISSUER}:sub": subject.text}},
            }
        ],
    }


def is_immutable(answer: Mapping[str, Any], created: str) -> bool:
    """Return whether the repository's subjects have ids, according to GitHub or else to its creation date."""
    given = answer.get("use_immutable_subject")
    return given if isinstance(given, bool) else created[:10] >= IMMUTABLE_SINCE
