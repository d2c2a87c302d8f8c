"""Which image of a repository counts as its newest."""

import pytest

from trainyard.gateways.images.ecr import newest_digest

OLD = {"imageDigest": "old", "imagePushedAt": "2026-01-01", "imageTags": ["build-1", "git-a"]}


@pytest.mark.parametrize("tags", [["build-2"], ["sha256-2"], ["buildcache"], ["build-2", "cache-main"], []])
def test_an_image_that_was_never_released_is_not_the_newest(tags: list[str]) -> None:
    later = {"imageDigest": "new", "imagePushedAt": "2026-02-02", "imageTags": tags}
    assert newest_digest([later, OLD]) == "old"
    assert newest_digest([later]) is None


@pytest.mark.parametrize("tags", [["1.2.3"], ["build-2", "content-a"], ["latest", "cache"]])
def test_the_released_image_that_was_pushed_last_is_the_newest(tags: list[str]) -> None:
    later = {"imageDigest": "new", "imagePushedAt": "2026-02-02", "imageTags": tags}
    assert newest_digest([later, OLD]) == "new"
