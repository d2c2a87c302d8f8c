"""Valid values that cannot be trained together, the mesh of processes, and the number of parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cases import each_case

from trainyard.config.combinations import impossible_combinations
from trainyard.config.key_lookup import leaf_keys
from trainyard.config.load import load_config
from trainyard.config.mesh import MeshShape, mesh_shape, require_processes
from trainyard.config.parameters import count_parameters
from trainyard.config.schema import ArchitectureConfig, ComputeConfig, Config
from trainyard.errors import ConfigError
from trainyard.training.model.model import Block, Llama, parameter_count


def config(**sections: dict[str, Any]) -> Config:
    plain: dict[str, Any] = {"model": {"name": "x"}, "training": {"max_steps": 5}}
    return Config.model_validate(
        {name: {**plain.get(name, {}), **sections.get(name, {})} for name in {**plain, **sections}}
    )


SHAPE = "model.architecture."


# The section, its values, the key that is blamed, and the reason.
IMPOSSIBLE: list[tuple[str, dict[str, Any], str, str]] = [
    ("model", {"num_attention_heads": 3, "num_key_value_heads": 1}, f"{SHAPE}num_attention_heads",
     "3 does not divide the hidden size 128"),
    ("model", {"hidden_size": 12}, f"{SHAPE}num_attention_heads",
     "the head size 3 is odd; rotary positions need an even one"),
    ("model", {"num_key_value_heads": 8}, f"{SHAPE}num_key_value_heads",
     "8 does not divide the 4 attention heads"),
    ("model", {"vocab_size": 255}, f"{SHAPE}vocab_size", "255 is too small for bytes, which need 256"),
    ("model", {"rope_scaling": {"rope_type": "llama3", "high_freq_factor": 1.0}},
     f"{SHAPE}rope_scaling.high_freq_factor", f"1 is not above {SHAPE}rope_scaling.low_freq_factor, 1"),
    ("data", {"sequence_length": 2049}, "data.sequence_length",
     "2049 is longer than model.architecture.max_position_embeddings, 2048"),
    ("data", {"hugging_face": {"dataset": "a/b"}, "train_path": "x"}, "data.train_path",
     "is not read beside data.hugging_face.dataset: set one of the two to null"),
    ("data", {"hugging_face": {"dataset": "a/b"}, "validation_path": "x"}, "data.validation_path",
     "is not read beside data.hugging_face.dataset: set it to null, and use "
     "data.hugging_face.validation_split"),
    ("checkpointing", {"keep_every": 750}, "checkpointing.keep_every",
     "750 is not a multiple of checkpointing.save_steps, 500, so most of these steps are never saved: "
     "set a multiple"),
    ("training", {"max_steps": None}, "training.max_steps",
     "neither max_steps nor epochs is set, so the run would never end: set one"),
]  # fmt: skip


def test_an_impossible_combination_is_named_by_key_and_reason() -> None:
    for section, values, key, reason in IMPOSSIBLE:
        given = {section: {"architecture": values} if section == "model" else values}
        ((keys, found),) = impossible_combinations(config(**given))
        assert (keys.split()[0], found) == (key, reason)
        assert set(keys.split()) <= set(leaf_keys()), key


def test_a_stream_has_no_epochs_to_count() -> None:
    stream = {"hugging_face": {"dataset": "a/b"}}
    ((keys, reason),) = impossible_combinations(config(data=stream, training={"epochs": 2}))
    assert keys.split()[0] == "training.epochs"
    assert reason.startswith("the length of an epoch of a/b is not known: set it to null")


@each_case(
    "sections",
    [
        {},
        {"training": {"max_steps": 5, "warmup_steps": 100}},
        {"training": {"max_steps": None, "epochs": 1}},
        {"model": {"tokenizer": "t.json", "architecture": {"vocab_size": 100}}},
        {"model": {"architecture": {"num_key_value_heads": 1}}},
        {"model": {"architecture": {"rope_scaling": {"rope_type": "default", "high_freq_factor": 1.0}}}},
        {"data": {"sequence_length": 2048}},
        {"data": {"hugging_face": {"dataset": "a/b"}}},
    ],
)
def test_what_can_be_trained_is_not_called_impossible(sections: dict[str, Any]) -> None:
    assert list(impossible_combinations(config(**sections))) == []


@each_case(
    ("monitoring", "keys"),
    [
        ({"wandb": {"enabled": True}}, ["monitoring.wandb.enabled"]),
        (
            {"tensorboard": False, "wandb": {"project": "x"}},
            ["monitoring.tensorboard", "monitoring.wandb.project"],
        ),
        ({"tensorboard": True, "wandb": {"enabled": False}}, []),
    ],
)
def test_trackers_are_the_programs_own(monitoring: dict[str, Any], keys: list[str]) -> None:
    program = {"recipe": "command", "program": {"command": ["a"]}, "model": {"name": "x"}}
    found = list(impossible_combinations(Config.model_validate({**program, "monitoring": monitoring})))
    assert [involved.split()[0] for involved, _ in found] == keys
    assert all(reason.startswith("it is the program's own") for _, reason in found)
    assert list(impossible_combinations(config(monitoring=monitoring))) == []


def test_sharded_gradients_are_not_compressed() -> None:
    compute = {"strategy": "fsdp", "gradient_compression": "powersgd"}
    ((keys, reason),) = impossible_combinations(config(compute=compute))
    assert keys == "compute.gradient_compression compute.strategy"
    assert reason == "compressing gradients needs the strategy ddp, not fsdp"


def test_matrices_are_cut_into_equal_parts_only() -> None:
    size = "2 does not divide {}, {}"
    cases: dict[tuple[str, str], dict[str, Any]] = {
        ("ddp", "compute.strategy"): {},
        ("fsdp", f"{SHAPE}num_key_value_heads"): {"num_key_value_heads": 1},
        ("fsdp", f"{SHAPE}vocab_size"): {"vocab_size": 257},
        ("hsdp", f"{SHAPE}intermediate_size"): {"intermediate_size": 351},
    }
    for (strategy, key), architecture in cases.items():
        reason = size.format(key, *architecture.values()) if architecture else ""
        compute = {"strategy": strategy, "tensor_parallel": 2}
        given = config(model={"name": "x", "architecture": architecture}, compute=compute)
        expected = reason or "2 needs the strategy fsdp or hsdp, not ddp"
        assert list(impossible_combinations(given)) == [(f"compute.tensor_parallel {key}", expected)]


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        ({"strategy": "single"}, MeshShape()),
        ({"strategy": "ddp"}, MeshShape(replicas=8)),
        ({"strategy": "fsdp"}, MeshShape(shards=8)),
        ({"strategy": "fsdp", "tensor_parallel": 8}, MeshShape(tensor=8)),
        ({"strategy": "hsdp", "replicas": 2, "tensor_parallel": 2}, MeshShape(2, 2, 2)),
    ],
)
def test_every_process_has_a_place(compute: dict[str, Any], shape: MeshShape) -> None:
    assert mesh_shape(ComputeConfig(**compute), 8) == shape


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        ({"tensor_parallel": 3}, "compute.tensor_parallel: 3 does not divide the 8 processes of this run"),
        ({"replicas": 3}, "compute.replicas: 3 does not divide the 8 processes of this run"),
        ({"replicas": 8, "tensor_parallel": 2}, "compute.replicas: 8 does not divide the 4 groups"),
    ],
)
def test_what_cannot_be_shared_out_is_named(compute: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mesh_shape(ComputeConfig(strategy="hsdp", **compute), 8)


SMOKE = Path(__file__).resolve().parents[3] / "configs" / "smoke.yaml"
HSDP = ["compute.strategy=hsdp", "compute.replicas=2"]


def test_what_every_process_would_refuse_is_refused_before_them() -> None:
    for overrides, processes in (([], 1), (HSDP, 4)):
        require_processes(load_config(SMOKE, overrides).config, processes)
    for overrides, processes, problem in (
        ([], 2, "compute.strategy is single, which is for one process, not for 2"),
        (HSDP, 3, r"compute\.replicas: 2 does not divide the 3 processes"),
    ):
        with pytest.raises(ConfigError, match=problem):
            require_processes(load_config(SMOKE, overrides).config, processes)


def build_model(shape: ArchitectureConfig) -> Llama:
    with torch.device("meta"):
        return Llama(shape)


@pytest.mark.parametrize("tied", [True, False])
def test_every_part_is_that_of_the_model(tied: bool) -> None:
    shape = ArchitectureConfig(num_layers=3, hidden_size=64, num_attention_heads=8, tie_word_embeddings=tied)
    model, count = build_model(shape), count_parameters(shape)
    block = next(module for module in model.modules() if isinstance(module, Block))
    assert count.total == parameter_count(model)
    assert count.embedding == model.model.embed_tokens.weight.numel()
    assert count.head == model.lm_head.weight.numel()
    assert count.attention == parameter_count(block.self_attn)
    assert count.feed_forward == parameter_count(block.mlp)
    assert count.norms == sum(p.numel() for p in model.parameters() if p.ndim == 1)


def test_a_tied_output_is_counted_once_and_multiplied_all_the_same() -> None:
    tied = count_parameters(ArchitectureConfig(tie_word_embeddings=True))
    untied = count_parameters(ArchitectureConfig())
    assert untied.total - tied.total == untied.output == tied.embedding
    assert untied.multiplied == tied.multiplied
