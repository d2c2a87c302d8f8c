"""The weights that a fresh run starts from: `model.path` opened, judged, and read into the model.

    .gguf | .safetensors | Hugging Face folder | checkpoint --> WeightSource --tensor by tensor--> parameters

A run that is resumed does not come here: its weights are those of its checkpoint.
"""

from pathlib import Path

from torch import nn

from trainyard.config.schema import ModelConfig
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.checkpoints import MANIFEST_NAME, verify_checkpoint
from trainyard.training.checkpoint_weights import CheckpointWeights
from trainyard.training.gguf_weights import GgufWeights
from trainyard.training.native_dequantization import DEFAULT_TILE_BYTES
from trainyard.training.placement import place
from trainyard.training.safetensors_weights import SafetensorsWeights
from trainyard.training.weight_fit import require_fit
from trainyard.training.weight_source import WeightSource

_FORMS = (
    "a .gguf file, a .safetensors file, a Hugging Face folder with .safetensors files, or a checkpoint "
    "(…/checkpoints/step-00000500)"
)


def open_starting_weights(model: ModelConfig, *, tile_bytes: int = DEFAULT_TILE_BYTES) -> WeightSource | None:
    """The weights of `model.path`, None for random ones; headers are read, tensors are not.

    Quantised ones are dequantised `tile_bytes` at a time.

    Raises ConfigError when the file is missing, of no known form or does not fit `model.architecture`, and
    CheckpointError when it is a checkpoint that does not verify.
    """
    if model.path is None:
        return None
    source = open_weights(Path(model.path), tile_bytes=tile_bytes)
    require_fit(source, model.architecture)
    return source


def open_weights(path: Path, *, tile_bytes: int = DEFAULT_TILE_BYTES) -> WeightSource:
    """The reader for the form of `path`."""
    if not path.exists():
        raise ConfigError(
            f"model.path: {path} does not exist. Put {_FORMS} there, or start from random weights with "
            "--set model.path=null. Nothing was started."
        )
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".gguf":
        return GgufWeights(path, tile_bytes=tile_bytes)
    if path.suffix == ".safetensors":
        return SafetensorsWeights(path)
    raise _unknown(path)


def _open_folder(path: Path) -> WeightSource:
    if (path / MANIFEST_NAME).exists() or (path / ".metadata").exists():
        try:
            verify_checkpoint(path)
            return CheckpointWeights(path)
        except CheckpointError as error:
            raise CheckpointError(
                f"model.path: {path} does not verify ({error}). Nothing was loaded; name another checkpoint."
            ) from error
    if any(path.glob("*.safetensors*")):
        return SafetensorsWeights(path)
    raise _unknown(path)


def _unknown(path: Path) -> ConfigError:
    return ConfigError(
        f"model.path: {path} is of no known form. Name {_FORMS}, or start from random weights with "
        "--set model.path=null. Nothing was started."
    )


def load_weights(model: nn.Module, source: WeightSource) -> None:
    """Read every parameter of `model` from `source`, one at a time; a sharded one keeps its own part only."""
    for name, parameter in model.named_parameters():
        place(parameter, source.read(name))
