"""Use CodeBuild: send it a source, start a build, follow its phases and its log, stop it.

Every call has a time limit and bounded retries. The caller decides whether a build may be started again.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ServiceError
from trainyard.gateways.aws_refusals import ask_aws, client_settings, unsent

_ATTEMPTS = 5
_LOG_EVENTS = 1000


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
        self._making, self._clients = threading.Lock(), dict[str, Any]()

    def client(self, service: str) -> Any:
        """The client of a service, made when it is first needed: making one takes a fifth of a second.

        A session must not make two at a time, and builds run in threads.
        """
        with self._making:
            if service not in self._clients:
                self._clients[service] = self.session.client(service, config=self._config)
            return self._clients[service]

    def account(self) -> str:
        """The account of the credentials."""
        what = "tell whose account this is"
        answer = self._asked(lambda: self.client("sts").get_caller_identity(), what, service="sts")
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
        found = self._asked(
            lambda: self.client("s3").head_object(Bucket=bucket, Key=key),
            what,
            service="s3",
            absent=("404", "NoSuchKey", "NotFound"),
            missing=missing,
        )
        if found is None:
            send = self.client("s3").upload_file
            self._asked(lambda: send(str(archive), bucket, key), what, service="s3", missing=missing)
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
        answer = self._asked(
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

    def look(self, build_id: str) -> BuildState:
        """The present state of a build."""
        found = self._asked(
            lambda: self.client("codebuild").batch_get_builds(ids=[build_id])["builds"],
            f"look at the build {build_id}",
        )
        if not found:
            raise ServiceError(f"CodeBuild knows no build {build_id}")
        return _state(found[0])

    def read_log(self, state: BuildState, position: str) -> tuple[list[str], str]:
        """The lines of a build's log after `position`, and the new position.

        An empty position means the beginning. A log that does not exist yet has no lines.
        """
        if not state.log_group or not state.log_stream:
            return [], position
        words: dict[str, Any] = {"logGroupName": state.log_group, "logStreamName": state.log_stream}
        words |= {"startFromHead": True, "limit": _LOG_EVENTS}
        words |= {"nextToken": position} if position else {}
        answer = self._asked(
            lambda: self.client("logs").get_log_events(**words),
            "read the build's log",
            service="logs",
            absent=("ResourceNotFoundException",),
        )
        if answer is None:
            return [], position
        lines = [str(event["message"]).rstrip("\r\n") for event in answer["events"]]
        return lines, str(answer.get("nextForwardToken") or position)

    def stop(self, build_id: str) -> None:
        """Stop a build. A build that has ended is not changed."""
        self._asked(lambda: self.client("codebuild").stop_build(id=build_id), f"stop the build {build_id}")

    def _asked(
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
    said = " ".join(str(one.get("message") or "").strip() for one in contexts).strip()
    seconds = found.get("durationInSeconds")
    return CodeBuildPhase(
        name=str(found.get("phaseType", "")),
        status=str(found.get("phaseStatus") or ""),
        seconds=float(seconds) if seconds is not None else None,
        message=said,
    )
