from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.directory import RunDirectory
from trainyard.run.files import sha256_of_file
from trainyard.run.identity import read_run
from trainyard.run.records import read_rows
from trainyard.training.session import Request, describe
from trainyard.training.starting_weights import open_weights
from trainyard.training.tokens import prepare_data

Build = Callable[..., Config]
Run = Callable[..., dict[str, Any]]
TIED: dict[str, Any] = {"architecture": {"tie_word_embeddings": True}}


@pytest.mark.parametrize("name", ["absent.gguf", "absent", "absent.safetensors"])
def test_a_missing_file_stops_the_run_before_it_starts(
    tiny_config: Build, run_training: Run, tmp_path: Path, name: str
) -> None:
    config = tiny_config(model={"path": str(tmp_path / name)})
    with pytest.raises(
        ConfigError, match=r"model\.path: .*absent.* does not exist.*--set model\.path=null"
    ) as no:
        run_training(config)
    assert no.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_file_of_no_known_form_stops_the_run(tiny_config: Build, run_training: Run, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"weights")
    (tmp_path / "folder").mkdir()
    for name in ("model.pt", "folder"):
        with pytest.raises(ConfigError, match=r"no known form.*--set model\.path=null"):
            run_training(tiny_config(model={"path": str(tmp_path / name)}))


def test_a_run_starts_from_the_weights_of_a_checkpoint(
    tiny_config: Build, run_training: Run, tmp_path: Path
) -> None:
    first = run_training(tiny_config(), "first")
    path = tmp_path / "first/checkpoints/step-00000012"
    second = run_training(tiny_config(model={"path": str(path)}, training={"max_steps": 1}), "second")
    assert second["first_loss"] < first["first_loss"] - 0.5
    assert second["first_loss"] == pytest.approx(first["final_loss"], abs=0.3)
    run = read_run(tmp_path / "second/run.json")
    assert run["model"] == {"path": str(path), "sha256": sha256_of_file(path / "manifest.json")}
    assert [row["step"] for row in read_rows(tmp_path / "second/metrics.jsonl")] == [1]


def test_a_resumed_run_keeps_the_record_of_its_weights_and_does_not_read_them_again(
    tiny_config: Build, run_training: Run, tmp_path: Path
) -> None:
    run_training(tiny_config(), "first")
    path = tmp_path / "first/checkpoints/step-00000012"
    config = tiny_config(model={"path": str(path)})
    run_training(config, "second")
    record = read_run(tmp_path / "second/run.json")["model"]
    path.rename(path.with_name("gone"))
    run_training(tiny_config(model={"path": str(path)}, training={"max_steps": 14}), "second")
    assert read_run(tmp_path / "second/run.json")["model"] == record


def test_what_would_be_trained_is_said_only_when_the_weights_fit(tiny_config: Build, tmp_path: Path) -> None:
    def said(**model: Any) -> dict[str, Any]:
        config = tiny_config(model=model)
        data = prepare_data(config.data, config.model)
        return describe(Request(config, RunDirectory(tmp_path / "run"), data, "auto", "id", {}))

    assert said()["starts_from"] is None
    with pytest.raises(ConfigError, match="does not exist"):
        said(path=str(tmp_path / "absent.gguf"))


def test_random_weights_leave_no_record(tiny_config: Build, run_training: Run, tmp_path: Path) -> None:
    run_training(tiny_config(training={"max_steps": 1}))
    assert "model" not in read_run(tmp_path / "run/run.json")


def test_a_checkpoint_with_a_flipped_byte_is_not_started_from(
    tiny_config: Build, run_training: Run, tmp_path: Path
) -> None:
    run_training(tiny_config(), "first")
    path = tmp_path / "first/checkpoints/step-00000012"
    data = next(path.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.path: .*does not verify \(.*SHA-256"):
        open_weights(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="the save was never completed"):
        open_weights(path)


def test_tied_weights_are_read_from_a_checkpoint_that_holds_them_twice(
    tiny_config: Build, run_training: Run, tmp_path: Path
) -> None:
    run_training(tiny_config(model=TIED), "first")
    path = tmp_path / "first/checkpoints/step-00000012"
    config = tiny_config(model=TIED | {"path": str(path)}, training={"max_steps": 1})
    assert run_training(config, "second")["first_loss"] < 4
