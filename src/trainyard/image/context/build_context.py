"""The files that a builder receives, and one digest over all of them.

The digest covers the name, mode and content of every file, the Dockerfile, the build arguments, the target
and the platform. Two builds with equal digests get the same input. Their base images are the same only if
each is pinned by its own digest.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError
from trainyard.image.context.context_secrets import secret_by_name
from trainyard.run.sizes import format_size

if TYPE_CHECKING:
    from trainyard.gateways.images.context_files import FileOnDisk, HashedFile

_SHOWN = 3
_MOST_NAMED = 5
_TAG_DIGITS = 24


def content_tag(digest: str) -> str:
    """Return the tag of the image whose build input has this digest."""
    return f"content-{digest[:_TAG_DIGITS]}"


def checked_tag(level: str, tag: str, digest: str) -> str:
    """The tag which says that image `digest`, with the content of `tag`, passed the check of this level."""
    return f"checked-{level}-{tag.removeprefix('content-')}-{digest.removeprefix('sha256:')[:12]}"


def require_usable(files: "Sequence[FileOnDisk]", *, where: str, most_bytes: int) -> None:
    """Raise ConfigError for a context that is empty or too large, or has a file whose name marks a secret."""
    if not files:
        raise ConfigError(
            f"{where}: there is no file to build from. In git only tracked files are sent (git add), except "
            "those that .dockerignore excludes"
        )
    total = sum(file.size for file in files)
    if total > most_bytes:
        largest = sorted(files, key=lambda file: -file.size)[:_SHOWN]
        named = ", ".join(f"{file.name} ({format_size(file.size)})" for file in largest)
        raise ConfigError(
            f"{where}: the build context has {format_size(total)} in {len(files):,} files, but at most "
            f"{format_size(most_bytes)} are sent. The largest: {named}. List in .dockerignore what the image "
            "does not need, or raise --max-context."
        )
    refuse_secrets({file.name: what for file in files if (what := secret_by_name(file.name))}, where=where)


def refuse_secrets(found: Mapping[str, str], *, where: str) -> None:
    """Raise ConfigError if there is any secret (name -> kind of secret)."""
    if not found:
        return
    lines = [f"{name}: {what}" for name, what in sorted(found.items())]
    if len(lines) > _MOST_NAMED:
        lines[_MOST_NAMED:] = [f"and {len(lines) - _MOST_NAMED} more"]
    named = "\n  ".join(lines)
    raise ConfigError(
        f"{where}: the build context holds what looks like a secret:\n  {named}\nEverybody who can pull the "
        "image could read it. Remove it from git, or list it in .dockerignore, and hand it to the job as a "
        "secret. Nothing was sent."
    )


def content_digest(files: "Iterable[HashedFile]", inputs: Mapping[str, str]) -> str:
    """SHA-256 in hex of the files and of `inputs`, which is everything else that determines the result."""
    digest = hashlib.sha256(b"trainyard build input 1\n")
    for key, value in sorted(inputs.items()):
        digest.update(_line("input", key, value))
    ordered = sorted(files, key=lambda file: file.name)
    digest.update(b"".join([_line(file.mode, file.name, file.sha256) for file in ordered]))
    return digest.hexdigest()


def _line(*parts: str) -> bytes:
    """Join the parts, each with its length, so that different lists of parts never give the same bytes."""
    coded = [part.encode(errors="surrogateescape") for part in parts]
    return b"".join([b"%d:%s" % (len(part), part) for part in coded]) + b"\n"
