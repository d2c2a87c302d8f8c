"""The presets: their published sizes, and transformers' own Llama judges shrunken copies of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.unit.training.lab import Lab
from tests.unit.training.weights.model_files import write_gguf
from torch import Tensor

from trainyard.config.load import load_config
from trainyard.config.parameters import count_parameters
from trainyard.config.schema import ArchitectureConfig, ModelConfig
from trainyard.training.export import plan_export, write_export
from trainyard.training.model.model import Llama, build_model, parameter_count, rotary_frequencies
from trainyard.training.weights.hugging_face_config import hugging_face_config
from trainyard.training.weights.starting_weights import load_weights, open_starting_weights
from trainyard.training.weights.weight_fit import parameters_of

PRESETS = Path(__file__).resolve().parents[4] / "configs" / "models"
FAMILIES = sorted(path.stem for path in PRESETS.glob("*.yaml"))
PUBLISHED = {
    "tinyllama-1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
}
HEAD = 16
SCALED = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
TYPES = gguf.GGMLQuantizationType
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def transformers() -> Iterator[Any]:
    """The library without access to the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("transformers", reason="transformers is in requirements-development.txt")


def published_shape(family: str) -> ArchitectureConfig:
    return load_config(PRESETS / f"{family}.yaml", ["training.max_steps=1"]).config.model.architecture


def test_every_preset_is_held_to_a_published_count() -> None:
    assert set(FAMILIES) == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_published_number_of_parameters_and_the_expected_tensors(name: str) -> None:
    architecture = published_shape(name)
    with torch.device("meta"):
        model = Llama(architecture)
    assert parameter_count(model) == count_parameters(architecture).total == PUBLISHED[name]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameters_of(architecture) == shapes


def small_shape(family: str) -> ArchitectureConfig:
    """The family's ratios and switches in a model of some 100,000 numbers.

    The original length shrinks too: else no rotation within a short test is slow enough to be stretched.
    """
    full = published_shape(family)
    heads = full.num_attention_heads // 4
    scaling = full.rope_scaling.model_copy(update={"original_max_position_embeddings": 32})
    return full.model_copy(
        update={
            "vocab_size": 320,
            "hidden_size": heads * HEAD,
            "intermediate_size": full.intermediate_size * heads * HEAD // full.hidden_size // 32 * 32,
            "num_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": full.num_key_value_heads // 4,
            "max_position_embeddings": 256,
            "rope_scaling": scaling,
        }
    )


def reference(transformers: Any, architecture: ArchitectureConfig) -> Any:
    """transformers' model with random weights, norms included, large enough that an error shows."""
    config = transformers.LlamaConfig(**hugging_face_config(architecture))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    return model


def tokens() -> Tensor:
    return torch.randint(0, 320, (2, 200), generator=torch.Generator().manual_seed(1))


def assert_same_logits(model: Llama, judge: Any) -> None:
    with torch.no_grad():
        ours, theirs = model(tokens()), judge(tokens()).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def load(path: Path, architecture: ArchitectureConfig) -> Llama:
    source = open_starting_weights(ModelConfig(name="test", path=str(path), architecture=architecture))
    assert source is not None
    model = build_model(architecture, seed=3)
    load_weights(model, source)
    return model


def interleave(weights: np.ndarray, heads: int) -> np.ndarray:
    """Permute queries and keys like llama.cpp's convert_hf_to_gguf.py (LlamaModel.permute)."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def convert_to_gguf(path: Path, judge: Any, a: ArchitectureConfig, kind: TYPES) -> None:
    """As llama.cpp's converter writes a Llama: norms stay float32, rotary scaling becomes a tensor."""
    heads = {"q_proj": a.num_attention_heads, "k_proj": a.num_key_value_heads}
    values = {name: parameter.detach().numpy() for name, parameter in judge.named_parameters()}
    for name, value in values.items():
        if (part := name.split(".")[-2]) in heads:
            values[name] = interleave(value, heads[part])
    plain = a.model_copy(update={"rope_scaling": type(a.rope_scaling)()})
    divisors = (rotary_frequencies(plain) / rotary_frequencies(a)).numpy()
    extra = {"rope_freqs.weight": divisors} if a.rope_scaling.rope_type != "default" else {}
    write_gguf(path, a, values, kind=kind, extra=extra)


def round_through(kind: TYPES, judge: Any) -> None:
    """Round the judge's matrices as the type of the file does."""
    with torch.no_grad():
        for parameter in judge.parameters():
            if parameter.ndim > 1:
                stored = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind).copy()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shard"), [*((family, "100KB") for family in FAMILIES), (FAMILIES[-1], "50GB")]
)
def test_logits_from_safetensors_are_those_of_transformers(
    transformers: Any, family: str, shard: str, tmp_path: Path
) -> None:
    architecture = small_shape(family)
    judge = reference(transformers, architecture)
    judge.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "100KB")
    assert_same_logits(load(tmp_path, architecture), judge)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, TYPES.Q8_0) for family in FAMILIES),
        *((FAMILIES[-1], kind) for kind in (TYPES.F32, TYPES.F16, TYPES.BF16, TYPES.Q4_0)),
    ],
)
def test_logits_from_gguf_are_those_of_transformers(
    transformers: Any, family: str, kind: TYPES, tmp_path: Path
) -> None:
    architecture = small_shape(family)
    judge = reference(transformers, architecture)
    convert_to_gguf(tmp_path / "m.gguf", judge, architecture, kind)
    round_through(kind, judge)
    assert_same_logits(load(tmp_path / "m.gguf", architecture), judge)


@every_family
def test_configs_of_transformers_4_and_5_are_equal(transformers: Any, family: str, tmp_path: Path) -> None:
    from trainyard.training.weights.hugging_face_config import declared_architecture

    architecture = published_shape(family)
    old = hugging_face_config(architecture)
    transformers.LlamaConfig(**old).save_pretrained(tmp_path)
    new = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in new
    assert "rope_parameters" not in old
    assert declared_architecture(new) == declared_architecture(old)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "rope_scaling": SCALED}])
def test_an_exported_run_is_loaded_by_transformers_with_the_same_logits(
    lab: Lab, transformers: Any, changes: dict[str, Any]
) -> None:
    config = lab.config(model={"architecture": changes}, training={"max_steps": 2})
    lab.run(config)
    write_export(plan_export(lab.directory(), shard_bytes=20_000), lab.folder / "out")
    judge = transformers.AutoModelForCausalLM.from_pretrained(lab.folder / "out")
    ours = load(lab.folder / "run/checkpoints/step-00000002", config.model.architecture)
    text = "the cat sat on mat 3, é"
    tokenizer = transformers.AutoTokenizer.from_pretrained(lab.folder / "out")
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert ids.tolist() == [list(text.encode())]
    assert tokenizer.decode(ids[0]) == text
    with torch.no_grad():
        theirs = judge(ids).logits
        torch.testing.assert_close(ours(ids), theirs, atol=1e-5, rtol=1e-4)
    assert judge.dtype == torch.float32
    assert (judge.config.eos_token_id, judge.config.bos_token_id) == (0, None)
    assert judge.config.trainyard["step"] == 2
    assert judge.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape[1] <= ids.shape[1] + 3
