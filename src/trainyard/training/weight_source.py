"""Where the weights of a model can be read from, tensor by tensor.

One module a format (`safetensors_weights`, `gguf_weights`, `checkpoint_weights`) satisfies the protocol;
`starting_weights` chooses between them and `weight_fit` judges whether they fit the configuration.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from trainyard.config.schema import ArchitectureConfig
from trainyard.run.files import sha256_of_file


class WeightSource(Protocol):
    """Weights of one model under the names of Hugging Face's Llama; opening reads headers only."""

    @property
    def path(self) -> Path:
        """What `model.path` names."""

    @property
    def declared(self) -> Mapping[str, Any]:
        """Keys of `model.architecture` on which the file speaks, with its values."""

    def names(self) -> Collection[str]:
        """Every tensor in the file; one that is no part of a Llama keeps the file's own name."""

    def stored_name(self, name: str) -> str:
        """What the file itself calls the tensor `name`."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, known without reading it."""

    def read(self, name: str) -> Tensor:
        """One tensor in float32 on the CPU, in the layout of our model; nothing else is held in memory."""

    def contradictions(self, architecture: ArchitectureConfig, /) -> Iterator[str]:
        """What of `architecture` the file contradicts in a way that only its format can tell."""

    def digest(self) -> str:
        """SHA-256 over all bytes that the weights come from; reads them all."""


def digest_of_files(paths: Iterable[Path]) -> str:
    """The SHA-256 of one file, or of the lines `sha256  name` of several, in order of name."""
    files = sorted(paths)
    if len(files) == 1:
        return sha256_of_file(files[0])
    lines = (f"{sha256_of_file(path)}  {path.name}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
