"""The protocol for reading the weights of a model, tensor by tensor.

One module per format (`safetensors_weights`, `gguf_weights`, `checkpoint_weights`) implements the protocol.
`starting_weights` chooses between them, and `weight_fit` checks that they fit the configuration.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from trainyard.config.schema import ArchitectureConfig
from trainyard.run.atomic_files import sha256_of_file


class WeightSource(Protocol):
    """The weights of one model under the names of Hugging Face's Llama. Opening reads only headers."""

    path: Path
    """The path that `model.path` names."""
    declared: Mapping[str, Any]
    """The keys of `model.architecture` that the file declares, with its values."""

    def names(self) -> Collection[str]:
        """The name of every tensor in the file; one that is not part of a Llama keeps the file's name."""

    def stored_name(self, name: str) -> str:
        """The name of the tensor `name` in the file."""
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading the tensor."""

    def read(self, name: str) -> Tensor:
        """Read one tensor in float32 on the CPU, in the layout of our model. No other tensor is kept."""

    def contradictions(self, _architecture: ArchitectureConfig, /) -> Iterator[str]:
        """Yield the contradictions between the file and an architecture that are specific to the format."""
        yield from ()

    def digest(self) -> str:
        """The SHA-256 over all bytes of the weights. It reads all of them."""


def digest_of_files(paths: Iterable[Path]) -> str:
    """The SHA-256 of one file, or of the lines `sha256  name` of several, in order of name."""
    files = sorted(paths)
    if len(files) == 1:
        return sha256_of_file(files[0])
    lines = (f"{sha256_of_file(path)}  {path.name}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
