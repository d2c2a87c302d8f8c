"""training.file_layout: what is staged is the file that torch.distributed.checkpoint writes, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.planner import WriteItem

from trainyard.errors import CheckpointError
from trainyard.run.files import sha256_of_file
from trainyard.training.engines import AtOnce, Behind, Engine
from trainyard.training.file_layout import record
from trainyard.training.shards import ALIGNMENT, Resolving, bytes_of, live, share_out, write_index
from trainyard.training.world import ALONE
from trainyard.training.writer_process import WriterProcess

Tensors = dict[str, dict[str, Tensor]]


def tensors_of_all_kinds() -> Tensors:
    """Small ones, whose files are mostly what stands between them, and one of several blocks."""
    kinds = {
        "empty": torch.empty(0, 4),
        "one": torch.tensor(3.0),
        "half": torch.randn(99).bfloat16(),
        "count": torch.arange(7),
        "byte": torch.randint(0, 255, (13,), dtype=torch.uint8),
        "large": torch.randn(1_500, 1_001),
    }
    return {"model": kinds, "moments": {f"of.{i}": torch.randn(57, i + 1) for i in range(9)}}


@pytest.fixture(params=["thread", "process"])
def behind(request: pytest.FixtureRequest) -> Iterator[Behind]:
    engine = Behind(WriterProcess() if request.param == "process" else None)
    yield engine
    engine.close()


def save(engine: Engine, tensors: Tensors, folder: Path) -> list[bytes]:
    """The files of a whole save; each as the writer says that it is."""
    folder.mkdir()
    shares = share_out(tensors, ALONE)
    engine.stage(shares.own, live(tensors)).result()
    written = engine.write(folder).result()
    for file in written.files:
        assert file.sha256 == sha256_of_file(folder / file.path)
    write_index(folder, shares.index, [written])
    return [path.read_bytes() for path in sorted(folder.glob("*.distcp"))]


def test_all_modes_write_the_same_bytes(tmp_path: Path, behind: Behind) -> None:
    tensors = tensors_of_all_kinds()

    assert save(behind, tensors, tmp_path / "behind") == save(AtOnce(), tensors, tmp_path / "at-once")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_what_was_staged(tmp_path: Path, behind: Behind) -> None:
    tensors = tensors_of_all_kinds()
    save(behind, tensors, tmp_path / "saved")
    read = {part: {name: torch.zeros_like(t) for name, t in of.items()} for part, of in tensors.items()}
    state_dict_loader.load(read, checkpoint_id=str(tmp_path / "saved"))

    assert all(
        torch.equal(read[part][name], tensors[part][name]) for part in tensors for name in tensors[part]
    )


def test_nothing_of_an_older_layout_stays_in_the_memory(tmp_path: Path, behind: Behind) -> None:
    """As after the first step of an optimizer, which then has moments; and the other way round."""
    large, small = tensors_of_all_kinds(), tensors_of_all_kinds()
    del small["moments"], small["model"]["half"]
    for number, tensors in enumerate((small, large, small)):
        after = save(behind, tensors, tmp_path / f"behind-{number}")

        assert after == save(AtOnce(), tensors, tmp_path / f"at-once-{number}")


def test_every_tensor_can_be_computed_with_where_it_lies() -> None:
    plan = share_out(tensors_of_all_kinds(), ALONE).own
    layout = record(plan)

    assert len(layout.places) == len(plan.items) - 1  # the empty one has no bytes
    assert not [place for place in layout.places.values() if place % ALIGNMENT]


def test_each_byte_of_a_file_is_a_tensors_or_fixed() -> None:
    plan = share_out(tensors_of_all_kinds(), ALONE).own
    layout = record(plan)
    sizes = {item.index: bytes_of(item) for item in plan.items}
    spans = [(place, sizes[index]) for index, place in layout.places.items()]
    end = 0
    for place, size in sorted(spans + [(place, len(content)) for place, content in layout.fixed]):
        assert place == end
        end += size

    assert [(file.start, file.size) for file in layout.files] == [(0, end)]


def test_a_torch_that_copies_on_the_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(self: Resolving, item: WriteItem) -> Tensor:
        return self._tensor_of(item).clone()

    monkeypatch.setattr(Resolving, "resolve_data", copied)
    with pytest.raises(CheckpointError, match=r"14 of 14 tensors .* Use checkpointing\.mode sync\."):
        record(share_out(tensors_of_all_kinds(), ALONE).own)
