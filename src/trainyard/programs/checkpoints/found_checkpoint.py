"""One checkpoint, and whether it is complete: the record of all formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from trainyard.programs.checkpoints.volume_listing import VolumeFile
from trainyard.programs.sources import Source


class CheckpointFormat(StrEnum):
    """The program or format that wrote a checkpoint."""

    TRAINYARD = "trainyard"
    VERL = "verl"
    MEGATRON = "megatron"
    NEMO = "nemo"
    DEEPSPEED = "deepspeed"
    DCP = "dcp"
    """PyTorch's distributed checkpoint: of torchtitan, and of own programs."""
    HUGGING_FACE = "huggingface"
    """A checkpoint of transformers' Trainer, or weights alone."""
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    ORBAX = "orbax"
    FILES = "files"
    """Files of any other kind."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """One checkpoint."""

    format: CheckpointFormat
    path: str
    """The path of its folder or of its one file, relative to the listed folder."""
    step: int | None
    """Optimizer steps done; None if neither its files nor its format show it."""
    files: tuple[VolumeFile, ...]
    why: str
    """The sign that it is complete, or the missing parts."""
    is_complete: bool = True
    """Whether no file is missing or short, and no mark shows that its save is in progress."""
    source: Source = Source.CHECKPOINT
    """`guessed` if the step is only a number in a name."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Path of a file -> its digest, if the checkpoint's own manifest has it."""
    trackers: tuple[VolumeFile, ...] = ()
    """Files beside the folder that its framework reads to find it."""
    is_weights_alone: bool = False
    """Whether the framework that wrote it saved no optimizer: resumed from, that would start from zero."""
    needs_quiet: bool = False
    """Whether its format writes no file last, so that other signs must show that no file is to follow."""

    @property
    def size(self) -> int:
        """The size of all its files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def run(self) -> str:
        """The folder that holds the checkpoints of its run."""
        return str(PurePosixPath(self.path).parent)

    def record(self) -> dict[str, Any]:
        """Return the checkpoint as plain data."""
        return {
            "path": self.path,
            "format": self.format.value,
            "step": self.step,
            "files": len(self.files),
            "bytes": self.size,
            "verdict": "complete" if self.is_complete else "partial",
            "why": self.why,
            "weights_alone": self.is_weights_alone,
        }
