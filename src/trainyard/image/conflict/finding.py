"""A finding about an image, the machine that the image is for, and the edit that would fix it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.image.conflict.version_facts import Version

if TYPE_CHECKING:
    from trainyard.image.conflict.declared_versions import DeclaredVersions

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class TargetMachine:
    """The machine that the image will run on; a part that is not named is unknown."""

    architecture: str = ""
    """For example sm_90."""
    efa: bool | None = None
    rdma: bool | None = None
    family: str = ""
    """For example p5."""
    driver: Version = ()

    @property
    def processor(self) -> str:
        """x86_64 or aarch64, as wheels name it."""
        return "aarch64" if "gb200" in self.family or "gb300" in self.family else "x86_64"


@dataclass(frozen=True)
class Edit:
    """A change of one line: `old` becomes `new`."""

    line: int
    old: str
    new: str


@dataclass(frozen=True)
class ImageFinding:
    """One problem."""

    line: int
    what: str
    why: str
    remedy: str
    severity: str = ERROR
    file: str = ""
    """Empty in a rule stands for the Dockerfile."""
    edit: Edit | None = None
    rule: str = ""
    """Set by `judge_versions`."""

    def record(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        keys = ("rule", "severity", "file", "line", "what", "why", "remedy")
        return {key: getattr(self, key) for key in keys} | {"fixable": self.edit is not None}


Rule = Callable[["DeclaredVersions", TargetMachine], Iterator[ImageFinding]]
