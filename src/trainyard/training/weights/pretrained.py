"""Read architecture, tokenizer and name of a model from its weights or from the files beside them.

    folder, .safetensors, Hub: config.json | .gguf: its header | checkpoint: its run's config.yaml
        --> DeclaredShape --> `load_config` uses it for the keys that are not set

Every script that reads a configuration for training loads it with `load_with_weights`, so that plan,
checks and training see the same model. No tensor is read. torch is imported only for .gguf files and
checkpoints.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.config.from_weights import NAME, TOKENIZER, DeclaredShape
from trainyard.config.load import LoadedConfig, load_config
from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.checkpoint_manifest import is_complete
from trainyard.run.directory import RunDirectory
from trainyard.training.weights.hub_model import HubModel, description_of, hub_model, weights_of
from trainyard.training.weights.hugging_face_config import CONFIG_NAME, architecture_of, read_config

TOKENIZER_NAME = "tokenizer.json"
FORMS = (
    "a .gguf file, a .safetensors file, a Hugging Face folder with .safetensors files, or a checkpoint "
    "(…/checkpoints/step-00000500)"
)
_KEY = "model.architecture."
# The keys that are needed to build a model.
_CORE = frozenset(
    _KEY + name
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
)


def load_with_weights(
    path: Path, overrides: Sequence[str], run_directory: Path | None = None
) -> LoadedConfig:
    """Load the configuration and take model keys that are not set from the weights of `model.path`.

    If the run in `run_directory` was started from the same weights, its configuration supplies these keys, so
    that it resumes without the weights and at the same commit. Raises what `load_config` and `description_of`
    raise.
    """

    def read_open_keys(weights: str, open_keys: frozenset[str]) -> DeclaredShape | None:
        file = RunDirectory(run_directory).config_file if run_directory else None
        if file is not None and file.is_file():
            recorded = load_config(file).config
            # From the same path, or from the commit to which it was resolved then.
            if f"{recorded.model.path}@".startswith(f"{weights}@"):
                return _declaration_of_run(recorded, str(file))
        return read_declared(weights, open_keys)

    return load_config(path, overrides, read_weights=read_open_keys)


def weights_place(path: str) -> Path:
    """The local path of the weights of `model.path`; weights on the Hub are fetched."""
    model = hub_model(path)
    return Path(path).expanduser() if model is None else weights_of(model)


def tokenizer_file(tokenizer: str) -> Path:
    """The `tokenizer.json` that `model.tokenizer` means: a file, a folder, or a model on the Hub."""
    model = hub_model(tokenizer)
    path = Path(tokenizer).expanduser() if model is None else description_of(model)[0]
    return path / TOKENIZER_NAME if path.is_dir() else path


def read_declared(path: str, open_keys: frozenset[str]) -> DeclaredShape | None:
    """Read the keys that the weights at `path` declare.

    Returns None when no key is open, or when the weights are missing and not needed.
    """
    model = hub_model(path)
    if model is not None:
        return None if model.is_pinned and not open_keys else _declaration_of_hub(model, open_keys)
    if not open_keys:
        return None
    place, needed = Path(path).expanduser(), bool(open_keys & _CORE)
    if not place.exists():
        if needed:
            raise missing_error(path)
        return None
    try:
        return _declaration_of_place(path, place, open_keys)
    except ConfigError:
        if needed:
            raise
        return None  # opening the weights reports the error later


def missing_error(path: str | Path) -> ConfigError:
    """The error for weights that do not exist."""
    return ConfigError(
        f"model.path: {path} does not exist. Put {FORMS} there, or start from random weights with "
        "--set model.path=null. Nothing was started."
    )


def is_checkpoint(path: Path) -> bool:
    return is_complete(path) or (path / ".metadata").exists()


def _declaration_of_place(path: str, place: Path, open_keys: frozenset[str]) -> DeclaredShape | None:
    if is_checkpoint(place):
        return _declaration_of_checkpoint(path, place)
    if place.suffix == ".gguf":
        return _declaration_of_gguf(path, place, open_keys)
    folder = place if place.is_dir() else place.parent
    if (folder / CONFIG_NAME).is_file():
        shown = Path(path) if place.is_dir() else Path(path).parent
        values = {NAME: folder.resolve().name, TOKENIZER: str(shown / TOKENIZER_NAME)}
        return _declaration_of_folder(folder, str(shown), path, given=values, open_keys=open_keys)
    if open_keys & _CORE and (place.suffix == ".safetensors" or any(folder.glob("*.safetensors"))):
        raise ConfigError(
            f"model.path: {path} has no {CONFIG_NAME} beside it, so the shape of the model is not known. Put "
            f"it there, or set {', '.join(sorted(open_keys & _CORE))}. Nothing was started."
        )
    return None


def _declaration_of_folder(
    folder: Path, shown: str, path: str, *, given: Mapping[str, str], open_keys: frozenset[str]
) -> DeclaredShape:
    """Read the declaration of a folder; `given` are the name, and the tokenizer if the folder has one."""
    config = read_config(folder / CONFIG_NAME)
    values = _flat(architecture_of(config)) | dict(given)
    if config.get("trainyard", {}).get("vocabulary") == "bytes":
        values[TOKENIZER] = None
    elif not (folder / TOKENIZER_NAME).is_file():
        del values[TOKENIZER]
        _require_no_tokenizer(path, open_keys)
    return DeclaredShape(f"{CONFIG_NAME} of {shown}", values, path)


def _declaration_of_hub(model: HubModel, open_keys: frozenset[str]) -> DeclaredShape:
    folder, pinned = description_of(model)
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(
            f"model.path: {model} has no {CONFIG_NAME} on the Hugging Face Hub, so it is not a model that "
            "this trainer can start from. Nothing was started."
        )
    values = {NAME: model.repository.rpartition("/")[2], TOKENIZER: str(pinned)}
    return _declaration_of_folder(folder, str(pinned), str(pinned), given=values, open_keys=open_keys)


def _declaration_of_gguf(path: str, place: Path, open_keys: frozenset[str]) -> DeclaredShape:
    from trainyard.training.weights.gguf_weights import GgufWeights

    source = GgufWeights(place)
    values = _flat(source.architecture()) | {NAME: place.stem}
    if place.with_name(TOKENIZER_NAME).is_file():
        values[TOKENIZER] = str(Path(path).with_name(TOKENIZER_NAME))
    else:
        _require_no_tokenizer(path, open_keys)
    return DeclaredShape(f"header of {path}", values, path)


def _declaration_of_checkpoint(path: str, place: Path) -> DeclaredShape:
    from trainyard.training.checkpoint.stored_index import read_state

    run = RunDirectory(place.resolve().parent.parent)
    if run.config_file.is_file():
        recorded = load_config(run.config_file).config
        declared = _declaration_of_run(recorded, f"config.yaml of {run.path}")
        return DeclaredShape(declared.source, declared.values, path)
    try:
        fits = read_state(place)["fits"]
    except CheckpointError as error:
        raise ConfigError(f"model.path: {error}. Nothing was started.") from None
    shape = {key.removeprefix(_KEY): value for key, value in fits.items() if key.startswith(_KEY)}
    return DeclaredShape(f"state of {path}", _flat(shape), path)


def _declaration_of_run(config: Config, source: str) -> DeclaredShape:
    model = config.model
    values = _flat(model.architecture.model_dump()) | {TOKENIZER: model.tokenizer, NAME: model.name}
    return DeclaredShape(source, values, model.path or "")


def _require_no_tokenizer(path: str, open_keys: frozenset[str]) -> None:
    if open_keys & _CORE and TOKENIZER in open_keys:
        raise ConfigError(
            f"model.tokenizer: there is no {TOKENIZER_NAME} beside the weights of model.path, {path}. Set "
            f"model.tokenizer to the model's {TOKENIZER_NAME}, or to null to train on bytes. "
            "Nothing was started."
        )


def _flat(architecture: Mapping[str, Any]) -> dict[str, Any]:
    """The values by dotted key, including the keys of nested sections."""
    values: dict[str, Any] = {}
    for key, value in architecture.items():
        if isinstance(value, Mapping):
            values |= {f"{_KEY}{key}.{name}": below for name, below in value.items()}
        else:
            values[_KEY + key] = value
    return values
