"""Names of images: ECR's rules for repositories, and the parts of a full reference.

It does not check with a registry whether a name exists.
"""

import re
from dataclasses import dataclass

from trainyard.errors import ConfigError

# From the ECR API reference of CreateRepository, which also refuses `__` and `--`.
_NAME = r"(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_REFERENCE = re.compile(
    r"(?:(?P<host>localhost|[^/@]*[.:][^/@]*)/)?"
    rf"(?P<repository>{_NAME})(?::(?P<tag>{_TAG})?)?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?",
    re.ASCII,
)
_SHORTEST, _LONGEST = 2, 256
_RULE = "a name is 2 to 256 of a-z and 0-9, with single . _ - or / between them"
_OWN_TAGS = ("git-", "content-", "checked-", "build-", "sha256-")
"""Tags of these forms are set automatically, by Trainyard or programs that sign images."""


@dataclass(frozen=True)
class ImageReference:
    """The parts of a reference such as `host/repository:tag@sha256:…`; missing parts are empty."""

    host: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Host and repository, without tag and digest."""
        return f"{self.host}/{self.repository}" if self.host else self.repository


def parse_reference(text: str) -> ImageReference:
    """Return the parts of a reference. Raises ConfigError for a text that cannot name an image."""
    found = _REFERENCE.fullmatch(text)
    if not found:
        raise ConfigError(
            f"{text!r} names no image: {_RULE}; a tag has letters, digits, _ . - and at most 128 of them; a "
            "digest is sha256: and 64 hex digits"
        )
    return ImageReference(**found.groupdict(""))


def require_repository(name: str) -> str:
    """`name` if ECR accepts it for a repository. Raises ConfigError with a name that is accepted."""
    if _SHORTEST <= len(name) <= _LONGEST and re.fullmatch(_NAME, name, re.ASCII):
        return name
    near = repository_from(name)
    hint = f"; {near} is allowed" if near else ""
    raise ConfigError(f"{name!r} cannot name an image in ECR: {_RULE}{hint}")


def require_tag(name: str) -> str:
    """`name`, if a registry accepts it as a tag and Trainyard reserves no such tags. Raises ConfigError."""
    if not re.fullmatch(_TAG, name, re.ASCII):
        raise ConfigError(f"{name[:60]!r} is not a tag (letters, digits, _ . -; at most 128)")
    if name.startswith(_OWN_TAGS):
        raise ConfigError(
            f"the tag {name[:60]}: tags that begin with {name.partition('-')[0]}- are reserved, because they "
            "are set automatically; choose another"
        )
    return name


def repository_from(text: str) -> str:
    """A valid repository name made from `text`, such as a folder's name; empty if no letter is left."""
    lower = re.sub(r"[^a-z0-9._/-]+", "-", text.lower())
    parts = (re.sub(r"[._-]{2,}", "-", part).strip("._-") for part in lower.split("/"))
    name = "/".join(filter(None, parts))[:_LONGEST].rstrip("._-/")
    return name if len(name) >= _SHORTEST else ""
