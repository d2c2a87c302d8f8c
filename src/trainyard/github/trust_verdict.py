"""Compare the trust policy that AWS holds with the one that this repository needs.

`repository.trust_policy` writes the policies.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.github.trust_policy import ISSUER, Form, Subject, trust_policy

IMMUTABLE_SINCE = "2026-07-15"
"""Repositories that were created, renamed or transferred from this day on have immutable subjects."""
ENVIRONMENT = "training"
WORKFLOW = "training_ci.yml"


@dataclass(frozen=True)
class Trusted:
    """A role, and the repository whose jobs it must trust."""

    role: str
    """The ARN."""
    repository: str
    owner_id: int
    repository_id: int
    immutable: bool

    @property
    def form(self) -> Form:
        return Form.IMMUTABLE if self.immutable else Form.NAMES

    @property
    def name(self) -> str:
        """The role's name, without its path."""
        return self.role.rpartition("/")[2]

    @property
    def subject(self) -> Subject:
        return Subject(
            self.repository,
            environment=ENVIRONMENT,
            owner_id=self.owner_id,
            repository_id=self.repository_id,
        )

    def fits(self, held: Mapping[str, Any]) -> bool:
        """Whether `held` is this repository's policy, in any variant that `repository.trust_policy` writes.

        The variants have the repository's form of the subject or both forms, with or without the workflow.
        """
        partition, account = self.role.split(":")[1], self.role.split(":")[4]
        return any(
            _normal(held)
            == _normal(
                trust_policy(self.subject, account=account, form=form, partition=partition, workflow=workflow)
            )
            for form in (self.form, Form.BOTH)
            for workflow in ("", WORKFLOW)
        )

    def create_command(self) -> str:
        """The command that creates the role with that policy."""
        return f"aws iam create-role --role-name {self.name} --assume-role-policy-document file://trust.json"

    def commands(self) -> tuple[str, str]:
        """The commands that write the policy and that set it on the role."""
        partition, account = self.role.split(":")[1], self.role.split(":")[4]
        ids = f" --owner-id {self.owner_id} --repository-id {self.repository_id}" if self.immutable else ""
        part = "" if partition == "aws" else f" --partition {partition}"
        write = (
            f"PYTHONPATH=src python3 -m trainyard init trust-policy --repository {self.repository} "
            f"--account {account} --environment {ENVIRONMENT}{ids}{part} --output trust.json"
        )
        return (
            write,
            f"aws iam update-assume-role-policy --role-name {self.name} --policy-document file://trust.json",
        )


def is_immutable(answer: Mapping[str, Any], created: str) -> bool:
    """Whether the repository's subjects have ids, according to GitHub or else to its creation date."""
    told = answer.get("use_immutable_subject")
    return told if isinstance(told, bool) else created[:10] >= IMMUTABLE_SINCE


def subjects_of(held: Mapping[str, Any]) -> list[str]:
    """The subjects that a policy names, for a message."""
    found: list[str] = []
    for statement in _list(held.get("Statement")):
        condition = statement.get("Condition") if isinstance(statement, dict) else None
        for tests in condition.values() if isinstance(condition, dict) else ():
            found += [
                str(value) for value in _list(tests.get(f"{ISSUER}:sub") if isinstance(tests, dict) else None)
            ]
    return found


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _normal(policy: Any) -> str:
    """A text that is equal for equivalent policies: IAM treats one value like a list of one."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items() if key not in ("Sid", "Id", "Version")}
        if isinstance(value, list):
            items = sorted((plain(inner) for inner in value), key=json.dumps)
            return items[0] if len(items) == 1 else items
        return value

    return json.dumps(plain(policy), sort_keys=True)
