"""Choose the tags of a pushed image by its source, and what to do about a tag that is already taken.

    auto       the version, if a version tag of git is on the commit; else the commit
    semantic   1.2.3
    git-sha    git-, 12 digits of the commit, and 8 of the content
    latest     latest, which moves, and the commit

Two Dockerfiles of one commit have different content, and so different tags. The tag of the content is always
set as well.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, VerificationError
from trainyard.image.building.build_request import BASES_LABEL, COMMIT_LABEL, CONTENT_LABEL
from trainyard.image.context.build_context import checked_tag, content_tag
from trainyard.image.context.image_names import parse_reference

if TYPE_CHECKING:
    from trainyard.gateways.images.local_builder import ImageFacts, LocalBuilder

_logger = logging.getLogger(__name__)

_VERSION = re.compile(
    r"v?(?P<core>(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*))(?P<pre>-[0-9A-Za-z.-]+)?", re.ASCII
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTENT_DIGITS = 8


@dataclass(frozen=True)
class Tag:
    """One tag to set."""

    name: str
    moves: bool
    """Whether it may name another image later."""
    needed: bool
    """Whether the push fails without it."""


@dataclass(frozen=True)
class TagStep:
    """The action for one tag."""

    tag: str
    action: str
    """set, kept (it already names this image), moved, skipped."""
    why: str = ""


def find_image_source(
    *,
    content: str,
    labelled: str,
    commit: str,
    version: str,
    git: Mapping[str, Any],
    at_head: Callable[[], Sequence[str]],
) -> tuple[str, bool, tuple[str, ...]]:
    """Return the commit of an image that was built earlier, whether it may have changes, and its versions.

    `content` and `labelled` are its labels of content and commit. `commit` and `version` are given by the
    user. `git` has the facts of the current checkout, and `at_head` returns its tags, which are used only if
    the image is known to be of the commit there: `image build` writes no commit into an image of a changed
    tree, and another program may have built it elsewhere.
    """
    found = commit or (labelled if content else "")
    tags = tuple(at_head()) if not version and found and found == git.get("commit") else ()
    return found, not found and not (version and not content), (version,) if version else tags


def is_version(text: str) -> bool:
    """Return whether a text is a version such as 1.2.3 or v1.2.3."""
    return _VERSION.fullmatch(text) is not None


def tags_for(
    strategy: str, *, commit: str, dirty: bool, versions: Sequence[str], content: str, image_id: str = ""
) -> list[Tag]:
    """Return the tags of a strategy; `versions` are the commit's git tags, `content` the tag of the content.

    The `image_id`, 64 hex digits, replaces an unknown content.

    Raises ConfigError if the strategy has nothing to name the image by.
    """
    found = [match for name in versions if (match := _VERSION.fullmatch(name))]
    digits = (content.removeprefix("content-") or image_id)[:_CONTENT_DIGITS]
    of_commit = list[Tag]()
    if _COMMIT.fullmatch(commit) and not dirty:
        name = "-".join(filter(None, ("git", commit[:12], digits)))
        of_commit = [Tag(name, moves=False, needed=True)]
    if strategy == "semantic" or (strategy == "auto" and found):
        tags = _of_version(found, dirty)
    elif strategy == "latest":
        tags = [Tag("latest", moves=True, needed=True), *of_commit]
    elif strategy == "git-sha" and not of_commit:
        why = "changes that are not committed" if dirty else "no commit (git, or --commit)"
        raise ConfigError(f"--tags git-sha: there is {why}, so no commit can name the image")
    else:
        tags = of_commit
    return [*tags, *([Tag(content, moves=False, needed=False)] if content else [])]


def check_tags(level: str, content: str, digest: str) -> list[Tag]:
    """Return the tag which says that the image `digest` passed its check of this level; none for no level."""
    if not level or not content:
        return []
    return [Tag(checked_tag(level, content_tag(content), digest), moves=False, needed=False)]


def plan_tags(
    tags: Sequence[Tag], digest: str, held: Callable[[str], str | None], *, fixed: Callable[[str], bool]
) -> list[TagStep]:
    """Decide the action for each tag before any is set; `held` returns the digest that a tag names now.

    `fixed` says whether the repository lets a tag be set only once. Raises VerificationError for a version
    that already names another image.
    """
    steps = []
    for tag in tags:
        now, immutable = held(tag.name), fixed(tag.name)
        if now is None:
            steps.append(TagStep(tag.name, "set"))
        elif now == digest:
            steps.append(TagStep(tag.name, "kept", "it names this image already"))
        elif not tag.needed:
            steps.append(TagStep(tag.name, "skipped", f"it never moves, and it names {now[:19]}…"))
        elif immutable or (_VERSION.fullmatch(tag.name) and not tag.moves):
            raise VerificationError(
                f"The tag {tag.name} names {now[:19]}… already, not the new {digest[:19]}…"
                + (", and this tag does not move in the repository" if immutable else "")
                + ". Nothing was tagged. Give the image another version; push a second Dockerfile of the "
                "commit to a repository of its own."
            )
        else:
            steps.append(TagStep(tag.name, "moved", f"from {now[:19]}…"))
    return steps


def _of_version(found: Sequence["re.Match[str]"], dirty: bool) -> list[Tag]:
    if not found:
        raise ConfigError(
            "--tags semantic: no tag of git such as v1.2.3 is on this commit. Set one (git tag v1.2.3), "
            "give it with --version, or use --tags git-sha."
        )
    if dirty:
        raise ConfigError(
            "--tags semantic: there are uncommitted changes, so this is no version; commit them first"
        )
    match = max(found, key=lambda m: tuple(int(part) for part in m["core"].split(".")))
    core, pre = match["core"], match["pre"] or ""
    return [Tag(f"{core}{pre}", moves=False, needed=True)]


def facts_of_own_build(image: str, here: "LocalBuilder", facts: "ImageFacts") -> "ImageFacts":
    """Return the facts of an image, without labels of its source that it may have inherited.

    An image derived FROM one of ours inherits the labels. The tag of the content distinguishes them.
    """
    content = facts.labels.get(CONTENT_LABEL, "")
    if not content:
        return facts  # it has no label of ours
    name = f"{parse_reference(image).name}:{content_tag(content)}"
    if here.has(name) and here.inspect(name).image_id == facts.image_id:
        return facts
    _logger.warning("%s is not the image built here as %s: its labels are not used", image, name)
    origin = (BASES_LABEL, COMMIT_LABEL, CONTENT_LABEL)
    return replace(facts, labels={key: text for key, text in facts.labels.items() if key not in origin})
