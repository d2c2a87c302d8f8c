"""One checkpoint on a volume, and whether it is whole: the record that all formats share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from trainyard.jobs.checkpoints.volume_listing import VolumeFile


class CheckpointFormat(StrEnum):
    """Who wrote a checkpoint."""

    TRAINYARD = "trainyard"
    VERL = "verl"
    MEGATRON = "megatron"
    DCP = "dcp"
    """PyTorch's distributed checkpoint: torchtitan, and own programs."""
    HUGGING_FACE = "huggingface"


class Wholeness(StrEnum):
    """What is known of a checkpoint without reading all of its bytes."""

    COMPLETE = "complete"
    """Its writer says that it is done, and all that it names is there with its size."""
    PARTIAL = "partial"
    """Something is missing, or nobody says that it is done: it may be being written."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """One checkpoint."""

    format: CheckpointFormat
    path: str
    """Of its folder, relative to what was listed."""
    step: int | None
    """None for weights without a step, and for Megatron's `release`."""
    files: tuple[VolumeFile, ...]
    why: str
    """What shows that it is whole, or what is missing."""
    wholeness: Wholeness = Wholeness.PARTIAL
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Path of a file -> its digest, where the checkpoint's own manifest has it."""
    trackers: tuple[VolumeFile, ...] = ()
    """Files beside it that its framework reads to find it."""

    @property
    def is_complete(self) -> bool:
        return self.wholeness is Wholeness.COMPLETE

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)

    @property
    def run(self) -> str:
        """The folder that holds the checkpoints of its run."""
        return str(PurePosixPath(self.path).parent)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "path": self.path,
            "format": self.format.value,
            "step": self.step,
            "files": len(self.files),
            "bytes": self.size,
            "verdict": self.wholeness.value,
            "why": self.why,
        }
