"""trainyard export on a trained run, and the commands of examples/evaluation on checkpoint and export."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from tests import warm_start
from tests.scripts.conftest import ROOT

from trainyard.command.handler import exit_code_of
from trainyard.commands import export

PERPLEXITY, TASKS = (ROOT / "examples/evaluation" / name for name in ("perplexity.py", "lm_eval_tasks.py"))
TEXT = "the cat sat on the mat, and the dog ran.\n"
SETTINGS = {
    "model.device": "cpu",
    "model.architecture.hidden_size": 16,
    "model.architecture.intermediate_size": 32,
    "model.architecture.num_layers": 1,
    "compute.threads": 1,
    "training.max_steps": 2,
    "training.batch_size": 2,
    "data.validation_fraction": 0.0,
    "data.sequence_length": 32,
    "monitoring.tensorboard": "false",
}

pytestmark = pytest.mark.slow


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return warm_start.run([sys.executable, "-m", "trainyard", *map(str, words)], cwd=ROOT, timeout=600)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one task of lm-eval, whose data are a file."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{"question": f"Is {number} even?", "answer": number % 2} for number in range(4)]
    (folder / "even.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "even",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "even.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": [" yes", " no"],
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / "even.yaml").write_text(yaml.safe_dump(task))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tasks: Path) -> Path:
    """A run of two steps, whose evaluation is the task."""
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "texts").mkdir()
    (folder / "texts/a.txt").write_text(TEXT * 40)
    command = [sys.executable, TASKS, "--model", "{checkpoint}", "--tasks", "even", "--include_path", tasks]
    values = SETTINGS | {
        "data.train_path": folder / "texts",
        "data.prepared_directory": folder / "prepared",
        "evaluation.command": json.dumps([str(word) for word in command]),
        "evaluation.thresholds": json.dumps({"even.acc": ">= 0", "even.acc_stderr": ">= 5"}),
    }
    sets = [text for key, value in values.items() for text in ("--set", f"{key}={value}")]
    done = run("train", "--config", "configs/smoke.yaml", "--run-dir", folder / "run", *sets)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_an_export_says_what_it_wrote_and_has_the_perplexity_of_its_checkpoint(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--run-dir", str(trained), "--to", str(tmp_path / "model")]
    assert exit_code_of(lambda: export.main([*words, "--dry-run", "--json"])) == 0
    assert not (tmp_path / "model").exists()
    planned = json.loads(capsys.readouterr().out)
    done = run("export", *words, "--json")
    assert done.returncode == 0 and "step 2: " in done.stderr, done.stderr
    facts = json.loads(done.stdout)
    files = {file["path"]: file["size"] for file in facts.pop("files")}
    assert facts == planned
    assert (facts["step"], facts["dtype"], facts["weights"]) == (2, "float32", ["model.safetensors"])
    assert files == {path.name: path.stat().st_size for path in (tmp_path / "model").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files.keys()
    assert exit_code_of(lambda: export.main(words)) == 2
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "held_out.txt").write_text(TEXT * 3)
    found = []
    for model in (trained / "checkpoints/step-00000002", tmp_path / "model"):
        line = [PERPLEXITY, "--model", model, "--text", tmp_path / "held_out.txt", "--length", 32]
        done = warm_start.run([sys.executable, *map(str, line)], cwd=ROOT, timeout=600)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == pytest.approx(found[1])
    assert 0 < found[0]["bits_per_byte"] < 9  # two steps from guessing, which is 8
    assert found[0]["tokens"] == len(TEXT) * 3 - 1


@pytest.mark.skipif(find_spec("lm_eval") is None, reason='pip install "lm-eval[hf]" installs what is tested')
def test_lm_eval_evaluates_a_checkpoint_on_tasks_of_a_folder(
    trained: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    done = run("evaluate", "--run-dir", trained, "--json")
    assert done.returncode == 1, done.stderr  # one threshold cannot be met
    record = json.loads(done.stdout)
    assert record["step"] == 2
    assert record["figures"]["even.acc"] in (0, 0.25, 0.5, 0.75, 1)
    assert "even.acc_stderr" in done.stderr
    assert "(needs >= 5)" in done.stderr
    assert "even.acc 0" not in done.stderr.rpartition("not good enough")[2]
