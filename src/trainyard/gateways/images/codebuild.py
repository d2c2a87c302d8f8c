"""Use CodeBuild: send it a source, start a build, follow it to its end, read the end of its log, stop it.

Every call has a time limit and bounded retries. The caller decides whether a build may be started again.
"""

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.images.context_files import write_archive

_TAIL_LINES = 12
# A build is no longer followed when CodeBuild has not answered this many times in a row.
_LOST_ANSWERS = 5


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
    """CodeBuild in one region, with the bucket of its sources and its logs."""

    def __init__(self, aws: AwsAccount) -> None:
        self._aws, self.region = aws, aws.region

    def send_source(
        self, files: Mapping[str, Path], *, project: str, bucket: str
    ) -> tuple[dict[str, str], bool]:
        """Send an archive of these files, unless S3 has it.

        Return the source that a build of the project takes instead of its own, and whether it was sent.
        """
        with tempfile.TemporaryDirectory(prefix="trainyard-source-") as folder:
            archive = Path(folder) / "source.zip"
            key = f"{project}/source/{write_archive(files, archive)}.zip"
            is_new = self._upload(archive, bucket, key)
        return {"sourceTypeOverride": "S3", "sourceLocationOverride": f"{bucket}/{key}"}, is_new

    def _upload(self, archive: Path, bucket: str, key: str) -> bool:
        """Put an archive into a bucket unless it exists there; return whether it was sent.

        The key contains the digest of the content, so an existing object is the same.
        """
        text = (
            f"S3 has no bucket {bucket}, or it is not one of this account. Set it up once with "
            f"trainyard init aws --region {self.region}, or name another with --source-bucket."
        )
        words: dict[str, Any] = {
            "Bucket": bucket,
            "Key": key,
            "what": f"put the source into s3://{bucket}/{key}",
        }
        words["missing"] = dict.fromkeys(("NoSuchBucket", "404"), text)
        absent = ("404", "NoSuchKey", "NotFound")
        is_new = self._aws.call("s3", "head_object", absent=absent, **words) is None
        if is_new:
            with archive.open("rb") as content:
                self._aws.call("s3", "put_object", Body=content, **words)
        return is_new

    def start(
        self,
        project: str,
        *,
        source: Mapping[str, str],
        variables: Mapping[str, str],
        token: str,
        secrets: Mapping[str, str] | None = None,
    ) -> str:
        """Start a build and return its id. Two calls with the same `token` start one build.

        `source` has sourceTypeOverride, sourceLocationOverride and sourceVersion; `secrets` are variables
        whose values are names of AWS Secrets Manager, which CodeBuild reads and hides in its log.
        """
        missing = (
            f"CodeBuild of {self.region} has no project {project}. Set it up once with "
            f"trainyard init aws --project-name {project} --region {self.region}, or name "
            "another with --project."
        )
        answer = self._aws.call(
            "codebuild",
            "start_build",
            what=f"start a build of {project}",
            missing={"ResourceNotFoundException": missing},
            projectName=project,
            environmentVariablesOverride=[
                *({"name": key, "value": value, "type": "PLAINTEXT"} for key, value in variables.items()),
                *(
                    {"name": key, "value": value, "type": "SECRETS_MANAGER"}
                    for key, value in (secrets or {}).items()
                ),
            ],
            idempotencyToken=token,
            **source,
        )
        return str(answer["build"]["id"])

    def state(self, build_id: str) -> BuildState:
        """Return the present state of a build. Raises ServiceError if there is no such build."""
        what = f"read the state of the build {build_id}"
        found = self._aws.call("codebuild", "batch_get_builds", what=what, ids=[build_id])["builds"]
        if not found:
            raise ServiceError(f"CodeBuild knows no build {build_id}")
        return _state(found[0])

    def follow(
        self,
        build_id: str,
        on_phase: Callable[[CodeBuildPhase], None],
        *,
        poll_seconds: float,
        seconds: float = math.inf,
    ) -> BuildState:
        """Return the state of a build once it has ended, or after `seconds`.

        `on_phase` is given each phase that has ended. Raises ServiceTroubleError when CodeBuild cannot be
        polled.
        """
        end = time.monotonic() + seconds
        lost, reported = 0, 0
        while True:
            time.sleep(poll_seconds)
            try:
                state, lost = self.state(build_id), 0
            except ServiceTroubleError:
                lost += 1
                if lost == _LOST_ANSWERS:
                    raise
                continue
            phases = [phase for phase in state.phases if phase.status]
            for phase in phases[reported:]:
                on_phase(phase)
            reported = len(phases)
            if state.status not in ("IN_PROGRESS", "SUCCEEDED"):
                time.sleep(poll_seconds)  # the last lines of a log arrive late
            if state.status != "IN_PROGRESS" or time.monotonic() > end:
                return state

    def log_tail(self, state: BuildState, *, lines: int = _TAIL_LINES) -> list[str]:
        """Return the last lines of a build's log; none if there is no log."""
        if not state.log_group or not state.log_stream:
            return []
        answer = self._aws.call(
            "logs",
            "get_log_events",
            what="read the build's log",
            absent=("ResourceNotFoundException",),
            logGroupName=state.log_group,
            logStreamName=state.log_stream,
            limit=lines,
        )
        return [str(event["message"]).rstrip("\r\n") for event in (answer or {}).get("events", ())]

    def stop(self, build_id: str) -> None:
        """Stop a build. A build that has ended is not changed."""
        self._aws.call("codebuild", "stop_build", what=f"stop the build {build_id}", id=build_id)


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
