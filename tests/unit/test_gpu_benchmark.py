"""`benchmarks/gpu.py` where there is no GPU, and the table that it writes."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_and_changes_nothing(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = gpu.DOCUMENT.read_text()
    assert gpu.main(["--write"]) == 2
    assert "no GPU here" in capsys.readouterr().err
    assert gpu.DOCUMENT.read_text() == before


def test_the_table_takes_its_place_in_the_document_and_can_be_written_again(gpu: ModuleType) -> None:
    rows = [
        gpu.Row("speed", "a peer", "1.2 | fast", "1.1", True),
        gpu.Row("memory", "", "failed: no", met=False),
    ]
    table = gpu.table_of(rows, "1 NVIDIA H200")
    assert "| speed | a peer | 1.2 / fast | 1.1 | met |" in table
    assert "| memory |  | failed: no |  | not met |" in table
    document = gpu.DOCUMENT.read_text()
    once = gpu.with_table(document, table)
    assert table in once
    assert once.startswith(document.partition(gpu.BEGIN)[0])
    assert once.endswith(document.partition(gpu.END)[2])
    assert gpu.with_table(once, table) == once
    with pytest.raises(SystemExit, match="marks"):
        gpu.with_table("nothing", table)
