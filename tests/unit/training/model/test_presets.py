from pathlib import Path

import pytest
import torch

from trainyard.config.load import load_config
from trainyard.config.parameters import count_parameters
from trainyard.training.model.model import Llama, parameter_count
from trainyard.training.weights.weight_fit import parameters_of

PRESETS = Path(__file__).resolve().parents[4] / "configs" / "models"
PUBLISHED = {
    "tinyllama-1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
}


def test_every_preset_is_held_to_a_published_count() -> None:
    assert {path.stem for path in PRESETS.glob("*.yaml")} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_published_number_of_parameters_and_the_expected_tensors(name: str) -> None:
    architecture = load_config(PRESETS / f"{name}.yaml", ["training.max_steps=1"]).config.model.architecture
    with torch.device("meta"):
        model = Llama(architecture)
    assert parameter_count(model) == count_parameters(architecture).total == PUBLISHED[name]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameters_of(architecture) == shapes
