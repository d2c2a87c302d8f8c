"""Build images in AWS: unless ECR has the content, send the source, follow the builds, compare the digests.

An image that exists under every requested tag is not built again; if it was checked only at a lower level, it
is checked again. CodeBuild, ECR and the archive writer are passed in; this module holds the order of the
calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, TrainyardError
from trainyard.image.building.build_poll import BuildPoll, CompletedBuild
from trainyard.image.building.build_record import (
    aws_result,
    build_variables,
    check_variables,
    exported_answers,
    same_digest,
    source_files,
)
from trainyard.image.building.build_request import BuildRequest
from trainyard.image.context.build_context import checked_tag

if TYPE_CHECKING:
    from trainyard.gateways.images.codebuild import CodeBuild

# Levels of the check; each includes the one before.
_LEVELS = ("quick", "standard", "full")


ExistingImage = tuple[str, bool]
"""The digest of an image in ECR with the content and every requested tag; whether it passed the check."""


@dataclass(frozen=True)
class AwsBuilder:
    """Builds images in one account and region."""

    aws: "CodeBuild"
    poll: BuildPoll
    send_files: Callable[[Mapping[str, Path]], tuple[dict[str, str], bool]]
    """Sends files, and those of this repository that a build needs; returns what `send_source` does."""
    find_digest: Callable[..., str | None]
    """Returns the digest for `account`, `region`, `repository`, `tag` and `digest`; None if there is none."""
    fixed_tags: Callable[[BuildRequest], Callable[[str], bool]]
    """Returns, for the repository of a request, whether a tag can be set only once in it."""
    needed_tags: Callable[[BuildRequest], Sequence[str]]
    """Returns the tags that an image must have, besides the tag of its content."""
    find_cache: Callable[[BuildRequest], str]
    """Returns the reference of an image's layer cache; empty if there is none."""
    account: str
    project: str
    level: str
    variables: Mapping[str, str]
    """Variables of CodeBuild that all images share."""
    secrets: Mapping[str, str]
    """Variables of CodeBuild with names of AWS Secrets Manager."""
    root: Path
    """The checkout of this repository, whose scripts run in the build."""
    token: str
    """A part of CodeBuild's idempotency token: with the same one, the same content is started only once."""
    rebuild: bool = False

    def build(self, requests: Sequence[BuildRequest]) -> list[dict[str, Any] | TrainyardError]:
        """Return, for each request, the result as plain data or why its build failed.

        Raises ConfigError and ServiceError before any build is started, and what `BuildPoll.follow` raises.
        """
        held = {request.image: self._find_existing_image(request) for request in requests}
        held |= {one.image: None for one in requests if self.rebuild or one.unpinned}
        for request in requests:
            if held[request.image] is None:
                self._require_free_tags(request)
        starts = {
            request.image: self._start(request, held[request.image])
            for request in requests
            if not ((one := held[request.image]) and one[1])
        }
        ended = self.poll.follow(starts)
        return [self._result(one, held[one.image], ended.get(one.image)) for one in requests]

    def _start(self, request: BuildRequest, held: ExistingImage | None) -> Callable[[int], str]:
        """Send the source; return a function that starts the build, or only the check of a held image."""
        if request.unpinned:
            named = ", ".join(request.unpinned)
            self.poll.log(
                request.image, f"built again: {named} is not pinned by digest, so it may have changed"
            )
        source, is_new = self.send_files(source_files(request))
        existed = "" if is_new else " existed"
        self.poll.log(request.image, f"source s3://{source['sourceLocationOverride']}{existed}")
        if held is None:
            own = build_variables(request, self.find_cache(request))
            variables, secrets = own | {"LEVEL": self.level, **self.variables}, self.secrets
        else:
            why = f"not known to have passed the {self.level} check"
            self.poll.log(request.image, f"already in ECR, but {why}: it is checked again")
            uri = aws_result(request, (self.account, self.aws.region), held[0], None)["uri"]
            variables = check_variables(uri, self.level, self.variables.get("CHECK_FLAGS", ""))
            secrets = {}
        return lambda attempt: self.aws.start(
            self.project,
            source=source,
            variables=variables,
            token=f"{request.tag}-{self.token}-{attempt}",
            secrets=secrets,
        )

    def _result(
        self, request: BuildRequest, held: ExistingImage | None, ended: CompletedBuild | TrainyardError | None
    ) -> dict[str, Any] | TrainyardError:
        if isinstance(ended, TrainyardError):
            return ended
        place = (self.account, self.aws.region)
        try:
            if held is None:
                assert ended is not None
                digest = same_digest(request, ended, partial(self._digest, request))
                return aws_result(request, place, digest, ended)
            record = aws_result(request, place, held[0], None)
            if ended is not None:
                spec = (self.root / "buildspec.yml").read_bytes()
                exported_answers(ended, record["uri"], self.level, spec)
            return record
        except TrainyardError as error:
            return error

    def _find_existing_image(self, request: BuildRequest) -> ExistingImage | None:
        """Return the image that every needed tag names; None if there is no such image with this content."""
        names = self.needed_tags(request) or (request.tag,)
        found = {self._digest(request, name, "") for name in names}
        digest = found.pop() if len(found) == 1 else None
        if digest is None:
            return None
        enough = _LEVELS.index(self.level)
        for level in (*_LEVELS[enough:], *_LEVELS[:enough]):
            if self._digest(request, checked_tag(level, request.tag, digest), "") == digest:
                return digest, level in _LEVELS[enough:]
        has_content = self._digest(request, request.tag, "") == digest
        return (digest, False) if has_content else None

    def _require_free_tags(self, request: BuildRequest) -> None:
        """Raise ConfigError for a tag that a build would set and that cannot move: the push would fail."""
        fixed = self.fixed_tags(request)
        taken = [
            name for name in self.needed_tags(request) if fixed(name) and self._digest(request, name, "")
        ]
        if taken:
            why = "".join(
                f"; {one} is not pinned by digest, so each build differs" for one in request.unpinned[:1]
            )
            raise ConfigError(
                f"{request.image}:{taken[0]} names an image already, and this tag cannot move there{why}. "
                "Choose another tag or version, or commit a change. Nothing was started."
            )

    def _digest(self, request: BuildRequest, tag: str, digest: str) -> str | None:
        """Return the digest that ECR holds for a tag or a digest."""
        return self.find_digest(
            account=self.account, region=self.aws.region, repository=request.image, tag=tag, digest=digest
        )


def send_source(
    aws: "CodeBuild",
    files: Mapping[str, Path],
    write_archive: Callable[[Mapping[str, Path], Path], str],
    *,
    project: str,
    bucket: str,
) -> tuple[dict[str, str], bool]:
    """Upload an archive of these files to S3; return the project's source override, and whether it is new."""
    with TemporaryDirectory(prefix="trainyard-source-") as where:
        archive = Path(where) / "source.zip"
        digest = write_archive(files, archive)
        key = f"{project}/source/{digest}.zip"  # so that equal content is uploaded once
        is_new = aws.upload_source(archive, bucket=bucket, key=key)
    return {"sourceTypeOverride": "S3", "sourceLocationOverride": f"{bucket}/{key}"}, is_new
