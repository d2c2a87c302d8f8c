"""The facts that torch reports about itself."""

from importlib import metadata

import torch

from trainyard.training.runtime.hardware import torch_facts


def test_the_facts_are_those_of_the_installed_torch() -> None:
    facts = torch_facts()
    assert facts.version == metadata.version("torch").partition("+")[0]
    assert facts.cuda == torch.version.cuda
    assert len(facts.gpu_memory_bytes) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
