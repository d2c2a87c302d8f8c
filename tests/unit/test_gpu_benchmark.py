"""`benchmarks/gpu.py` where there is no GPU, and the table that it writes."""

import importlib.util
import sys
from itertools import pairwise
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


@pytest.mark.parametrize(("fails", "code"), [(False, 0), (True, 1)])
def test_a_case_that_fails_is_a_row_and_the_others_are_measured(
    gpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails: bool,
    code: int,
) -> None:
    def first(bench: object) -> object:
        if fails:
            raise gpu.CaseError("exit code 3: it broke")
        return [gpu.Row("first", "", "1", "1", True)]

    monkeypatch.setattr(gpu, "CASES", {"first": first, "second": lambda _: [gpu.Row("second", "", "2")]})
    monkeypatch.setattr(gpu, "machine_here", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.main([]) == code
    said = capsys.readouterr().out
    assert ("failed: exit code 3: it broke" in said) == fails
    assert "| second |" in said


def test_the_trainer_takes_the_settings_of_a_case(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from trainyard.config.load import load_config

    commands: list[list[str]] = []

    def written(_bench: object, command: list[str]) -> str:
        commands.append(command)
        settings = [word for flag, word in pairwise(command) if flag == "--set"]
        config = load_config(Path(command[command.index("--config") + 1]), settings).config
        assert config.model.architecture.vocab_size == 128_256
        assert config.compute.cpu_offload
        folder = Path(command[command.index("--run-dir") + 1])
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"tokens_per_second": 2.0}\n' * (gpu.WARM_UP + 1))
        return ""

    monkeypatch.setattr(gpu, "finished", written)
    settings = ("compute.strategy=fsdp", "compute.cpu_offload=true")
    assert gpu.speed(gpu.train(gpu.Bench(tmp_path, 1, 1.0), "offload", *settings)) == 2.0
    assert len(commands) == 1
