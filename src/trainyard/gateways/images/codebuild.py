"""Use CodeBuild: send it a source, start a build, follow its phases and its log, stop it.

Every call has a time limit and botocore's bounded retries, which cover throttling. The caller decides whether
a build may be started again.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainyard.errors import ConfigError, ServiceError
from trainyard.gateways.aws_refusals import code_of, refusal, unsent

Answer = TypeVar("Answer")
_ATTEMPTS = 5
_LOG_EVENTS = 1000
_CODE = re.compile(r"An error occurred \((\w+)\) when calling the \w+ operation(?: \([^)]*\))?: ?(.*)", re.S)


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
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, NoRegionError
        from botocore.utils import validate_region_name

        retries = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
        self._config = Config(connect_timeout=5, read_timeout=30, retries=retries)
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
        found = self._asked(
            lambda: self.client("sts").get_caller_identity()["Account"],
            "tell whose account this is",
            service="sts",
        )
        return str(found)

    def upload_source(self, archive: Path, *, bucket: str, key: str) -> bool:
        """Put an archive into a bucket unless it exists there; return whether it was sent.

        The key must contain the digest of the content, because an existing object is assumed to be the same.
        """

        def send() -> bool:
            client = self.client("s3")
            if self._has_object(client, bucket, key):
                return False
            client.upload_file(str(archive), bucket, key)
            return True

        missing = (
            f"S3 has no bucket {bucket}, or it is not one of this account. Set it up once with "
            f"infrastructure/setup-codebuild.sh --region {self.region}, or name another with --source-bucket."
        )
        what, codes = f"put the source into s3://{bucket}/{key}", ("NoSuchBucket", "404")
        return self._asked(send, what, service="s3", absent=codes, else_say=missing)

    def start(
        self, project: str, *, source: Mapping[str, str], variables: Mapping[str, str], token: str
    ) -> str:
        """Start a build of `source` (sourceTypeOverride, sourceLocationOverride, sourceVersion); return its
        id.

        Two calls with the same `token` start one build.
        """
        environment = [{"name": key, "value": value, "type": "PLAINTEXT"} for key, value in variables.items()]

        def begin() -> str:
            answer = self.client("codebuild").start_build(
                projectName=project,
                environmentVariablesOverride=environment,
                idempotencyToken=token,
                **source,
            )
            return str(answer["build"]["id"])

        missing = (
            f"CodeBuild of {self.region} has no project {project}. Set it up once with "
            f"infrastructure/setup-codebuild.sh --project-name {project} --region {self.region}, or name "
            "another with --project."
        )
        codes = ("ResourceNotFoundException",)
        return self._asked(begin, f"start a build of {project}", absent=codes, else_say=missing)

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
        answer = self._asked(lambda: self._log_events(words), "read the build's log", service="logs")
        lines = [str(event["message"]).rstrip("\r\n") for event in answer["events"]]
        return lines, str(answer.get("nextForwardToken") or position)

    def stop(self, build_id: str) -> None:
        """Stop a build. A build that has ended is not changed."""
        self._asked(lambda: self.client("codebuild").stop_build(id=build_id), f"stop the build {build_id}")

    def _log_events(self, words: Mapping[str, Any]) -> Any:
        from botocore.exceptions import ClientError

        try:
            return self.client("logs").get_log_events(**words)
        except ClientError as error:
            if code_of(error)[0] == "ResourceNotFoundException":
                return {"events": []}
            raise

    def _has_object(self, client: Any, bucket: str, key: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            client.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if code_of(error)[0] in ("404", "NoSuchKey", "NotFound"):
                return False
            raise
        return True

    def _asked(
        self,
        work: Callable[[], Answer],
        what: str,
        *,
        service: str = "codebuild",
        absent: Sequence[str] = (),
        else_say: str = "",
    ) -> Answer:
        """The answer of `work`. Raises ConfigError with the text `else_say` for an error code in `absent`."""
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return work()
        except ClientError as error:
            code, said = code_of(error)
        except S3UploadFailedError as error:  # it holds botocore's error as a text only
            found = _CODE.search(str(error))
            code, said = (found[1], found[2]) if found else ("", str(error))
        except BotoCoreError as error:
            raise unsent(error, what, region=self.region) from None
        if code in absent:
            raise ConfigError(else_say)
        raise refusal(code, said, what, service=service, region=self.region)


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
