"""Pushing an image: an inherited label gives it no tag."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.scripts.conftest import load_script

from trainyard.gateways.images.local_builder import ImageFacts
from trainyard.image.building.build_request import COMMIT_LABEL, CONTENT_LABEL
from trainyard.image.context.build_context import content_tag
from trainyard.image.release.tag_strategy import facts_of_own_build

script = load_script("image_push")

CONTENT, COMMIT = "c" * 64, "a1" * 20
OWN = f"fsdp:{content_tag(CONTENT)}"


def image(image_id: str) -> ImageFacts:
    labels = {CONTENT_LABEL: CONTENT, COMMIT_LABEL: COMMIT}
    return ImageFacts("1", (), (), labels, "amd64", image_id, 1)


@pytest.mark.parametrize(
    ("here", "own"), [({OWN: image("one")}, True), ({OWN: image("base")}, False), ({}, False)]
)
def test_a_derived_image_gets_no_tag_of_the_content_and_commit_that_it_inherits(
    here: dict[str, ImageFacts], own: bool
) -> None:
    builder: Any = SimpleNamespace(has=here.__contains__, inspect=here.__getitem__)
    facts = facts_of_own_build("fsdp:latest", builder, image("one"))
    args = script.parse_args(["--image", "fsdp:latest", "--repository", "fsdp", "--version", ""])
    names = [tag.name for tag in script.tags_of(args, facts)]
    assert (content_tag(CONTENT) in names, f"git-{COMMIT[:12]}-{CONTENT[:8]}" in names) == (own, own)
    assert (CONTENT_LABEL in facts.labels) is own
