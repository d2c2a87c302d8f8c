"""Use CodeBuild: send it a source, start a build, follow its phases and its log, stop it.

Every call has a time limit and botocore's bounded retries, which cover throttling. The caller decides whether
a build may be started again.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainyard.errors import (
    ConfigError,
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    ServiceTroubleError,
)

Answer = TypeVar("Answer")
_ATTEMPTS = 5
_LOG_EVENTS = 1000
_REFUSED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403")
_UNKNOWN_CALLER = (
    *("UnrecognizedClientException", "InvalidClientTokenId", "ExpiredToken", "ExpiredTokenException"),
    *("SignatureDoesNotMatch", "InvalidSignatureException", "InvalidAccessKeyId"),
)
_QUOTA = ("AccountLimitExceededException", "LimitExceededException", "ServiceQuotaExceededException")
_TRANSIENT = ("Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded", "SlowDown")


class QuotaError(ServiceError):
    """AWS accepts no more builds now, because a quota of the account is used up."""


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
        from botocore.exceptions import BotoCoreError, NoRegionError, ProfileNotFound
        from botocore.utils import validate_region_name

        retries = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
        self._config = Config(connect_timeout=5, read_timeout=30, retries=retries)
        try:
            self.session = boto3.session.Session(region_name=region or None)
            if not self.session.region_name:
                raise NoRegionError
            validate_region_name(self.session.region_name)
        except ProfileNotFound as error:
            raise ConfigError(f"{error}: set AWS_PROFILE to one of `aws configure list-profiles`") from None
        except (BotoCoreError, ValueError) as error:
            said = str(error).rstrip(".")
            raise ConfigError(f"{said}; name a region with --region, such as us-west-2") from None
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
        return str(self._asked(lambda: self.client("sts").get_caller_identity()["Account"], "ask who we are"))

    def upload_source(self, archive: Path, *, bucket: str, key: str) -> bool:
        """Put an archive into a bucket unless it exists there; return whether it was sent.

        The key must contain the digest of the content, because an existing object is assumed to be the same.
        """
        client = self.client("s3")

        def send() -> bool:
            if self._has_object(client, bucket, key):
                return False
            client.upload_file(str(archive), bucket, key)
            return True

        return self._asked(send, f"put the source into s3://{bucket}/{key}")

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

        return self._asked(begin, f"start a build of the project {project}")

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
            missing={"events": []},
        )
        lines = [str(event["message"]).rstrip("\r\n") for event in answer["events"]]
        return lines, str(answer.get("nextForwardToken") or position)

    def stop(self, build_id: str) -> None:
        """Stop a build. A build that has ended is not changed."""
        self._asked(lambda: self.client("codebuild").stop_build(id=build_id), f"stop the build {build_id}")

    def _has_object(self, client: Any, bucket: str, key: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            client.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) in ("404", "NoSuchKey", "NotFound"):
                return False
            raise
        return True

    def _asked(self, work: Callable[[], Answer], what: str, missing: Any = None) -> Answer:
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            return work()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code == "ResourceNotFoundException" and missing is not None:
                return missing  # type: ignore[no-any-return]
            raise self._refusal(code, str(error.response.get("Error", {}).get("Message", "")), what) from None
        except S3UploadFailedError as error:
            code = "NoSuchBucket" if "NoSuchBucket" in str(error) else ""
            code = code or ("AccessDenied" if "AccessDenied" in str(error) else "")
            raise self._refusal(code, str(error), what) from None
        except NoCredentialsError:
            raise CredentialsRefusedError(
                f"There are no AWS credentials to {what} with; set AWS_PROFILE, or log in with aws sso login"
            ) from None
        except BotoCoreError as error:
            raise ServiceTroubleError(
                f"AWS in {self.region} could not be reached to {what}: {error}. If the name of the region is "
                "right, look at the network."
            ) from None

    def _refusal(self, code: str, said: str, what: str) -> Exception:
        where = f"AWS in {self.region}"
        if code == "ResourceNotFoundException":
            return ConfigError(
                f"{where} cannot {what}: {said or 'there is none'}. Set it up once: "
                f"infrastructure/setup-codebuild.sh --region {self.region}"
            )
        if code in ("NoSuchBucket", "404"):
            return ConfigError(
                f"{where} cannot {what}: there is no such bucket. Set it up once with "
                f"infrastructure/setup-codebuild.sh --region {self.region}, or name another with "
                "--source-bucket."
            )
        if code in _QUOTA:
            return QuotaError(
                f"{where} refuses to {what}: a quota of the account is used up ({said or code}). Wait for "
                "other "
                "builds, or ask for more in Service Quotas (CodeBuild, concurrently running builds)."
            )
        if code in _UNKNOWN_CALLER:
            return CredentialsRefusedError(
                f"{where} does not take the credentials to {what} ({code}). They have run out, or the "
                "region is not enabled for the account (Account settings, AWS Regions)."
            )
        if code in _REFUSED:
            return PermissionRefusedError(
                f"{where} does not allow to {what} ({code}): {said}. What the role needs is in "
                "docs/runbooks/permissions.md."
            )
        if code in _TRANSIENT:
            return ServiceTroubleError(f"{where} is too busy to {what} ({code}), after {_ATTEMPTS} attempts")
        return ServiceError(f"{where} refused to {what} ({code}): {said}")


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
