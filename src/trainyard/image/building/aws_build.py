"""Build one image in AWS: unless ECR has its content, send the source, follow the build, compare the digests.

An image that exists under every requested tag is not built again; if it was checked only at a lower level, it
is checked again. CodeBuild, ECR and the archive writer are passed in; this module holds the order of the
calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from trainyard.image.building.build_progress import BuildEnded, BuildProgress, Builds, Follower
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
from trainyard.image.context.build_context import checked_tag

_LEVELS = ("quick", "standard", "full")
"""Levels of the check; each includes the one before."""


class Aws(Builds, Protocol):
    """Uploads sources and starts builds; see `gateways.images.codebuild`."""

    region: str

    def upload_source(self, archive: Path, *, bucket: str, key: str) -> bool: ...
    def start(
        self, project: str, *, source: Mapping[str, str], variables: Mapping[str, str], token: str
    ) -> str: ...


class Archive(Protocol):
    """Writes archives; see `gateways.images.context_files`."""

    def tool_files(self, root: Path) -> dict[str, Path]: ...
    def write_archive(self, sources: Mapping[str, Path], target: Path) -> str: ...


@dataclass(frozen=True)
class AwsOptions:
    """Where and how AWS builds."""

    project: str
    bucket: str
    """Bucket for sources; empty: named after project, account and region."""
    source: str
    """`s3` or `github`."""
    level: str
    tags: str
    version: str
    """Version of the image; empty: none was given and the commit has no git tag."""
    cache: str
    rebuild: bool
    seconds: float
    poll_seconds: float


@dataclass(frozen=True)
class HeldImage:
    """An image in ECR with the content and every requested tag."""

    digest: str
    is_checked: bool
    """Whether it passed the check of the requested level."""


@dataclass(frozen=True)
class AwsBuilder:
    """Builds images in one account and region."""

    aws: Aws
    archive: Archive
    find_digest: Callable[..., str | None]
    """Returns the digest for `account`, `region`, `repository`, `tag` and `digest`; None if there is none."""
    needed_tags: Callable[[BuildRequest], Sequence[str]]
    """Returns the tags that an image must have, besides the tag of its content."""
    account: str
    options: AwsOptions
    root: Path
    """The commit of this repository, whose scripts run in the build."""
    clock: Callable[[], float]
    pause: Callable[[float], bool]
    """Waits some seconds; returns True as soon as everything must end."""

    def build(
        self,
        request: BuildRequest,
        progress: BuildProgress,
        *,
        say: Callable[[str], None],
        token: str,
        origin: str,
    ) -> dict[str, Any]:
        """The result as plain data. Two starts with one `token` are one build; `origin` is git's remote."""
        place = (self.account, self.aws.region)
        held = self._held_as_asked(request)  # asked always: a missing repository is told before a build
        if self.options.rebuild or request.unpinned:
            held = None
        if held is not None and held.is_checked:
            progress.ended = "there already"
            return aws_result(request, place, held.digest, None)
        if request.unpinned:
            named = ", ".join(request.unpinned)
            say(f"built again: {named} is not pinned by digest, so it may have changed")
        source, context = self._source(request, say, origin)
        follow = partial(self._follow, progress, say, token=token, source=source)
        if held is not None:
            found = aws_result(request, place, held.digest, None)
            say(f"there already, but not known to have passed the check {self.options.level}: checked again")
            follow(variables={"TASK": "check", "IMAGE_URI": found["uri"], "LEVEL": self.options.level})
            progress.ended = "checked again"
            return found
        variables = build_variables(
            request,
            level=self.options.level,
            tags=self.options.tags,
            context=context,
            version=self.options.version,
            cache=self.options.cache,
        )
        ended = follow(variables=variables)
        progress.ended = "done"
        return aws_result(request, place, same_digest(request, ended, partial(self._held, request)), ended)

    def _follow(
        self,
        progress: BuildProgress,
        say: Callable[[str], None],
        *,
        token: str,
        source: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> BuildEnded:
        """Start a build and wait for its end."""
        follower = Follower(
            self.aws,
            progress,
            self.clock,
            self.pause,
            say,
            seconds=self.options.seconds,
            poll_seconds=self.options.poll_seconds,
        )
        return follower.run(
            lambda attempt: self.aws.start(
                self.options.project, source=source, variables=variables, token=f"{token}-{attempt}"
            )
        )

    def _held_as_asked(self, request: BuildRequest) -> HeldImage | None:
        """The image that all needed tags name; None if they name none, several, or another content."""
        names = self.needed_tags(request) or (request.tag,)
        found = {self._held(request, name, "") for name in names}
        digest = found.pop() if len(found) == 1 else None
        if digest is None:
            return None
        enough = _LEVELS.index(self.options.level)
        for level in (*_LEVELS[enough:], *_LEVELS[:enough]):
            if self._held(request, checked_tag(level, request.tag, digest), "") == digest:
                return HeldImage(digest, is_checked=level in _LEVELS[enough:])
        has_content = self._held(request, request.tag, "") == digest
        return HeldImage(digest, is_checked=False) if has_content else None

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
        """The override of the project's source, and the context's folder in it; a new source is sent."""
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
