"""Decide whether the labels of an image are its own, or inherited from its base image.

It reads the answers of this machine's builder, and changes nothing.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from trainyard.image.building.build_request import BASES_LABEL, COMMIT_LABEL, CONTENT_LABEL
from trainyard.image.context.build_context import content_tag
from trainyard.image.context.image_names import parse_reference

_logger = logging.getLogger(__name__)


class Labelled(Protocol):
    """A builder's facts about an image; see `gateways.images.local_builder`."""

    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def image_id(self) -> str: ...


class Images(Protocol):
    """The images of this machine; see `gateways.images.local_builder`."""

    def has(self, image: str) -> bool: ...
    def inspect(self, image: str) -> Labelled: ...


def is_own_build(image: str, here: Images, facts: Labelled) -> bool:
    """Whether build_image.py built exactly this image on this machine, so that its labels are its own.

    An image derived FROM one of ours inherits the labels. The tag of the content distinguishes them.
    """
    content = facts.labels.get(CONTENT_LABEL, "")
    if not content:
        return True  # it has no label of ours
    name = f"{parse_reference(image).name}:{content_tag(content)}"
    if here.has(name) and here.inspect(name).image_id == facts.image_id:
        return True
    _logger.warning("%s is not what build_image.py built here as %s: its labels are not used", image, name)
    return False


def without_origin(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels without those that name the source of an image."""
    return {
        key: text for key, text in labels.items() if key not in (BASES_LABEL, COMMIT_LABEL, CONTENT_LABEL)
    }
