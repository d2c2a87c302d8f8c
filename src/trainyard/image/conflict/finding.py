"""A finding on an image, the machine it is for, and the edit that would mend it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.version_facts import Version

ERROR, WARNING, INFO = "error", "warning", "info"


@dataclass(frozen=True)
class TargetMachine:
    """What the image is to run on; what is not named is unknown."""

    architecture: str = ""
    """sm_90, for example."""
    efa: bool | None = None
    rdma: bool = False
    family: str = ""
    """p5, for example."""
    driver: Version = ()


@dataclass(frozen=True)
class Edit:
    """A change of one line: `old` becomes `new`. An empty `new` removes `old`."""

    line: int
    old: str
    new: str


@dataclass(frozen=True)
class ImageFinding:
    """One thing that is wrong."""

    rule: str
    severity: str
    file: str
    line: int
    what: str
    why: str
    remedy: str
    edit: Edit | None = None

    def record(self) -> dict[str, Any]:
        """It as plain data."""
        facts = {key: value for key, value in vars(self).items() if key != "edit"}
        return facts | {"fixable": self.edit is not None}


Rule = Callable[[DeclaredVersions, TargetMachine], Iterator[ImageFinding]]
