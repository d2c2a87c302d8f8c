"""trainyard train before there is a run; and export and the commands of examples/evaluation after it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import warm_start
from tests.scripts.conftest import ROOT
from tokenizers import Tokenizer, models, pre_tokenizers

from trainyard.command.handler import exit_code_of
from trainyard.commands import export

MEGABYTES = 96
"""Size of the text; the tokenizer needs half a minute for it."""


@pytest.fixture
def preparing(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A training process that has started to tokenize and is far from done."""
    tokenizer = Tokenizer(models.WordLevel({"<eos>": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "train.txt").write_text("some words of text\n" * (MEGABYTES * 1_000_000 // 19))
    overrides = {"model.tokenizer": tmp_path / "tokenizer.json", "model.device": "cpu"}
    overrides |= {"data.train_path": tmp_path / "train.txt", "data.prepared_directory": tmp_path / "prepared"}
    line = [sys.executable, str(ROOT / "scripts" / "train.py"), "--run-dir", str(tmp_path / "run")]
    line += ["--config", str(ROOT / "configs" / "smoke.yaml")]
    line += [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    environment = {**os.environ, "CI": "true", "TOKENIZERS_PARALLELISM": "false"}
    with warm_start.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if list((tmp_path / "prepared").glob(".*.tmp/train.bin")):
                break
            time.sleep(0.01)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_preparation_at_once_and_leaves_nothing(
    preparing: "subprocess.Popen[str]", tmp_path: Path, number: signal.Signals
) -> None:
    start = time.monotonic()
    preparing.send_signal(number)
    _, errors = preparing.communicate(timeout=240)
    assert preparing.returncode == 130, errors
    assert time.monotonic() - start < 120
    assert errors.endswith("Interrupted.\n")
    assert "Traceback" not in errors
    assert list((tmp_path / "prepared").iterdir()) == []
    assert not (tmp_path / "run").exists()


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below `folder` with its size and the time of its last change."""
    facts = {path: path.lstat() for path in folder.rglob("*")}
    return {str(path.relative_to(folder)): (f.st_size, f.st_mtime_ns) for path, f in facts.items()}


def test_weights_that_cannot_be_used_are_refused_before_the_data_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("text\n" * 2000)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    prepared = tmp_path / "prepared"
    settings = {"model.path": tmp_path / "model.gguf", "data.train_path": tmp_path / "train.txt"}
    settings["data.prepared_directory"] = prepared
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "scripts/train.py", "--config", "configs/smoke.yaml", *words]
    done = warm_start.run(command, cwd=ROOT, timeout=240)
    assert done.returncode == 2
    assert "model.gguf is not a GGUF file" in done.stderr
    assert not prepared.exists()


def test_a_dry_run_changes_nothing_and_says_what_comes_first(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").write_text("some words of text\n" * 2000)
    paths = {"data.train_path": tmp_path / "data", "data.prepared_directory": tmp_path / "prepared"}
    sets = [word for key, value in paths.items() for word in ("--set", f"{key}={value}")]

    def run(name: str, *arguments: str) -> dict[str, Any]:
        line = [sys.executable, *("-m", "trainyard", name), "--config", str(ROOT / "configs" / "smoke.yaml")]
        line += ["--set", "model.device=cpu", *sets, *arguments]
        done = warm_start.run(line, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        assert value.pop("schema_version") == 1
        return value

    before = tree(tmp_path)
    first = run("train", "--dry-run")
    assert tree(tmp_path) == before
    assert first == {"prepares": run("prepare", "--dry-run", "--json")}
    assert first["prepares"]["train_files"] == 1
    run("prepare", "--json")
    before = tree(tmp_path)
    then = run("train", "--dry-run")
    assert tree(tmp_path) == before
    assert then["plan"]["steps"] > 0
    assert then["resumes"] is None
    two = run("train", "--dry-run", "--nproc-per-node", "2", "--set", "compute.strategy=ddp")
    assert two["plan"]["samples_per_step"] == 2 * then["plan"]["samples_per_step"]


def test_code_of_another_checkout_is_not_trained_under_this_ones_commit(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    with (tmp_path / "src" / "trainyard" / "training" / "loop.py").open("a") as file:
        file.write("# changed\n")
    line = [sys.executable, str(ROOT / "scripts" / "train.py"), "--run-dir", str(tmp_path / "run")]
    line += ["--config", str(ROOT / "configs" / "smoke.yaml")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert f"This script belongs to {ROOT}, but Python imports other code" in done.stderr
    assert not (tmp_path / "run").exists()


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


def trainyard(*words: object) -> subprocess.CompletedProcess[str]:
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
    done = trainyard("train", "--config", "configs/smoke.yaml", "--run-dir", folder / "run", *sets)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.slow
def test_an_export_says_what_it_wrote_and_has_the_perplexity_of_its_checkpoint(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--run-dir", str(trained), "--to", str(tmp_path / "model")]
    assert exit_code_of(lambda: export.main([*words, "--dry-run", "--json"])) == 0
    assert not (tmp_path / "model").exists()
    planned = json.loads(capsys.readouterr().out)
    done = trainyard("export", *words, "--json")
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


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lm_eval") is None, reason='pip install "lm-eval[hf]" installs what is tested')
def test_lm_eval_evaluates_a_checkpoint_on_tasks_of_a_folder(
    trained: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    done = trainyard("evaluate", "--run-dir", trained, "--json")
    assert done.returncode == 1, done.stderr  # one threshold cannot be met
    record = json.loads(done.stdout)
    assert record["step"] == 2
    assert record["figures"]["even.acc"] in (0, 0.25, 0.5, 0.75, 1)
    assert "even.acc_stderr" in done.stderr
    assert "(needs >= 5)" in done.stderr
    assert "even.acc 0" not in done.stderr.rpartition("not good enough")[2]
