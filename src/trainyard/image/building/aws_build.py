"""Build images in AWS: unless ECR has the content, send the source, follow the build, compare the digests.

An image that exists under every requested tag is not built again; if it was checked only at a lower level, it
is checked again. CodeBuild, ECR and the archive writer are passed in; this module holds the order of the
calls, and what a build is given and has to export.
"""

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, DamagedFileError, TrainyardError, VerificationError
from trainyard.image.building.build_poll import BuildPoll
from trainyard.image.building.build_request import BuildRequest
from trainyard.image.context.build_context import checked_tag
from trainyard.run.untrusted_files import parse_json_object

if TYPE_CHECKING:
    from trainyard.gateways.images.codebuild import BuildState, CodeBuild

# Levels of the check; each includes the one before.
_LEVELS = ("quick", "standard", "full")
# The folder of the context in the archive, beside the files that run the build.
_CONTEXT = ".image-context"
_NO_EXPORT = "it exported no {}. The project must build with the buildspec.yml of this repository"


@dataclass(frozen=True)
class AwsBuilder:
    """Builds images in one account and region."""

    aws: "CodeBuild"
    poll: BuildPoll
    send_files: Callable[[Mapping[str, Path]], tuple[dict[str, str], bool]]
    """Sends files and those of this repository that a build needs; returns what `send_source` does."""
    find_digest: Callable[..., str | None]
    """Returns the digest that ECR holds for `repository`, `tag` and `digest`; None if there is none."""
    fixed_tags: Callable[[BuildRequest], Callable[[str], bool]]
    """Returns, for the repository of a request, whether a tag can be set only once in it."""
    needed_tags: Callable[[BuildRequest], Sequence[str]]
    """Returns the tags that an image must have, besides the tag of its content."""
    find_cache: Callable[[BuildRequest], str]
    """Returns the reference of an image's layer cache; empty if there is none."""
    host: str
    """The registry."""
    project: str
    level: str
    variables: Mapping[str, str]
    """Variables of CodeBuild that all images share."""
    secrets: Mapping[str, str]
    """Variables of CodeBuild with names of AWS Secrets Manager."""
    buildspec: bytes
    """The buildspec.yml by which builds have to check an image."""
    token: str
    """A part of CodeBuild's idempotency token: with the same one, the same content is started only once."""
    rebuild: bool = False

    def build(self, requests: Sequence[BuildRequest]) -> list[dict[str, Any]]:
        """Build the images one after the other; return each result as plain data.

        Raises ConfigError and ServiceError before any build is started, what `BuildPoll.follow` raises, and
        VerificationError for a build whose image is not proven.
        """
        results = list[dict[str, Any]]()
        plans = [self._plan(one) for one in requests]  # all are refused before anything is sent
        starts = [None if passed else self._start(one, digest) for one, digest, passed in plans]
        for (request, digest, _), start in zip(plans, starts, strict=True):
            try:
                results.append(self._build_one(request, digest, start))
            except TrainyardError as error:
                built = ", ".join(one["uri"] for one in results if one["built"])
                if not built:
                    raise
                raise type(error)(f"{error}\nBuilt before it in this call: {built}") from None
        return results

    def _plan(self, request: BuildRequest) -> tuple[BuildRequest, str, bool]:
        """Return the digest that ECR has, or nothing, and whether it has passed. Raises ConfigError."""
        digest, has_passed = self._find_existing_image(request)
        if not digest:
            self._require_free_tags(request)
        return request, digest, has_passed

    def _build_one(
        self, request: BuildRequest, held: str, start: Callable[[int], str] | None
    ) -> dict[str, Any]:
        """Return the result of a planned build."""
        existing = {"uri": self._uri(request, held), "digest": held, "built": False}
        if start is None:
            return request.record() | existing
        ended = self.poll.follow(request.image, start)
        if held:
            exported_answers(ended, self._uri(request, held), self.level, self.buildspec)
            return request.record() | existing
        digest = self._built_digest(request, ended)
        phases = {phase.name: phase.seconds or 0.0 for phase in ended.phases if phase.status}
        return request.record() | {
            "uri": self._uri(request, digest),
            "digest": digest,
            "built": True,
            "build_id": ended.build_id,
            "phases": phases,
            "seconds": round(sum(phases.values()), 1),
            "log": ended.log_address,
        }

    def _find_existing_image(self, request: BuildRequest) -> tuple[str, bool]:
        """Return the digest of the image with this content and every needed tag, and whether it passed.

        The digest is empty if there is none, or if it is to be built again.
        """
        if self.rebuild or request.unpinned:
            return "", False
        names = self.needed_tags(request) or (request.tag,)
        found = {self._digest(request, name) for name in names}
        digest = found.pop() if len(found) == 1 else None
        if digest is None:
            return "", False
        enough = _LEVELS[_LEVELS.index(self.level) :]
        for level in dict.fromkeys((*enough, *_LEVELS)):
            if self._digest(request, checked_tag(level, request.tag, digest)) == digest:
                return digest, level in enough
        return (digest if self._digest(request, request.tag) == digest else ""), False

    def _require_free_tags(self, request: BuildRequest) -> None:
        """Raise ConfigError for a tag that a build would set and that cannot move: the push would fail."""
        fixed = self.fixed_tags(request)
        taken = [name for name in self.needed_tags(request) if fixed(name) and self._digest(request, name)]
        if taken:
            base = next(iter(request.unpinned), "")
            why = f"; {base} is not pinned by digest, so each build differs" if base else ""
            raise ConfigError(
                f"{request.image}:{taken[0]} names an image already, and this tag cannot move there{why}. "
                "Choose another tag or version, or commit a change. Nothing was started."
            )

    def _start(self, request: BuildRequest, held: str) -> Callable[[int], str]:
        """Send the source; return a function that starts the build, or only the check of a held image."""
        if request.unpinned:
            named = ", ".join(request.unpinned)
            self.poll.log(
                request.image, f"built again: {named} is not pinned by digest, so it may have changed"
            )
        source, is_new = self.send_files(source_files(request))
        existed = "" if is_new else " existed"
        self.poll.log(request.image, f"source s3://{source['sourceLocationOverride']}{existed}")
        if held:
            why = f"not known to have passed the {self.level} check"
            self.poll.log(request.image, f"already in ECR, but {why}: it is checked again")
            flags = self.variables.get("CHECK_FLAGS", "")
            variables = check_variables(self._uri(request, held), self.level, flags)
        else:
            variables = _build_variables(request, self.find_cache(request))
            variables |= {"LEVEL": self.level, **self.variables}
        return lambda attempt: self.aws.start(
            self.project,
            source=source,
            variables=variables,
            token=f"{request.tag}-{self.token}-{attempt}",
            secrets={} if held else self.secrets,
        )

    def _built_digest(self, request: BuildRequest, ended: "BuildState") -> str:
        """Return the digest of a built image; raise VerificationError unless the registry holds it."""
        pushed = ended.exported.get("IMAGE_DIGEST", "")
        held = self._digest(request, digest=pushed) if pushed else None
        if not pushed or held != pushed:
            holds = f"ECR holds {held or 'no image'} for the IMAGE_DIGEST {pushed}"
            raise _unproven(request.image, ended, holds if pushed else _NO_EXPORT.format("IMAGE_DIGEST"))
        return pushed

    def _digest(self, request: BuildRequest, tag: str = "", *, digest: str = "") -> str | None:
        """Return the digest that ECR holds for a tag or a digest."""
        return self.find_digest(repository=request.image, tag=tag, digest=digest)

    def _uri(self, request: BuildRequest, digest: str) -> str:
        return f"{self.host}/{request.image}@{digest}"


def _build_variables(request: BuildRequest, cache: str) -> dict[str, str]:
    """Return the variables of the buildspec's task `image`."""
    return {
        "TASK": "image",
        "IMAGE": request.image,
        "CONTEXT": _CONTEXT,
        "DOCKERFILE": request.dockerfile,
        "BUILD_ARGS": shlex.join(f"{key}={value}" for key, value in request.build_args.items()),
        "TARGET": request.target,
        "PLATFORM": request.platform,
        "CONTENT": request.digest,
        "COMMIT": "" if request.dirty else request.commit,
        **({"CACHE": cache} if cache else {}),
    }


def check_variables(image: str, level: str, flags: str) -> dict[str, str]:
    """Return the variables of the buildspec's task `check`."""
    return {"TASK": "check", "IMAGE_URI": image, "LEVEL": level, "CHECK_FLAGS": flags}


def source_files(request: BuildRequest) -> dict[str, Path]:
    """Return name in the archive -> file of the context, the Dockerfile and the ignore file.

    Raises ConfigError for a Dockerfile outside the context.
    """
    if PurePosixPath(request.dockerfile).is_absolute():
        raise ConfigError(
            f"{request.dockerfile} is not in the context {request.context}, so CodeBuild would not have "
            "it. Move it there, or use --builder local."
        )
    names = (*request.names, request.dockerfile, *request.ignore_files)
    return {f"{_CONTEXT}/{name}": Path(request.context) / name for name in names}


def _unproven(image: str, ended: "BuildState", says: str) -> VerificationError:
    return VerificationError(
        f"{image}: the build {ended.build_id} succeeded, but {says}. {ended.log_address}".rstrip()
    )


def exported_answers(ended: "BuildState", image: str, level: str, buildspec: bytes) -> dict[str, bool | None]:
    """Return the answers of a build that checked `image` by this `buildspec`; None is not known.

    Raises VerificationError unless it exported the answers of this level, and none that failed.
    """
    try:
        found = parse_json_object(ended.exported.get("IMAGE_CHECK", ""), "IMAGE_CHECK")
    except DamagedFileError:
        found = {}
    if not found:
        raise _unproven(image, ended, _NO_EXPORT.format("IMAGE_CHECK"))
    asked = {"buildspec": hashlib.sha256(buildspec).hexdigest(), "image": image, "level": level}
    other = [f"another {name}, {found.get(name, 'none')}" for name in asked if found.get(name) != asked[name]]
    if other:
        raise _unproven(image, ended, f"it checked by {', '.join(other)}")
    answers = dict(found.get("answers") or {"any": False})
    failed = [name for name, ok in answers.items() if ok is not None and ok is not True]
    if failed:
        raise _unproven(image, ended, f"these checks failed: {', '.join(failed)}")
    return answers
