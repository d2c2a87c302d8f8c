"""What a row of metrics says of the device."""

import pytest
import torch

from trainyard.training.hardware import memory_facts


def test_the_memory_of_a_gpu_is_what_all_took_and_the_peak_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 100))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 30)
    assert memory_facts(torch.device("cuda", 0)) == {
        "gpu_memory_bytes": 40,
        "gpu_memory_total_bytes": 100,
        "gpu_memory_peak_bytes": 30,
    }
    assert memory_facts(torch.device("cpu")) == {}
