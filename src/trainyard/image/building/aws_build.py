"""Build one image in AWS: unless ECR has its content, send the source, follow the build, agree on the digest.

CodeBuild, ECR and the archive are handed in; this module holds the order of the steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from trainyard.image.building.build_progress import Builds, Follower, Progress
from trainyard.image.building.build_record import (
    FOREIGN,
    aws_result,
    build_variables,
    github_source,
    same_digest,
    source_key,
    source_names,
)
from trainyard.image.building.build_request import BuildRequest


class Aws(Builds, Protocol):
    """What uploads sources and starts builds; see `gateways.images.codebuild`."""

    region: str

    def upload_source(self, archive: Path, *, bucket: str, key: str) -> bool: ...
    def start(
        self, project: str, *, source: Mapping[str, str], variables: Mapping[str, str], token: str
    ) -> str: ...


class Archive(Protocol):
    """What writes archives; see `gateways.images.context_files`."""

    def tool_files(self, root: Path) -> dict[str, Path]: ...
    def write_archive(self, sources: Mapping[str, Path], target: Path) -> str: ...


@dataclass(frozen=True)
class AwsOptions:
    """Where and how AWS builds."""

    project: str
    bucket: str
    """Of sources; empty: named for project, account and region."""
    source: str
    """`s3` or `github`."""
    level: str
    tags: str
    version: str
    """Of the image; empty: none was given and no tag of git is on the commit."""
    cache: str
    rebuild: bool
    seconds: float
    poll_seconds: float


@dataclass(frozen=True)
class AwsBuilder:
    """Builds images in one account and region."""

    aws: Aws
    archive: Archive
    find_digest: Callable[..., str | None]
    """Gives the digest of `account`, `region`, `repository`, `tag`, `digest`; None without one."""
    account: str
    options: AwsOptions
    root: Path
    """Of this repository, whose scripts run in the build."""
    clock: Callable[[], float]
    pause: Callable[[float], bool]
    """Waits some seconds; True as soon as everything is to end."""

    def build(
        self,
        request: BuildRequest,
        progress: Progress,
        *,
        say: Callable[[str], None],
        token: str,
        origin: str,
    ) -> dict[str, Any]:
        """The result as plain data. A start repeated with `token` is one build; `origin` is git's remote."""
        place = (self.account, self.aws.region)
        held = None if self.options.rebuild or request.unpinned else self._held(request, request.tag, "")
        if held is not None:
            progress.ended = "there already"
            return aws_result(request, place, held, None)
        if request.unpinned:
            named = ", ".join(request.unpinned)
            say(f"built anew: {named} is not pinned by digest, so it may have changed")
        source, context = self._source(request, say, origin)
        variables = build_variables(
            request,
            level=self.options.level,
            tags=self.options.tags,
            context=context,
            version=self.options.version,
            cache=self.options.cache,
        )
        follower = Follower(
            self.aws,
            progress,
            self.clock,
            self.pause,
            say,
            seconds=self.options.seconds,
            poll_seconds=self.options.poll_seconds,
        )
        ended = follower.run(
            lambda attempt: self.aws.start(
                self.options.project, source=source, variables=variables, token=f"{token}-{attempt}"
            )
        )
        progress.ended = "done"
        return aws_result(request, place, same_digest(request, ended, partial(self._held, request)), ended)

    def _held(self, request: BuildRequest, tag: str, digest: str) -> str | None:
        """The digest that ECR holds for a tag or a digest."""
        return self.find_digest(
            account=self.account,
            region=self.aws.region,
            repository=request.image,
            tag=tag,
            digest=digest,
        )

    def _source(
        self, request: BuildRequest, say: Callable[[str], None], origin: str
    ) -> tuple[dict[str, str], str]:
        """What overrides the project's source, and the context's folder in it; it is sent if it is new."""
        context = Path(request.context).resolve()
        inside = context.is_relative_to(self.root)
        folder = context.relative_to(self.root).as_posix() if inside else ""
        if self.options.source == "github":
            return github_source(request, origin, folder), folder
        own = {name: context / path for name, path in source_names(request, folder).items()}
        with TemporaryDirectory(prefix="trainyard-source-") as where:
            archive = Path(where) / "source.zip"
            digest = self.archive.write_archive(self.archive.tool_files(self.root) | own, archive)
            key = source_key(self.options.project, digest)
            bucket = self.options.bucket or f"{self.options.project}-source-{self.account}-{self.aws.region}"
            sent = self.aws.upload_source(archive, bucket=bucket, key=key)
        say(f"source s3://{bucket}/{key}{'' if sent else ' was there'}")
        return {"sourceTypeOverride": "S3", "sourceLocationOverride": f"{bucket}/{key}"}, folder or FOREIGN
