"""Compare a runner's version with what GitHub refuses. It sends no request.

GitHub registers no runner older than 2.329.0, and gives no job to one that did not take a release within 30
days of its publication; both are enforced since 25 September 2026 (community discussion 194762). A GitHub
Enterprise Server has rules of its own.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

OLDEST = (2, 329, 0)
"""The oldest version that GitHub registers."""
UPDATE_SECONDS = 30 * 86400.0
"""A runner has this long after a release to take it."""
WARNING_SECONDS = 7 * 86400.0
"""A runner is reported this long before GitHub refuses it. One that updates itself never is."""
NEXT_STEP = (
    "Install the newest runner, or remove --disableupdate from its registration so that it updates itself; "
    "build the image of a container again"
)
Version = tuple[int, ...]


@dataclass(frozen=True)
class RunnerRelease:
    """A release of the runner."""

    version: Version
    published: float
    """In Unix seconds."""


def parse_version(text: str) -> Version | None:
    """Return `v2.331.0` as numbers; None for anything else."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)", text.strip(), re.ASCII)
    return tuple(map(int, found.groups())) if found else None


def read_releases(answer: Iterable[Mapping[str, Any]]) -> tuple[RunnerRelease, ...]:
    """Return the releases in the answer of GitHub's API, without drafts and previews."""
    found = []
    for each in answer:
        version = parse_version(str(each.get("tag_name")))
        if version and each.get("published_at") and not (each.get("draft") or each.get("prerelease")):
            published = datetime.fromisoformat(str(each["published_at"])).timestamp()
            found.append(RunnerRelease(version, published))
    return tuple(found)


def version_problem(text: str, releases: Iterable[RunnerRelease], *, now: float) -> str | None:
    """Return why GitHub refuses a runner of this version, or will within a week; None if it does not."""
    version = parse_version(text)
    if version is None:
        return None
    if version < OLDEST:
        return f"version {text} is older than {_text(OLDEST)}, and GitHub no longer registers it"
    newer = [each for each in releases if each.version > version]
    if not newer:
        return None
    first = min(newer, key=lambda each: each.published)
    end = first.published + UPDATE_SECONDS
    if now < end - WARNING_SECONDS:
        return None
    since = f"version {text}: {_text(first.version)} was published on {_day(first.published)}"
    if now < end:
        return f"{since}, and GitHub gives no jobs to older ones from {_day(end)}"
    return f"{since}, and GitHub gives no jobs to older ones since {_day(end)}"


def has_these_rules(server: str) -> bool:
    """Return whether the server is GitHub's own, with or without data residency, and no Enterprise Server."""
    host = urlsplit(server or "https://github.com").hostname or ""
    return host == "github.com" or host.endswith(".ghe.com")


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
