"""Export a run's model from a verified checkpoint to safetensors with `config.json` and tokenizer.

    checkpoint --verify, tensor by tensor--> .NAME.tmp/ --fsync, rename--> NAME/

No model is built and no optimizer state is read. The run's tokenizer is written beside the weights; a run on
bytes gets a byte tokenizer. Nothing is uploaded.
"""

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainyard.config.load import load_config
from trainyard.config.schema import ModelConfig
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.atomic_files import sha256_of_file, sync_directory
from trainyard.run.checkpoint_manifest import ManifestFile, describe_files, read_manifest, verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.run_advice import require_run
from trainyard.training.checkpoint.checkpoint import newest_good_checkpoint
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.weights.hub_model import TOKENIZER_COMPANIONS
from trainyard.training.weights.hugging_face_config import CONFIG_NAME, hugging_face_config
from trainyard.training.weights.pretrained import TOKENIZER_NAME, tokenizer_file
from trainyard.training.weights.safetensors_weights import INDEX_NAME, WEIGHTS_NAME
from trainyard.training.weights.starting_weights import CheckpointWeights
from trainyard.training.weights.weight_fit import parameters_of, require_fit

# The largest size of a file of weights, unless one tensor is larger. One file is in memory at a time.
SHARD_BYTES = 2 << 30
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Export:
    """A checked plan of an export."""

    run_id: str
    step: int
    weights: CheckpointWeights
    model: ModelConfig
    eos: int | None
    """The token that ends a document."""
    dtype: str
    """The type of the exported numbers, a key of DTYPES."""
    sizes: dict[str, int]
    """The bytes of each tensor, in the order of the model."""
    shards: dict[str, list[str]]
    """The tensors of each file of weights, by its name."""

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "step": self.step,
            "checkpoint": str(self.weights.path),
            "manifest_sha256": self.weights.digest(),
            "dtype": self.dtype,
            "parameters": sum(self.sizes.values()) // DTYPES[self.dtype].itemsize,
            "bytes": sum(self.sizes.values()),
            "format": "safetensors",
            "weights": list(self.shards),
        }


def plan_export(
    directory: RunDirectory,
    step: int | None = None,
    *,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = UNSEEN,
) -> Export:
    """Plan the export of the checkpoint of `step` (None: the newest that verifies).

    Raises ConfigError when the directory holds no run or the tokenizer is missing; CheckpointError when no
    checkpoint verifies.
    """
    require_run(directory.path)
    model = load_config(directory.config_file).config.model
    progress.begin("verifying the checkpoint")
    digest_of = partial(sha256_of_file, progress=progress)
    path = _checkpoint(directory, step, digest_of)
    weights = CheckpointWeights(path)
    require_fit(weights, model.architecture)
    width = DTYPES[dtype].itemsize
    shapes = {name: weights.shape(name) for name in parameters_of(model.architecture)}
    sizes = {name: math.prod(shape) * width for name, shape in shapes.items()}
    manifest = read_manifest(path)
    return Export(
        run_id=manifest.run_id,
        step=manifest.step,
        weights=weights,
        model=model,
        eos=load_vocabulary(model).eos,
        dtype=dtype,
        sizes=sizes,
        shards=_shards(sizes, shard_bytes),
    )


def _checkpoint(directory: RunDirectory, step: int | None, digest_of: Callable[[Path], str]) -> Path:
    if step is None:
        if (newest := newest_good_checkpoint(directory, digest_of)) is not None:
            return newest
        raise CheckpointError(f"{directory.checkpoints} holds no checkpoint that verifies; nothing to export")
    path = directory.checkpoint(step)
    if not path.is_dir():
        known = ", ".join(map(str, directory.checkpoint_steps())) or "none"
        raise ConfigError(f"{directory.checkpoints} has no checkpoint of step {step}; there are: {known}")
    verify_checkpoint(path, digest_of=digest_of)
    return path


def _shards(sizes: dict[str, int], limit: int) -> dict[str, list[str]]:
    """Distribute the tensors in order; start a new file when the next tensor would exceed `limit` bytes."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    if len(groups) == 1:
        return {WEIGHTS_NAME: groups[0]}
    return {f"model-{n:05}-of-{len(groups):05}.safetensors": group for n, group in enumerate(groups, 1)}


def require_absent(target: Path) -> None:
    """Raise ConfigError when `target` exists, because an export replaces nothing."""
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists already; name a folder that does not, or remove it")


def write_export(export: Export, target: Path, progress: Progress = UNSEEN) -> tuple[ManifestFile, ...]:
    """Write the folder `target`, completely or not at all, and return its files with their digests.

    Raises ConfigError when it exists already, CheckpointError when it cannot be written.
    """
    from safetensors import SafetensorError

    require_absent(target)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _write_files(export, temporary, progress)
        progress.begin("hashing the written files")
        files = describe_files(temporary)
        for file in files:
            with (temporary / file.path).open("rb") as written:
                os.fsync(written.fileno())
        sync_directory(temporary)
        temporary.rename(target)
        sync_directory(target.parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{target} was not written ({error}); the checkpoint is untouched") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return files


def _write_files(export: Export, folder: Path, progress: Progress) -> None:
    from safetensors.torch import save_file

    progress.begin("writing", sum(export.sizes.values()))
    origin = {"format": "pt", "run_id": export.run_id, "step": str(export.step)}
    for file, names in export.shards.items():
        kind, tensors = DTYPES[export.dtype], {}
        for name in names:
            tensors[name] = export.weights.read(name).to(kind)
            progress.advance(export.sizes[name])
        save_file(tensors, folder / file, origin)
    if len(export.shards) > 1:
        files = {name: file for file, names in export.shards.items() for name in names}
        index = {"metadata": {"total_size": sum(export.sizes.values())}, "weight_map": files}
        _write_json(folder / INDEX_NAME, index)
    _write_json(folder / CONFIG_NAME, _config(export))
    write_tokenizer(folder, export.model)


def _config(export: Export) -> dict[str, Any]:
    """The content of `config.json` with the origin of the weights; readers ignore unknown keys."""
    return {
        **hugging_face_config(export.model.architecture),
        "torch_dtype": export.dtype,
        "bos_token_id": None,
        "eos_token_id": export.eos,
        "trainyard": {
            "run_id": export.run_id,
            "step": export.step,
            "manifest_sha256": export.weights.digest(),
            "vocabulary": "bytes" if export.model.tokenizer is None else "tokenizer",
        },
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


_CONFIG_NAME = "tokenizer_config.json"
_PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def write_tokenizer(folder: Path, model: ModelConfig) -> None:
    """Write the files that `transformers.AutoTokenizer` loads into `folder`."""
    if model.tokenizer is None:
        (folder / TOKENIZER_NAME).write_text(byte_tokenizer(), encoding="utf-8")
    else:
        source = tokenizer_file(model.tokenizer)
        shutil.copyfile(source, folder / TOKENIZER_NAME)
        for name in TOKENIZER_COMPANIONS:
            if (companion := source.with_name(name)).is_file():
                shutil.copyfile(companion, folder / name)
    if not (folder / _CONFIG_NAME).exists():
        (folder / _CONFIG_NAME).write_text(json.dumps(_PLAIN, indent=2) + "\n")


def byte_tokenizer() -> str:
    """A tokenizer.json whose tokens are the bytes of UTF-8; the id of each token is its byte.

    Byte 0, which separates documents, is not a special token: the tokenizer would then recognise the
    character that represents it in ordinary text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Byte-level tokenizers (GPT-2) write a byte as itself if it is printable.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    signs = (chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256))
    vocabulary = {sign: byte for byte, sign in enumerate(signs)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str(pretty=True)) + "\n"
