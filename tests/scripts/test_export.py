"""trainyard export on a run of trainyard train: once as people run it, else in this process."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import warm_start

from trainyard.command import handler

ROOT = Path(__file__).resolve().parents[2]
Export = Callable[..., tuple[int, str, str]]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "trainyard", *map(str, arguments)]
    return warm_start.run(line, cwd=ROOT, timeout=300)


@pytest.fixture
def export(capsys: pytest.CaptureFixture[str]) -> Export:
    """Run the script here, which saves importing torch; return its status, stdout and stderr."""
    script = importlib.import_module("trainyard.commands.export")

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = handler.exit_code_of(lambda: script.main([str(argument) for argument in arguments]))
        except SystemExit as usage:
            code = int(str(usage.code))
        return (code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on a few sentences."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "texts").mkdir()
    (folder / "texts/a.txt").write_text("the cat sat on the mat, and the dog ran.\n" * 40)
    values = {
        "model.device": "cpu",
        "model.architecture.hidden_size": 16,
        "model.architecture.intermediate_size": 32,
        "model.architecture.num_layers": 1,
        "compute.threads": 1,
        "training.max_steps": 2,
        "training.batch_size": 2,
        "data.train_path": folder / "texts",
        "data.validation_fraction": 0.0,
        "data.prepared_directory": folder / "prepared",
        "data.sequence_length": 32,
        "monitoring.tensorboard": "false",
    }
    sets = [text for key, value in values.items() for text in ("--set", f"{key}={value}")]
    done = run("train", "--config", "configs/smoke.yaml", "--run-dir", folder / "run", *sets)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_an_export_says_what_it_wrote(trained: Path, tmp_path: Path, export: Export) -> None:
    target = tmp_path / "out"
    code, planned, said = export("--run-dir", trained, "--to", target, "--dry-run", "--json")
    assert (code, target.exists()) == (0, False), said
    done = run("export", "--run-dir", trained, "--to", target, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    files = facts.pop("files")
    assert facts == json.loads(planned)
    assert (facts["step"], facts["dtype"], facts["weights"]) == (2, "float32", ["model.safetensors"])
    assert {file["path"]: file["size"] for file in files} == {
        path.name: path.stat().st_size for path in target.iterdir()
    }
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {file["path"] for file in files}
    assert "step 2: " in done.stderr
    code, _, said = export("--run-dir", trained, "--to", target)
    assert (code, "exists already" in said) == (2, True)
