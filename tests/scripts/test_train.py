"""trainyard train before there is a run: signals, refusals, and a dry run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.scripts.conftest import ROOT
from tokenizers import Tokenizer, models, pre_tokenizers

MEGABYTES = 96
"""Size of the text; the tokenizer needs half a minute for it."""


@pytest.fixture
def preparing(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A training process that has started to tokenize and is far from done."""
    tokenizer = Tokenizer(models.WordLevel({"<eos>": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "train.txt").write_text("some words of text\n" * (MEGABYTES * 1_000_000 // 19))
    overrides = {
        "model.tokenizer": tmp_path / "tokenizer.json",
        "model.device": "cpu",
        "data.train_path": tmp_path / "train.txt",
        "data.prepared_directory": tmp_path / "prepared",
    }
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
    settings = {
        "model.path": tmp_path / "model.gguf",
        "data.train_path": tmp_path / "train.txt",
        "data.prepared_directory": prepared,
    }
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
        line = [
            sys.executable,
            *("-m", "trainyard", name),
            "--config",
            str(ROOT / "configs" / "smoke.yaml"),
        ]
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
