"""The weights that a run starts from: of a checkpoint, of files, and of a .gguf file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.unit.training.lab import Lab
from tests.unit.training.model.worlds import fake_world
from tests.unit.training.weights.model_files import random_values, write_gguf
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainyard.config.schema import ArchitectureConfig, Config, ModelConfig, RopeScalingConfig
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory
from trainyard.training.data.tokenize_corpus import prepare_data
from trainyard.training.loop import rehearse
from trainyard.training.model.model import build_model, rotary_frequencies
from trainyard.training.run.run_context import Request
from trainyard.training.weights.gguf_weights import GgufHeader, GgufWeights, gguf_name, our_name
from trainyard.training.weights.starting_weights import (
    load_weights,
    open_starting_weights,
    open_weights,
    require_weights,
)
from trainyard.training.weights.weight_fit import parameters_of

Build = Callable[..., Config]
TIED: dict[str, Any] = {"architecture": {"tie_word_embeddings": True}}


def test_only_a_run_that_begins_needs_its_weights_before_its_data(tiny_config: Build, tmp_path: Path) -> None:
    directory, config = RunDirectory(tmp_path / "run"), tiny_config(model={"path": str(tmp_path / "gone")})
    with pytest.raises(ConfigError, match="does not exist"):
        require_weights(config, directory, "auto")
    directory.create()
    directory.run_file.write_text("{}")
    require_weights(config, directory, "auto")
    require_weights(config, directory, str(tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match="does not exist"):
        require_weights(config, directory, "none")


def test_a_missing_file_or_one_of_no_known_form_stops_the_run_before_it_starts(lab: Lab) -> None:
    config = lab.config(model={"path": str(lab.folder / "absent.safetensors")})
    with pytest.raises(
        ConfigError, match=r"model\.path: .*absent.* does not exist.*--set model\.path=null"
    ) as no:
        lab.run(config)
    assert no.value.exit_code == 2
    (lab.folder / "model.pt").write_bytes(b"weights")
    (lab.folder / "folder").mkdir()
    for name in ("model.pt", "folder"):
        with pytest.raises(ConfigError, match=r"no known form.*--set model\.path=null"):
            lab.run(lab.config(model={"path": str(lab.folder / name)}))
    assert not (lab.folder / "run").exists()


def test_weights_that_are_not_finite_are_not_started_from(lab: Lab) -> None:
    config = lab.config(model={"path": str(lab.folder / "model.safetensors")})
    tensors = dict(build_model(config.model.architecture, seed=0).state_dict())
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, lab.folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.norm\.weight holds values that are not finite"):
        lab.run(config)
    assert not (lab.folder / "run").exists() or not list((lab.folder / "run").glob("*.json"))


def test_a_run_starts_from_the_weights_of_a_checkpoint_and_keeps_their_record(lab: Lab) -> None:
    first = lab.once("first")
    assert "model" not in lab.record("first"), "random weights leave no record"
    path = lab.folder / "first/checkpoints/step-00000012"
    second = lab.run(lab.config(model={"path": str(path)}, training={"max_steps": 1}), "second")
    assert second["first_loss"] < first["first_loss"] - 0.5
    assert second["first_loss"] == pytest.approx(first["final_loss"], abs=0.3)
    record = {"path": str(path), "sha256": sha256_of_file(path / "manifest.json")}
    assert lab.record("second")["model"] == record
    assert lab.steps("second") == [1]
    path.rename(path.with_name("gone"))
    lab.run(lab.config(model={"path": str(path)}, training={"max_steps": 3}), "second")
    assert lab.record("second")["model"] == record, "the weights are not read again"


def test_a_rehearsal_describes_the_run_only_when_the_weights_fit(tiny_config: Build, tmp_path: Path) -> None:
    def rehearsal(**model: Any) -> dict[str, Any]:
        config = tiny_config(model=model)
        prepare_data(config.data, config.model)
        directory = RunDirectory(tmp_path / "run")
        return rehearse(config, lambda data: Request(config, directory, data, "auto", "id", {}))

    assert rehearsal()["starts_from"] is None
    with pytest.raises(ConfigError, match="does not exist"):
        rehearsal(path=str(tmp_path / "absent.gguf"))


def test_a_checkpoint_with_a_flipped_byte_is_not_started_from(lab: Lab) -> None:
    lab.once("first")
    path = lab.folder / "first/checkpoints/step-00000012"
    data = next(path.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.path: .*does not verify \(.*SHA-256"):
        open_weights(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="the save was never completed"):
        open_weights(path)


def test_tied_weights_are_read_from_a_checkpoint_that_holds_them_twice(lab: Lab) -> None:
    lab.run(lab.config(model=TIED), "first")
    path = lab.folder / "first/checkpoints/step-00000012"
    config = lab.config(model=TIED | {"path": str(path)}, training={"max_steps": 1})
    assert lab.run(config, "second")["first_loss"] < 4


@pytest.fixture
def second_of_two() -> Iterator[DeviceMesh]:
    """This process as rank 1 of 2; nothing is sent, so a collective would give wrong numbers."""
    with fake_world(1, 2):
        yield init_device_mesh("cpu", (2,))


@pytest.mark.parametrize("tied", [True, False])
def test_a_rank_keeps_its_part_of_every_tensor(second_of_two: DeviceMesh, tmp_path: Path, tied: bool) -> None:
    shape = ArchitectureConfig(vocab_size=257, hidden_size=32, num_layers=1, tie_word_embeddings=tied)
    complete = dict(build_model(shape, seed=1).named_parameters())
    save_file({name: tensor.detach() for name, tensor in complete.items()}, tmp_path / "m.safetensors")
    model = build_model(shape, seed=2)
    fully_shard(model.model.layers[0], mesh=second_of_two)
    fully_shard(model, mesh=second_of_two)
    load_weights(model, open_weights(tmp_path / "m.safetensors"))
    parts = {name: parameter.to_local() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
    assert parts.keys() == complete.keys()
    for name, part in parts.items():
        assert torch.equal(part, complete[name].chunk(2)[1]), name
    assert parts["model.embed_tokens.weight"].shape == (128, 32)


SCALING = RopeScalingConfig(rope_type="llama3", factor=8.0, original_max_position_embeddings=64)
SHAPE = ArchitectureConfig(hidden_size=64, intermediate_size=96, num_layers=2, num_attention_heads=4)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of random weights of SHAPE, with changes of its metadata."""
    return lambda metadata=None, **more: write_gguf(
        tmp_path / "m.gguf", SHAPE, random_values(SHAPE), metadata=metadata, **more
    )


def refusal_lines(path: Path, shape: ArchitectureConfig = SHAPE) -> list[str]:
    """The lines of the refusal; none when the weights fit."""
    try:
        open_starting_weights(ModelConfig(name="m", path=str(path), architecture=shape))
    except ConfigError as error:
        return [line.strip() for line in str(error).splitlines()[1:-1]]
    return []


def test_names_go_there_and_back() -> None:
    for name in parameters_of(SHAPE):
        assert our_name(gguf_name(name)) == name
    assert gguf_name("model.layers.7.self_attn.k_proj.weight") == "blk.7.attn_k.weight"
    assert our_name("blk.3.attn_k.bias") == "model.layers.3.self_attn.k_proj.bias"
    for unknown in ("blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.0.attn_q"):
        assert our_name(unknown) == gguf_name(unknown) == unknown


def test_tensors_are_read_one_by_one_with_the_shapes_that_were_announced(write: Write) -> None:
    source = GgufWeights(write())
    for name, shape in parameters_of(SHAPE).items():
        tensor = source.read(name)
        assert tuple(tensor.shape) == source.shape(name) == shape
        assert tensor.dtype == torch.float32
        tensor.zero_()  # memory of its own, not the file's
    assert source.digest() == sha256_of_file(source.path)


def test_metadata_and_shapes_are_compared(write: Write) -> None:
    shape = SHAPE.model_copy(update={"rope_theta": 5e5})
    assert refusal_lines(write({"llama.attention.layer_norm_rms_epsilon": 1e-6}), shape) == [
        "model.architecture.rope_theta: the file has 10000.0, the configuration 500000.0",
        "model.architecture.rms_norm_eps: the file has 1e-06, the configuration 1e-05",
    ]
    lines = refusal_lines(write(), SHAPE.model_copy(update={"intermediate_size": 128}))
    assert lines[0] == "blk.0.ffn_down.weight: [64, 96] in the file, [64, 128] in the configuration"
    assert len(lines) == 6
    lines = refusal_lines(write({"llama.attention.head_count_kv": None}))
    assert lines == ["model.architecture.num_key_value_heads: the file has 4, the configuration 2"]


def test_rotary_scaling_is_read_from_the_divisors(write: Write) -> None:
    scaled = SHAPE.model_copy(update={"rope_scaling": SCALING})
    divisors = (rotary_frequencies(SHAPE) / rotary_frequencies(scaled)).numpy()
    start = "model.architecture.rope_scaling: the file divides the rotary frequencies by"
    plain, stretched = write(), "1 to 8 (rope_freqs.weight)"
    (found,) = refusal_lines(plain, scaled)
    assert found == f"{start} 1 to 1 (rope_freqs.weight), the configuration by 1 to 8"
    with_divisors = write(extra={"rope_freqs.weight": divisors})
    assert refusal_lines(with_divisors, scaled) == []
    assert GgufWeights(with_divisors).architecture()["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}
    assert refusal_lines(with_divisors) == [f"{start} {stretched}, the configuration by 1 to 1"]


def test_features_that_our_model_lacks_are_refused(write: Write) -> None:
    linear = 'model.architecture.rope_scaling: the file has {"rope_type": "linear"}, the configuration '
    (found,) = refusal_lines(write({"llama.rope.scaling.type": "linear"}))
    assert found.startswith(linear)
    (found,) = refusal_lines(write({"llama.rope.dimension_count": 8}))
    assert found == "the file rotates 8 dimensions per head by position, our model all 16"


def test_experts_are_no_part_of_our_model(write: Write) -> None:
    extra = {f"blk.{n}.ffn_gate_inp.weight": np.zeros((4, 64), np.float32) for n in range(2)}
    lines = refusal_lines(write(extra=extra))
    assert lines == [f"{name}: no part of the model; [4, 64] in the file" for name in extra]


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        open_weights(path)
    return str(error.value)


def test_files_of_other_models_are_refused(write: Write) -> None:
    assert "the architecture 'qwen2'; this trainer has llama only" in refusal(write(architecture="qwen2"))
    assert "has no llama.block_count" in refusal(write({"llama.block_count": None}))


def test_a_file_cut_off_anywhere_or_of_something_else_is_no_gguf_file(write: Write) -> None:
    path = write()
    content = path.read_bytes()
    for keep in (0, 3, 20, 400, len(content) // 2, len(content) - 50):
        path.write_bytes(content[:keep])
        assert "is not a GGUF file that" in refusal(path), keep
    path.write_bytes(b"<!DOCTYPE html>" * 100)
    assert "can read (GGUF magic invalid); download it again" in refusal(path)


def test_a_tokenizer_in_the_file_is_passed_over(write: Write, tmp_path: Path) -> None:
    """gguf's own reader, which makes an object of each token, finds the same scalars and tensors."""
    path = write(tokens=["a", "", "größer", "x" * 300])
    header, complete = GgufHeader(path), gguf.GGUFReader(path)
    assert [(t.name, t.data_offset, t.n_bytes) for t in header.tensors] == [
        (t.name, t.data_offset, t.n_bytes) for t in complete.tensors
    ]
    arrays = {name for name, field in complete.fields.items() if field.types[0] == gguf.GGUFValueType.ARRAY}
    assert arrays == {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}
    for name in complete.fields.keys() - arrays:
        assert header.fields[name].contents() == complete.fields[name].contents()
    assert refusal_lines(path) == []
    content = path.read_bytes()
    position = content.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    path.write_bytes(content[:position] + b"\xff" * 8 + content[position + 8 :])
    assert "is not a GGUF file that" in refusal(path)
