"""The order in which an image is released to one or several registries, so that a failure sets no tag.

    everywhere: push, read back, scan, plan the tags  ──>  everywhere: tag

If a registry refuses, holds another digest or finds too much in its scan, no tag is set anywhere.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainyard.errors import TrainyardError, VerificationError
from trainyard.image.release.tag_strategy import Tag, TagStep, plan_tags

if TYPE_CHECKING:
    from trainyard.gateways.images.ecr import Scan
    from trainyard.gateways.images.registry import Registry

# From the worst to the least.
SEVERITIES = ("critical", "high", "medium", "low")


@dataclass(frozen=True)
class ReleasePlace:
    """One repository in one registry."""

    registry: "Registry"
    repository: str
    name: str
    """Host and repository."""
    fixed: Callable[[str], bool]
    """Returns whether this tag can be set only once in the repository."""
    push: Callable[[str], str]
    """Pushes the image under this complete name; returns the digest that the builder reports."""
    scan: Callable[[str], str]
    """Returns the result of the scan of a digest. Raises CheckFailedError if it found too much."""


@dataclass(frozen=True)
class ReleaseResult:
    """The state of the image in one place."""

    place: ReleasePlace
    digest: str
    scan: str
    steps: Sequence[TagStep]

    @property
    def uri(self) -> str:
        return f"{self.place.name}@{self.digest}"

    def record(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "uri": self.uri,
            "digest": self.digest,
            "scan": self.scan,
            "tags": [vars(step) for step in self.steps],
        }


def release(
    places: Sequence[ReleasePlace], *, temporary: str, tags: Callable[[str], Sequence[Tag]]
) -> list[ReleaseResult]:
    """Release an image; `tags` returns those of a digest.

    `temporary` is the tag that the image has before its scan. It has to be a new one: ECR sets an immutable
    tag only once, even to the same image.

    Raises what the places raise, and VerificationError when a registry holds something else than was pushed.
    The message names the registries in which all tags are set.
    """
    try:
        found = [_push(place, temporary, tags) for place in places]
        if len({one.digest for one in found}) > 1:
            held = ", ".join(one.uri for one in found)
            raise VerificationError(f"The registries hold different digests of the same image: {held}")
    except TrainyardError as error:
        nowhere = " in any registry" if len(places) > 1 else ""
        raise type(error)(f"{error}\nNo tag was set{nowhere}.") from None
    for number, one in enumerate(found):
        try:
            _set_tags(one)
        except TrainyardError as error:
            done = ", ".join(each.place.name for each in found[:number])
            also = f"\nAll tags are set in {done}. Push again: those tags are kept." if done else ""
            raise type(error)(f"{error}{also}") from None
    return found


def _push(place: ReleasePlace, temporary: str, tags: Callable[[str], Sequence[Tag]]) -> ReleaseResult:
    """Push, read back, scan, plan the tags."""
    registry = place.registry
    digest = place.push(f"{place.name}:{temporary}")
    found = registry.manifest(place.repository, digest)
    if found is None or not found.image_digests:
        raise VerificationError(f"{place.name}: {digest} was pushed, but the registry holds no such image")
    # A registry scans images, but not the index of an image and its attestations.
    scan = "; ".join(dict.fromkeys(place.scan(image) for image in found.image_digests))
    held = partial(registry.digest_of, place.repository)
    steps = plan_tags(tags(digest), digest, held, fixed=place.fixed)
    return ReleaseResult(place, digest, scan, steps)


def _set_tags(one: ReleaseResult) -> None:
    registry, repository = one.place.registry, one.place.repository
    steps = [step for step in one.steps if step.action != "skipped"]
    if missing := [step.tag for step in steps if step.action != "kept"]:
        registry.tag(repository, one.digest, missing)
    for step in steps:
        if (held := registry.digest_of(repository, step.tag)) != one.digest:
            raise VerificationError(
                f"{one.place.name}:{step.tag} names {held or 'nothing'} after it was set to {one.digest}"
            )


def judge_scan(scan: "Scan", threshold: str) -> tuple[bool, str]:
    """Return whether a scan has no finding of the severity `threshold` or above, and what it says.

    The threshold `none` passes everything; with any other a scan that did not complete fails.
    """
    if threshold == "none":
        return True, "findings are not judged (--fail-on none)"
    if scan.runs or scan.status not in ("COMPLETE", "ACTIVE"):
        return False, (
            f"the scan of the image is {scan.status.lower()}: turn on scan on push for the repository, push "
            "again once the scan is complete, or pass --fail-on none"
        )
    counted = Counter({name.lower(): count for name, count in scan.counts.items()})
    counted |= Counter(map(str.lower, scan.names.values()))  # a finding counts, even if `counts` omits it
    bad = SEVERITIES[: SEVERITIES.index(threshold) + 1]
    if not any(counted[severity] for severity in bad):
        return True, f"no finding of severity {threshold} or above"
    worst = [name for name, severity in sorted(scan.names.items()) if severity.lower() in bad][:5]
    listed = ", ".join(f"{counted[severity]} {severity}" for severity in bad if counted[severity])
    return False, f"the scan found {listed}: {', '.join(worst) or 'see the registry'}"
