"""The build request: a value that can be printed, compared and sent.

    Dockerfile + files of the context --plan--> BuildRequest --(local builder | CodeBuild)--> an image

It reads no file; names, texts and digests are passed in.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainyard.config.secret_forms import is_secret_name, secret_value_kind
from trainyard.errors import ConfigError
from trainyard.image.context.build_context import content_tag
from trainyard.image.context.image_names import repository_from

CONTENT_LABEL = "dev.trainyard.content"
LOCKS_LABEL = "dev.trainyard.locks"
"""Locks, separated by spaces, each with the digest of its content: `requirements-training.txt@9f86d0…`."""
BASES_LABEL = "dev.trainyard.bases"
COMMIT_ARGUMENT = "GIT_COMMIT"
"""A build argument that is set automatically if a Dockerfile declares it. It is not part of the content."""
COMMIT_LABEL = "org.opencontainers.image.revision"
_ARGUMENT = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class BuildRequest:
    """One image to build."""

    image: str
    """The name of the image, and of its repository."""
    context: str
    """The context's folder."""
    dockerfile: str
    """Relative to the context, or absolute if it is not in it."""
    platform: str
    target: str
    build_args: Mapping[str, str]
    """The given build arguments, which are part of the content."""
    takes_commit: bool
    """Whether the Dockerfile declares GIT_COMMIT."""
    commit: str
    """The commit; empty outside git."""
    dirty: bool
    digest: str
    """The digest of the complete input: the files, the Dockerfile, the arguments."""
    names: tuple[str, ...]
    """The sent files, sorted."""
    ignore_files: tuple[str, ...]
    """The ignore file that was applied, relative to the context; empty if there is none."""
    total_bytes: int
    """The size of the sent files."""
    bases: tuple[str, ...]
    """All base images, by the names in the Dockerfile."""
    locks: Mapping[str, str]
    """Locks that the Dockerfile copies into the image -> SHA-256; empty for one outside the context."""
    unpinned: tuple[str, ...]
    """Base images that are named by a tag. A tag may move, so such a build is never skipped."""

    @property
    def tag(self) -> str:
        return content_tag(self.digest)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the image; without the time, so that the same content gives the same labels."""
        labels = {CONTENT_LABEL: self.digest, BASES_LABEL: " ".join(self.bases)}
        locks = (f"{name}@{digest}" if digest else name for name, digest in self.locks.items())
        labels |= {LOCKS_LABEL: " ".join(locks)} if self.locks else {}
        return labels | ({COMMIT_LABEL: self.commit} if self.commit and not self.dirty else {})

    @property
    def all_build_args(self) -> dict[str, str]:
        """The given arguments, and the commit if it is known and the Dockerfile declares it."""
        own = {COMMIT_ARGUMENT: self.commit} if self.takes_commit and self.commit and not self.dirty else {}
        return own | dict(self.build_args)

    def record(self) -> dict[str, Any]:
        """Return the request as plain data."""
        same = ("image", "context", "dockerfile", "platform", "target", "commit", "dirty", "tag")
        return {key: getattr(self, key) for key in same} | {
            "build_args": dict(self.build_args),
            "content": self.digest,
            "files": len(self.names),
            "bytes": self.total_bytes,
            "unpinned": list(self.unpinned),
        }


def image_name(context: str, dockerfile: str) -> str:
    """The default name of an image: the folder of its Dockerfile, which is usually the context's folder.

    Raises ConfigError if a repository cannot have that name.
    """
    folder = PurePosixPath(dockerfile).parent.name or PurePosixPath(context).name
    name = repository_from(folder)
    if not name:
        raise ConfigError(f"No image can be named after the folder {folder!r}; give a name with --image")
    return name


def parse_build_args(words: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Parse KEY=VALUE words as build arguments.

    Raises ConfigError for one that the Dockerfile does not declare, and for a secret, because build arguments
    are visible in the history of the image.
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not _ARGUMENT.fullmatch(key):
            raise ConfigError(f"--build-arg {key[:60]!r}: write it as NAME=VALUE")
        if is_secret_name(key) or secret_value_kind(value.encode(errors="surrogateescape")):
            raise ConfigError(
                f"--build-arg {key}: a build argument stays readable in the image's history. Use a build "
                "secret (RUN --mount=type=secret) or hand the secret to the job."
            )
        if key not in known:
            raise ConfigError(f"--build-arg {key}: the Dockerfile declares no ARG {key}; add it there")
        found[key] = value
    return found
