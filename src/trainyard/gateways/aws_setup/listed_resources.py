"""Make an account match the list of resources, or remove the resources of the list.

    wanted (resource, properties)  ──>  a Kind for its type  ──>  Finding, one for each resource

The differences are read first, so a second run changes nothing. After a change the resource is read again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from trainyard.errors import ServiceError
from trainyard.gateways.aws_setup.account import AwsAccount
from trainyard.gateways.aws_setup.buckets import S3Bucket, S3BucketPolicy
from trainyard.gateways.aws_setup.builds import BuildProject
from trainyard.gateways.aws_setup.identities import AccessEntry, IamRole, OidcProvider
from trainyard.gateways.aws_setup.registry_and_log import EcrRepositorySetup, LogGroup

_NAMES = ("RepositoryName", "BucketName", "Bucket", "LogGroupName", "RoleName", "Name", "Url", "PrincipalArn")


class ResourceKind(Protocol):
    """One type of resource."""

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        """The settings that are compared, in the API's words."""

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        """The same settings in AWS; None when there is no such resource."""

    def create(self, p: dict[str, Any]) -> None:
        """Create it."""

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        """Change the settings named by `keys` to those of `wanted`."""

    def stays(self, p: dict[str, Any]) -> str:
        """Why it must not be removed: it holds data, or others use it; empty: it may be."""

    def remove(self, p: dict[str, Any]) -> None:
        """Remove it."""


class Listed(Protocol):
    """The fields of a listed resource that this module uses."""

    @property
    def type(self) -> str:
        """Its CloudFormation type."""


@dataclass(frozen=True)
class ResourceChange:
    """The state of one resource, and what was done about it."""

    resource: Listed
    name: str
    before: dict[str, Any] | None
    differences: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()
    """Differences that remain after the change; AWS did not keep these settings."""
    done: bool = False
    kept: str = ""
    refused: str = ""


class Application:
    """Applies the list to one account."""

    def __init__(
        self,
        aws: AwsAccount,
        compare: Callable[[Any, Any], Iterator[str]],
        *,
        account: str,
        partition: str,
    ) -> None:
        call = aws.call
        self._compare = compare
        self._kinds: dict[str, ResourceKind] = {
            "AWS::ECR::Repository": EcrRepositorySetup(call),
            "AWS::S3::Bucket": S3Bucket(call, region=aws.region, account=account),
            "AWS::S3::BucketPolicy": S3BucketPolicy(call),
            "AWS::Logs::LogGroup": LogGroup(call),
            "AWS::IAM::Role": IamRole(call),
            "AWS::IAM::OIDCProvider": OidcProvider(call, partition=partition, account=account),
            "AWS::CodeBuild::Project": BuildProject(call),
            "AWS::EKS::AccessEntry": AccessEntry(call),
        }

    def apply(
        self, wanted: Iterable[tuple[Listed, dict[str, Any]]], *, dry_run: bool
    ) -> Iterator[ResourceChange]:
        """Create what is missing and change what differs, up to the first refusal: later ones need it."""
        for resource, properties in wanted:
            name = _name(properties)
            try:
                change = self._agree(resource, properties, dry_run=dry_run)
            except ServiceError as error:
                yield ResourceChange(resource, name, None, refused=str(error))
                return
            yield change

    def _agree(self, resource: Listed, p: dict[str, Any], *, dry_run: bool) -> ResourceChange:
        kind, name = self._kinds[resource.type], _name(p)
        before, wanted = kind.found(p), kind.wanted(p)
        differing = tuple(self._compare(wanted, before)) if before is not None else ()
        if dry_run or (before is not None and not differing):
            return ResourceChange(resource, name, before, differing)
        if before is None:
            kind.create(p)
        else:
            kind.change(p, {key for key in wanted if any(self._compare({key: wanted[key]}, before))})
        remaining = tuple(self._compare(wanted, kind.found(p) or {}))
        return ResourceChange(resource, name, before, differing, remaining, done=True)

    def remove(
        self, wanted: Iterable[tuple[Listed, dict[str, Any]]], *, dry_run: bool
    ) -> Iterator[ResourceChange]:
        """Remove resources without data, in reverse order. Continue after a refusal.

        A dry run asks the same questions, so it says what the removal would do.
        """
        for resource, p in reversed(list(wanted)):
            kind, name = self._kinds[resource.type], _name(p)
            try:
                before = kind.found(p)
                kept = kind.stays(p) if before is not None else ""
                removes = before is not None and not kept and not dry_run
                if removes:
                    kind.remove(p)
            except ServiceError as error:
                yield ResourceChange(resource, name, None, refused=str(error))
                continue
            yield ResourceChange(resource, name, before, done=removes, kept=kept)


def _name(p: dict[str, Any]) -> str:
    return next(str(p[key]) for key in _NAMES if key in p)
