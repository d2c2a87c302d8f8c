"""The trust policy of an AWS role: it trusts the jobs of one environment, branch or tag of one repository.

    Subject (who, in which form)  ──>  IAM trust policy, equal conditions only

GitHub's OIDC token names its job in `sub`. Repositories created after 15 July 2026 have immutable subjects,
with the numeric ids of owner and repository; older ones have names alone. A policy of the wrong form refuses
every job. Nothing is sent to AWS here.
https://docs.github.com/en/actions/reference/security/oidc
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.errors import ConfigError

ISSUER = "token.actions.githubusercontent.com"
AUDIENCE = "sts.amazonaws.com"
_PARTITIONS = ("aws", "aws-cn", "aws-us-gov")
IMMUTABLE_SINCE = "2026-07-15"
"""Repositories that were created, renamed or transferred from this day on have immutable subjects."""
ENVIRONMENT = "training"
WORKFLOW = "training_ci.yml"


class Form(StrEnum):
    """The form of a subject's owner and repository."""

    NAMES = "names"
    """`repo:OWNER/REPO:…`, of repositories created before."""
    IMMUTABLE = "immutable"
    """`repo:OWNER@ID/REPO@ID:…`. Another owner's repository of the same name does not match."""
    BOTH = "both"
    """Both forms, for use while the right one is not known or is about to change."""


@dataclass(frozen=True)
class Subject:
    """The trusted jobs: those of an environment, or those of a ref if the job has no environment."""

    repository: str
    """`OWNER/REPO`."""
    environment: str = ""
    ref: str = ""
    """`refs/heads/main` or `refs/tags/v1`; a job with an environment has none in its subject."""
    owner_id: int | None = None
    repository_id: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that cannot be in a subject, or that would match several."""
        if not re.fullmatch(r"[A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100}", self.repository, re.ASCII):
            raise ConfigError(f"{self.repository[:140]!r} is not OWNER/REPO")
        if bool(self.environment) == bool(self.ref):
            raise ConfigError("Name either an environment or a ref: a subject has exactly one of them.")
        place = self.environment or self.ref
        if re.search(r"[*?$\s\x00-\x1f]", place) or len(place) > 255:
            raise ConfigError(f"{place[:80]!r} would match more than one place, or none. Name exactly one.")
        if self.ref and not re.match(r"refs/(heads|tags)/[^/]", self.ref):
            raise ConfigError(f"{self.ref!r} is not a ref such as refs/heads/main or refs/tags/v1.2.3")

    def text(self, form: Form) -> str:
        """Return the `sub` of the token in one form. Raises ConfigError when ids are needed and not known."""
        owner, name = self.repository.split("/")
        if form is Form.IMMUTABLE:
            if self.owner_id is None or self.repository_id is None:
                raise ConfigError(
                    "The immutable form needs the ids of owner and repository: "
                    f"gh api repos/{self.repository} --jq '.owner.id, .id' prints them."
                )
            owner, name = f"{owner}@{self.owner_id}", f"{name}@{self.repository_id}"
        kind, place = ("environment", self.environment) if self.environment else ("ref", self.ref)
        return f"repo:{owner}/{name}:{kind}:{place.replace(':', '%3A')}"

    def texts(self, form: Form) -> list[str]:
        forms = (Form.NAMES, Form.IMMUTABLE) if form is Form.BOTH else (form,)
        return [self.text(each) for each in forms]


def trust_policy(
    subject: Subject, *, account: str, form: Form, partition: str = "aws", workflow: str = ""
) -> dict[str, Any]:
    """Return the trust policy of the role.

    `workflow` is the file that has the job, `train.yml` or `OWNER/REPO/.github/workflows/train.yml`, with
    `@REF` unless it is that of the subject or main. It adds GitHub's further claims: that file, and the id of
    the repository where it is known. STS checks them since January 2026. Raises ConfigError when impossible.
    """
    if not re.fullmatch(r"\d{12}", account, re.ASCII):
        raise ConfigError(f"{account[:40]!r} is not an AWS account, which has twelve digits")
    if partition not in _PARTITIONS:
        raise ConfigError(f"{partition!r} is none of {', '.join(_PARTITIONS)}")
    subjects = subject.texts(form)
    equal: dict[str, Any] = {"aud": AUDIENCE, "sub": subjects if len(subjects) > 1 else subjects[0]}
    if workflow:
        file, _, ref = workflow.partition("@")
        path = file if "/" in file else f"{subject.repository}/.github/workflows/{file}"
        if not re.fullmatch(r"[\w.-]+/[\w.-]+/\.github/workflows/[\w.-]+\.ya?ml", path, re.ASCII):
            raise ConfigError(f"{workflow[:80]!r} is not a file of .github/workflows, such as train.yml")
        equal["job_workflow_ref"] = f"{path}@{ref or subject.ref or 'refs/heads/main'}"
        if subject.repository_id is not None:
            equal["repository_id"] = str(subject.repository_id)
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Federated": f"arn:{partition}:iam::{account}:oidc-provider/{ISSUER}"},
                "Action": "sts:AssumeRoleWithWebIdentity",
                "Condition": {"StringEquals": {f"{ISSUER}:{name}": value for name, value in equal.items()}},
            }
        ],
    }


def trust_command(role: str, repository: str, ids: Sequence[int]) -> str:
    """Return the command that writes the policy of the role with this ARN; `ids` for the immutable form."""
    _, partition, _, _, account, _ = role.split(":")
    given = "".join(f" --{name} {one}" for name, one in zip(("owner-id", "repository-id"), ids, strict=False))
    part = "" if partition == "aws" else f" --partition {partition}"
    return (
        f"PYTHONPATH=src python3 -m trainyard init trust-policy --repository {repository} "
        f"--account {account} --environment {ENVIRONMENT}{given}{part} --output trust.json"
    )


def is_immutable(answer: Mapping[str, Any], created: str) -> bool:
    """Return whether the repository's subjects have ids, according to GitHub or else to its creation date."""
    given = answer.get("use_immutable_subject")
    return given if isinstance(given, bool) else created[:10] >= IMMUTABLE_SINCE
