import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.unit.training.lab import Lab
from tokenizers import Tokenizer, models, pre_tokenizers

from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.directory import RunDirectory
from trainyard.training.checkpoint.training_state import digest_tensors
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.export import byte_tokenizer, plan_export, write_export
from trainyard.training.weights.starting_weights import CheckpointWeights


@pytest.fixture
def finished_run(lab: Lab) -> RunDirectory:
    """A run with the checkpoints of steps 8 and 12."""
    lab.once("run")
    return lab.directory()


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as handle:
            found |= {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - not a dict
    return found


def test_the_exported_numbers_are_of_the_last_checkpoint(finished_run: RunDirectory, tmp_path: Path) -> None:
    outcome = json.loads(finished_run.run_file.read_text())["outcome"]
    export = plan_export(finished_run)
    write_export(export, tmp_path / "out")
    assert digest_tensors(tensors_in(tmp_path / "out")) == outcome["state_sha256"]["model"]
    plan = json.loads(finished_run.run_file.read_text())["plan"]
    assert export.to_json()["parameters"] == plan["parameters"]
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["trainyard"] == {
        "run_id": "id-of-run",
        "step": 12,
        "manifest_sha256": CheckpointWeights(finished_run.checkpoint(12)).digest(),
        "vocabulary": "bytes",
    }
    assert config["eos_token_id"] == 0


def test_small_shards_hold_the_same_tensors_and_an_index(finished_run: RunDirectory, tmp_path: Path) -> None:
    write_export(plan_export(finished_run), tmp_path / "one")
    export = plan_export(finished_run, shard_bytes=20_000)
    write_export(export, tmp_path / "many")
    index = json.loads((tmp_path / "many/model.safetensors.index.json").read_text())
    assert len(export.shards) > 2
    assert index["metadata"]["total_size"] == export.to_json()["bytes"]
    assert set(index["weight_map"].values()) == set(export.shards)
    files = {path.name for path in (tmp_path / "many").glob("*.safetensors")}
    assert set(index["weight_map"].values()) == files
    assert digest_tensors(tensors_in(tmp_path / "many")) == digest_tensors(tensors_in(tmp_path / "one"))
    for names in export.shards.values():
        assert sum(export.sizes[name] for name in names) <= 20_000 or len(names) == 1


def test_newest_passes_over_what_does_not_verify_and_a_named_step_does_not(
    finished_run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    (finished_run.checkpoint(12) / "trainer_state.json").write_bytes(b"{}")
    assert plan_export(finished_run).step == 8
    assert "checkpoint of step 12 passed over" in caplog.text
    with pytest.raises(CheckpointError, match=r"step-00000012/trainer_state\.json"):
        plan_export(finished_run, 12)
    (finished_run.checkpoint(8) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="holds no checkpoint that verifies"):
        plan_export(finished_run)


def test_a_missing_run_or_step_and_an_existing_target_are_named(
    finished_run: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no checkpoint of step 7; there are: 8, 12"):
        plan_export(finished_run, 7)
    with pytest.raises(ConfigError, match="is not a run directory"):
        plan_export(RunDirectory(tmp_path / "absent"))
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        write_export(plan_export(finished_run), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failure_half_way_leaves_nothing(
    finished_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own retention may remove the checkpoint while it is read."""
    export = plan_export(finished_run)
    read, names = CheckpointWeights.read, iter(range(5))

    def read_removed(weights: CheckpointWeights, name: str) -> torch.Tensor:
        if next(names) == 4:
            finished_run.checkpoint(12).rename(tmp_path / "gone")
        return read(weights, name)

    monkeypatch.setattr(CheckpointWeights, "read", read_removed)
    with pytest.raises(CheckpointError, match="could not be read"):
        write_export(export, tmp_path / "deep/out")
    assert list((tmp_path / "deep").iterdir()) == []


def test_leftovers_of_a_killed_export_are_removed(finished_run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp/half.safetensors").write_bytes(b"half")
    files = write_export(plan_export(finished_run), tmp_path / "out")
    assert {file.path for file in files} == {path.name for path in (tmp_path / "out").iterdir()}
    assert not (tmp_path / ".out.tmp").exists()
    assert "half.safetensors" not in {file.path for file in files}


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_the_numbers_have_the_requested_type(
    finished_run: RunDirectory, tmp_path: Path, dtype: str, width: int
) -> None:
    export = plan_export(finished_run, dtype=dtype)
    write_export(export, tmp_path / "out")
    assert {tensor.dtype for tensor in tensors_in(tmp_path / "out").values()} == {getattr(torch, dtype)}
    assert export.to_json()["bytes"] == export.to_json()["parameters"] * width
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == dtype


def test_the_byte_tokenizer_maps_every_byte_to_its_number() -> None:
    tokenizer = Tokenizer.from_str(byte_tokenizer())
    for text in ("def f(x):\n\treturn 'é'  # 🙂\n", "", "Ā\x00\x7f\xad "):
        assert tokenizer.encode(text).ids == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.get_vocab_size() == 256


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A tokenizer of words, with the companions that Hugging Face writes."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words = ["<unk>", "</s>", "the", "cat", "sat", "on", "mat", "and", "dog", "ran"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder / "tokenizer.json"


def test_the_tokenizer_of_the_run_goes_along(lab: Lab, tokenizer_file: Path) -> None:
    config = lab.config(model={"tokenizer": str(tokenizer_file)})
    lab.run(config)
    directory = lab.directory()
    write_export(plan_export(directory), lab.folder / "out")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (lab.folder / "out" / name).read_bytes() == tokenizer_file.with_name(name).read_bytes()
    exported = json.loads((lab.folder / "out/config.json").read_text())
    assert exported["eos_token_id"] == load_vocabulary(config.model).eos == 1
    assert exported["trainyard"]["vocabulary"] == "tokenizer"
    tokenizer_file.unlink()
    with pytest.raises(ConfigError, match=r"model\.tokenizer: .* does not exist"):
        plan_export(directory)
