"""Use CodeBuild: send it a source, start a build, read its state and the end of its log, stop it.

Every call has a time limit and bounded retries. The caller decides whether a build may be started again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ServiceError
from trainyard.gateways.aws_refusals import ask_aws, client_settings, unsent

_ATTEMPTS = 5
_TAIL_LINES = 12


@dataclass(frozen=True)
class CodeBuildPhase:
    """One phase of a build."""

    name: str
    """SUBMITTED, QUEUED, PROVISIONING, DOWNLOAD_SOURCE, INSTALL, PRE_BUILD, BUILD, POST_BUILD, …"""
    status: str
    """SUCCEEDED, FAILED, FAULT, TIMED_OUT, STOPPED, CLIENT_ERROR; empty while it runs."""
    seconds: float | None
    message: str
    """CodeBuild's own reason for the failure."""


@dataclass(frozen=True)
class BuildState:
    """A build as CodeBuild describes it."""

    build_id: str
    status: str
    """IN_PROGRESS, SUCCEEDED, FAILED, FAULT, TIMED_OUT, STOPPED."""
    phases: tuple[CodeBuildPhase, ...]
    log_group: str
    log_stream: str
    log_address: str
    exported: Mapping[str, str]
    """The variables that the buildspec exports."""


class CodeBuild:
    """CodeBuild in one region."""

    def __init__(self, region: str = "") -> None:
        import boto3
        from botocore.exceptions import BotoCoreError, NoRegionError
        from botocore.utils import validate_region_name

        self._config = client_settings(read_seconds=30, attempts=_ATTEMPTS)
        try:
            self.session = boto3.session.Session(region_name=region or None)
            if not self.session.region_name:
                raise NoRegionError
            validate_region_name(self.session.region_name)
        except BotoCoreError as error:
            raise unsent(error, "start", region=region) from None
        self.region = str(self.session.region_name)
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """Return the client of a service, made when it is first needed: that takes a fifth of a second."""
        if service not in self._clients:
            self._clients[service] = self.session.client(service, config=self._config)
        return self._clients[service]

    def account(self) -> str:
        """Return the account of the credentials."""
        what = "name the account of these credentials"
        answer = self._ask(lambda: self.client("sts").get_caller_identity(), what, service="sts")
        return str(answer["Account"])

    def upload_source(self, archive: Path, *, bucket: str, key: str) -> bool:
        """Put an archive into a bucket unless it exists there; return whether it was sent.

        The key must contain the digest of the content, because an existing object is assumed to be the same.
        """
        what = f"put the source into s3://{bucket}/{key}"
        text = (
            f"S3 has no bucket {bucket}, or it is not one of this account. Set it up once with "
            f"infrastructure/setup-codebuild.sh --region {self.region}, or name another with --source-bucket."
        )
        missing = dict.fromkeys(("NoSuchBucket", "404"), text)
        found = self._ask(
            lambda: self.client("s3").head_object(Bucket=bucket, Key=key),
            what,
            service="s3",
            absent=("404", "NoSuchKey", "NotFound"),
            missing=missing,
        )
        if found is None:
            send = self.client("s3").upload_file
            self._ask(lambda: send(str(archive), bucket, key), what, service="s3", missing=missing)
        return found is None

    def start(
        self, project: str, *, source: Mapping[str, str], variables: Mapping[str, str], token: str
    ) -> str:
        """Start a build and return its id. Two calls with the same `token` start one build.

        `source` has sourceTypeOverride, sourceLocationOverride and sourceVersion.
        """
        environment = [{"name": key, "value": value, "type": "PLAINTEXT"} for key, value in variables.items()]
        missing = (
            f"CodeBuild of {self.region} has no project {project}. Set it up once with "
            f"infrastructure/setup-codebuild.sh --project-name {project} --region {self.region}, or name "
            "another with --project."
        )
        answer = self._ask(
            lambda: self.client("codebuild").start_build(
                projectName=project,
                environmentVariablesOverride=environment,
                idempotencyToken=token,
                **source,
            ),
            f"start a build of {project}",
            missing={"ResourceNotFoundException": missing},
        )
        return str(answer["build"]["id"])

    def states(self, build_ids: Sequence[str]) -> dict[str, BuildState]:
        """Return the present states of builds by their ids. Raises ServiceError if one is unknown."""
        found = self._ask(
            lambda: self.client("codebuild").batch_get_builds(ids=list(build_ids))["builds"],
            f"read the state of the build {', '.join(build_ids)}",
        )
        states = {str(one["id"]): _state(one) for one in found}
        if unknown := [one for one in build_ids if one not in states]:
            raise ServiceError(f"CodeBuild knows no build {', '.join(unknown)}")
        return states

    def log_tail(self, state: BuildState) -> list[str]:
        """Return the last lines of a build's log; none if there is no log."""
        if not state.log_group or not state.log_stream:
            return []
        answer = self._ask(
            lambda: self.client("logs").get_log_events(
                logGroupName=state.log_group, logStreamName=state.log_stream, limit=_TAIL_LINES
            ),
            "read the build's log",
            service="logs",
            absent=("ResourceNotFoundException",),
        )
        return [str(event["message"]).rstrip("\r\n") for event in (answer or {}).get("events", ())]

    def stop(self, build_id: str) -> None:
        """Stop a build. A build that has ended is not changed."""
        self._ask(lambda: self.client("codebuild").stop_build(id=build_id), f"stop the build {build_id}")

    def _ask(
        self,
        work: Callable[[], Any],
        what: str,
        *,
        service: str = "codebuild",
        absent: tuple[str, ...] = (),
        missing: Mapping[str, str] | None = None,
    ) -> Any:
        return ask_aws(work, what, service=service, region=self.region, absent=absent, missing=missing)


def _state(found: Mapping[str, Any]) -> BuildState:
    logs = found.get("logs") or {}
    exported = found.get("exportedEnvironmentVariables") or ()
    return BuildState(
        build_id=str(found["id"]),
        status=str(found.get("buildStatus", "")),
        phases=tuple(_phase(one) for one in found.get("phases") or ()),
        log_group=str(logs.get("groupName") or ""),
        log_stream=str(logs.get("streamName") or ""),
        log_address=str(logs.get("deepLink") or ""),
        exported={str(one["name"]): str(one.get("value", "")) for one in exported},
    )


def _phase(found: Mapping[str, Any]) -> CodeBuildPhase:
    contexts = found.get("contexts") or ()
    message = " ".join(str(one.get("message") or "").strip() for one in contexts).strip()
    seconds = found.get("durationInSeconds")
    return CodeBuildPhase(
        name=str(found.get("phaseType", "")),
        status=str(found.get("phaseStatus") or ""),
        seconds=float(seconds) if seconds is not None else None,
        message=message,
    )
