"""Read weights from Hugging Face's safetensors: one file, or a folder of shards with its `config.json`.

Tensors are read from the mapped files one by one. `weight_fit` interprets their names.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainyard.config.schema import ArchitectureConfig
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.untrusted_files import read_json_object
from trainyard.training.weights.hugging_face_config import CONFIG_NAME, declared_architecture, read_config
from trainyard.training.weights.weight_fit import OUTPUT, WeightSource, digest_of_files, layers_in

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_FLOATS = {"F32", "F16", "BF16", "F64"}
# Old exports of Llama contain the rotary table. It is ignored, because the configuration determines it.
_DERIVED = ".rotary_emb.inv_freq"


class SafetensorsWeights(WeightSource):
    """A `.safetensors` file, or a folder as written by `save_pretrained`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        folder = path if path.is_dir() else path.parent
        self._files = _files_of(path) if path.is_dir() else [path]
        self._handles = {name: handle for file in self._files for name, handle in _tensors_of(file)}
        config = folder / CONFIG_NAME
        self._config = [config] if config.is_file() else []
        if self._config:
            self.declared = declared_architecture(read_config(config))
        else:
            tied = OUTPUT not in self._handles
            self.declared = {"num_layers": layers_in(self._handles), "tie_word_embeddings": tied}

    def names(self) -> Collection[str]:
        return self._handles.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handles[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor.to(torch.float32)

    def contradictions(self, _architecture: ArchitectureConfig, /) -> Iterator[str]:
        for name, handle in self._handles.items():
            if (dtype := handle.get_slice(name).get_dtype()) not in _FLOATS:
                yield f"{name}: stored as {dtype}; only {', '.join(sorted(_FLOATS))} can be read"

    def digest(self) -> str:
        return digest_of_files([*self._files, *self._config])


def _files_of(folder: Path) -> list[Path]:
    """The shards that the index names, or the single file in the folder."""
    index = folder / INDEX_NAME
    if index.is_file():
        try:
            names = set(read_json_object(index)["weight_map"].values())
        except (OSError, DamagedFileError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"model.path: {index} is not an index of weights ({error!r})") from None
        files = [folder / name for name in sorted(names)]
    elif (folder / WEIGHTS_NAME).is_file():
        files = [folder / WEIGHTS_NAME]
    else:
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1:
            raise ConfigError(
                f"model.path: {folder} holds {len(files)} .safetensors files and no {INDEX_NAME} that lists "
                "the shards of a model; name one file"
            )
    if missing := [file.name for file in files if not file.is_file()]:
        raise ConfigError(f"model.path: {index} names missing files: {', '.join(missing)}; download them too")
    return files


def _tensors_of(file: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        handle: Any = safe_open(file, framework="pt")
        names = [name for name in handle.keys() if not name.endswith(_DERIVED)]  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"model.path: {file} is not a complete .safetensors file ({error}); download it again"
        ) from None
    yield from ((name, handle) for name in names)
