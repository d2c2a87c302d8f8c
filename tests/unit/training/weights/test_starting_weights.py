from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.unit.training.lab import Lab
from tests.unit.training.model.worlds import fake_world
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory
from trainyard.training.data.tokenize_corpus import prepare_data
from trainyard.training.loop import rehearse
from trainyard.training.model.model import build_model
from trainyard.training.run.run_context import Request
from trainyard.training.weights.starting_weights import load_weights, open_weights, require_weights

Build = Callable[..., Config]
TIED: dict[str, Any] = {"architecture": {"tie_word_embeddings": True}}


def test_only_a_run_that_begins_needs_its_weights_before_its_data(tiny_config: Build, tmp_path: Path) -> None:
    directory, config = RunDirectory(tmp_path / "run"), tiny_config(model={"path": str(tmp_path / "gone")})
    with pytest.raises(ConfigError, match="does not exist"):
        require_weights(config, directory, "auto")
    directory.create()
    directory.run_file.write_text("{}")
    require_weights(config, directory, "auto")
    require_weights(config, directory, str(tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match="does not exist"):
        require_weights(config, directory, "none")


def test_a_missing_file_or_one_of_no_known_form_stops_the_run_before_it_starts(lab: Lab) -> None:
    config = lab.config(model={"path": str(lab.folder / "absent.safetensors")})
    with pytest.raises(
        ConfigError, match=r"model\.path: .*absent.* does not exist.*--set model\.path=null"
    ) as no:
        lab.run(config)
    assert no.value.exit_code == 2
    (lab.folder / "model.pt").write_bytes(b"weights")
    (lab.folder / "folder").mkdir()
    for name in ("model.pt", "folder"):
        with pytest.raises(ConfigError, match=r"no known form.*--set model\.path=null"):
            lab.run(lab.config(model={"path": str(lab.folder / name)}))
    assert not (lab.folder / "run").exists()


def test_weights_that_are_not_finite_are_not_started_from(lab: Lab) -> None:
    config = lab.config(model={"path": str(lab.folder / "model.safetensors")})
    tensors = dict(build_model(config.model.architecture, seed=0).state_dict())
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, lab.folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.norm\.weight holds values that are not finite"):
        lab.run(config)
    assert not (lab.folder / "run").exists() or not list((lab.folder / "run").glob("*.json"))


def test_a_run_starts_from_the_weights_of_a_checkpoint_and_keeps_their_record(lab: Lab) -> None:
    first = lab.once("first")
    assert "model" not in lab.record("first"), "random weights leave no record"
    path = lab.folder / "first/checkpoints/step-00000012"
    second = lab.run(lab.config(model={"path": str(path)}, training={"max_steps": 1}), "second")
    assert second["first_loss"] < first["first_loss"] - 0.5
    assert second["first_loss"] == pytest.approx(first["final_loss"], abs=0.3)
    record = {"path": str(path), "sha256": sha256_of_file(path / "manifest.json")}
    assert lab.record("second")["model"] == record
    assert lab.steps("second") == [1]
    path.rename(path.with_name("gone"))
    lab.run(lab.config(model={"path": str(path)}, training={"max_steps": 3}), "second")
    assert lab.record("second")["model"] == record, "the weights are not read again"


def test_a_rehearsal_describes_the_run_only_when_the_weights_fit(tiny_config: Build, tmp_path: Path) -> None:
    def rehearsal(**model: Any) -> dict[str, Any]:
        config = tiny_config(model=model)
        prepare_data(config.data, config.model)
        directory = RunDirectory(tmp_path / "run")
        return rehearse(config, lambda data: Request(config, directory, data, "auto", "id", {}))

    assert rehearsal()["starts_from"] is None
    with pytest.raises(ConfigError, match="does not exist"):
        rehearsal(path=str(tmp_path / "absent.gguf"))


def test_a_checkpoint_with_a_flipped_byte_is_not_started_from(lab: Lab) -> None:
    lab.once("first")
    path = lab.folder / "first/checkpoints/step-00000012"
    data = next(path.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.path: .*does not verify \(.*SHA-256"):
        open_weights(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="the save was never completed"):
        open_weights(path)


def test_tied_weights_are_read_from_a_checkpoint_that_holds_them_twice(lab: Lab) -> None:
    lab.run(lab.config(model=TIED), "first")
    path = lab.folder / "first/checkpoints/step-00000012"
    config = lab.config(model=TIED | {"path": str(path)}, training={"max_steps": 1})
    assert lab.run(config, "second")["first_loss"] < 4


@pytest.fixture
def second_of_two() -> Iterator[DeviceMesh]:
    """This process as rank 1 of 2; nothing is sent, so a collective would give wrong numbers."""
    with fake_world(1, 2):
        yield init_device_mesh("cpu", (2,))


@pytest.mark.parametrize("tied", [True, False])
def test_a_rank_keeps_its_own_part_of_every_tensor(
    second_of_two: DeviceMesh, tmp_path: Path, tied: bool
) -> None:
    shape = ArchitectureConfig(vocab_size=257, hidden_size=32, num_layers=1, tie_word_embeddings=tied)
    complete = dict(build_model(shape, seed=1).named_parameters())
    save_file({name: tensor.detach() for name, tensor in complete.items()}, tmp_path / "m.safetensors")
    model = build_model(shape, seed=2)
    fully_shard(model.model.layers[0], mesh=second_of_two)
    fully_shard(model, mesh=second_of_two)
    load_weights(model, open_weights(tmp_path / "m.safetensors"))
    parts = {name: parameter.to_local() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
    assert parts.keys() == complete.keys()
    for name, part in parts.items():
        assert torch.equal(part, complete[name].chunk(2)[1]), name
    assert parts["model.embed_tokens.weight"].shape == (128, 32)
