"""The order in which an image is released to one or several registries, so that a failure sets no tag.

    everywhere: push, read back, scan, plan the tags  ──>  everywhere: attach  ──>  everywhere: tag, read back

A registry that refuses, holds another digest or finds too much in its scan ends it before the first tag.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from trainyard.errors import TrainyardError, VerificationError
from trainyard.image.release.tag_strategy import Tag, TagStep, plan_tags, temporary_tag


class Registry(Protocol):
    """One registry; see `gateways.images.registry`."""

    def digest_of(self, repository: str, reference: str) -> str | None: ...
    def tag(self, repository: str, digest: str, tag: str) -> None: ...
    def attach(self, repository: str, digest: str, content: bytes, media_type: str) -> str: ...


@dataclass(frozen=True)
class ReleasePlace:
    """One repository in one registry."""

    registry: Registry
    repository: str
    name: str
    """Host and repository."""
    fixed: Callable[[str], bool]
    """Whether a tag can be set only once there."""
    push: Callable[[str], str]
    """Push the image under this whole name; returns the digest that the builder reports."""
    scan: Callable[[str], str]
    """The result of the scan of a digest. Raises CheckFailedError if it found too much."""


@dataclass
class Released:
    """The state of the image in one place."""

    place: ReleasePlace
    digest: str
    scan: str
    steps: Sequence[TagStep]
    attached: dict[str, str] = field(default_factory=dict)
    """Media type -> digest of the attachment."""

    @property
    def uri(self) -> str:
        return f"{self.place.name}@{self.digest}"

    def record(self) -> dict[str, Any]:
        """The result as plain data."""
        facts = {"uri": self.uri, "digest": self.digest, "scan": self.scan, "attached": self.attached}
        return facts | {"tags": [vars(step) for step in self.steps]}


def release(
    places: Sequence[ReleasePlace],
    *,
    image_id: str,
    tags: Callable[[str], Sequence[Tag]],
    files: Callable[[str], Mapping[str, bytes]],
) -> list[Released]:
    """Release an image; `tags` and `files` (media type -> attachment) are asked with its digest.

    Raises what the places raise, and VerificationError when a registry holds something else than was pushed.
    The message says which tags were set before.
    """
    try:
        found = [_pushed(place, image_id, tags) for place in places]
        if len({one.digest for one in found}) > 1:
            held = ", ".join(one.uri for one in found)
            raise VerificationError(f"The registries hold different digests of the same image: {held}")
        for one in found:
            _attach(one, files(one.digest))
    except TrainyardError as error:
        nowhere = " in any registry" if len(places) > 1 else ""
        raise type(error)(f"{error}\nNo tag was set{nowhere}.") from None
    for number, one in enumerate(found):
        try:
            _set_tags(one)
        except TrainyardError as error:
            done = ", ".join(each.place.name for each in found[:number])
            also = f"\nAll tags are set in {done}. Push again: what is set is kept." if done else ""
            raise type(error)(f"{error}{also}") from None
    return found


def _pushed(place: ReleasePlace, image_id: str, tags: Callable[[str], Sequence[Tag]]) -> Released:
    """Push, read back, scan, plan the tags."""
    held = partial(place.registry.digest_of, place.repository)
    said = place.push(f"{place.name}:{temporary_tag(image_id, held, fixed=place.fixed)}")
    if (found := held(said)) != said:
        raise VerificationError(f"{place.name}: {said} was pushed, the registry holds {found or 'nothing'}")
    scan = place.scan(said)
    return Released(place, said, scan, plan_tags(tags(said), said, held, fixed=place.fixed))


def _attach(one: Released, files: Mapping[str, bytes]) -> None:
    registry, repository = one.place.registry, one.place.repository
    for kind, content in files.items():
        one.attached[kind] = registry.attach(repository, one.digest, content, kind)


def _set_tags(one: Released) -> None:
    registry, repository = one.place.registry, one.place.repository
    for step in one.steps:
        if step.action == "skipped":
            continue
        if step.action != "kept":
            registry.tag(repository, one.digest, step.tag)
        if (held := registry.digest_of(repository, step.tag)) != one.digest:
            raise VerificationError(
                f"{one.place.name}:{step.tag} names {held or 'nothing'} after it was set to {one.digest}"
            )
