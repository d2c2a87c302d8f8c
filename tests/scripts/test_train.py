"""scripts/train.py where the signals of a running training do not reach: before there is a run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
MEGABYTES = 96
"""Of text; the tokenizer needs half a minute for it."""


@pytest.fixture
def preparing(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A training process that has begun to tokenize and will not be done with it soon."""
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
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        deadline = time.monotonic() + 60
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
    _, errors = preparing.communicate(timeout=60)
    assert preparing.returncode == 130, errors
    assert time.monotonic() - start < 15
    assert errors.endswith("Interrupted.\n")
    assert "Traceback" not in errors
    assert list((tmp_path / "prepared").iterdir()) == []
    assert not (tmp_path / "run").exists()
