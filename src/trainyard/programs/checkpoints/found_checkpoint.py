"""One checkpoint, whether it is complete and whether training resumes from it: the record of all formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from trainyard.programs.checkpoints.volume_listing import VolumeFile


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
    NANOGPT = "nanogpt"
    NANOCHAT = "nanochat"
    AUTOMODEL = "automodel"
    """NeMo AutoModel."""
    COMPOSER = "composer"
    OLMO_CORE = "olmo-core"
    TORCH_SAVE = "torch.save"
    """One file of torch.save."""
    SAFETENSORS = "safetensors"
    """One file of safetensors."""


class Wholeness(StrEnum):
    """The verdict on a checkpoint, reached without reading all of its bytes."""

    COMPLETE = "complete"
    """Its writer marked it as done, and every file that it names is present with its size."""
    PARTIAL = "partial"
    """A file is missing, or nothing marks it as done: its save may be in progress."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """One checkpoint."""

    format: CheckpointFormat
    path: str
    """The path of its folder or of its one file, relative to the listed folder."""
    step: int | None
    """Optimizer steps done; None if neither its name nor its files show it."""
    files: tuple[VolumeFile, ...]
    why: str
    """The sign that it is complete, or the missing parts."""
    wholeness: Wholeness = Wholeness.PARTIAL
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Path of a file -> its digest, if the checkpoint's own manifest has it."""
    trackers: tuple[VolumeFile, ...] = ()
    """Files beside the folder that its framework reads to find it."""
    resumable: bool | None = None
    """Whether training resumes from it as if it had not stopped; None if its files do not show that."""
    resumable_why: str = ""
    """The reason for `resumable`."""
    needs_quiet: bool = False
    """Whether its format writes no file last, so that it is complete only once its files stop changing."""

    @property
    def is_complete(self) -> bool:
        return self.wholeness is Wholeness.COMPLETE

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
            "verdict": self.wholeness.value,
            "why": self.why,
            "resumable": self.resumable,
            "resumable_why": self.resumable_why,
        }
