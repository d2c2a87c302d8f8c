"""training.file_layout: what is staged is the file that torch.distributed.checkpoint writes, bit for bit."""

import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, state_dict_loader
from torch.distributed.checkpoint.planner import WriteItem

from trainyard.errors import CheckpointError
from trainyard.run.files import sha256_of_file
from trainyard.training import file_layout, staging
from trainyard.training.engines import AtOnce, Behind, Engine
from trainyard.training.file_layout import record
from trainyard.training.shards import Resolving, live, share_out, write_index
from trainyard.training.world import ALONE
from trainyard.training.write_items import ALIGNMENT, ItemsStream, bytes_of
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


def test_all_modes_write_the_same_bytes_where_torch_sorts_what_it_copies_from_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: Behind
) -> None:
    """No GPU: the loader for what is in main memory sorts as the other one does."""

    def sort(self: filesystem._SerialCpuLoader) -> None:
        sorted_by_torch.append(len(self.items))
        self.items.sort(key=lambda sized: sized[0])

    tensors, sorted_by_torch = tensors_of_all_kinds(), list[int]()
    after = save(behind, tensors, tmp_path / "behind")
    monkeypatch.setattr(filesystem._SerialCpuLoader, "start_loading", sort)

    assert save(AtOnce(), tensors, tmp_path / "at-once") == after
    assert sorted_by_torch == [15]


def test_files_lie_in_memory_each_from_a_page_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = partial(filesystem.FileSystemWriter, single_file_per_rank=False)
    monkeypatch.setattr(file_layout, "FileSystemWriter", several)
    tensors, engine = tensors_of_all_kinds(), Behind(None)
    plan = share_out(tensors, ALONE).own
    engine.stage(plan, live(tensors)).result()
    written = engine.write(tmp_path).result()
    engine.close()
    layout = record(plan)

    assert len(written.files) == len(layout.files) == 15
    assert not [file.start for file in layout.files if file.start % mmap.PAGESIZE]
    for result in written.results:
        stored = tmp_path / result.storage_data.relative_path
        part, name = result.index.fqn.split(".", 1)
        assert torch.equal(torch.load(stored), tensors[part][name])


def test_a_layout_that_cannot_be_made_leaves_none_of_the_memory_that_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: Behind
) -> None:
    def fail(*_: object) -> Tensor:
        raise MemoryError("the test")

    small, large = {"model": {"one": torch.randn(9)}}, tensors_of_all_kinds()
    plan = share_out(small, ALONE).own
    behind.stage(plan, live(small)).result()
    with monkeypatch.context() as patch:
        patch.setattr(staging, "tensor_in", fail)
        with pytest.raises(MemoryError, match="the test"):
            behind.stage(share_out(large, ALONE).own, live(large))
    behind.stage(plan, live(small)).result()
    (tmp_path / "behind").mkdir()
    behind.write(tmp_path / "behind").result()
    save(AtOnce(), small, tmp_path / "at-once")

    name = "__0_0.distcp"
    assert (tmp_path / "behind" / name).read_bytes() == (tmp_path / "at-once" / name).read_bytes()


UNKNOWN = r"could not be told from .* Use checkpointing\.mode sync\."


def test_a_torch_that_copies_on_the_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(self: Resolving, item: WriteItem) -> Tensor:
        return self._tensor_of(item).clone()

    monkeypatch.setattr(Resolving, "resolve_data", copied)
    with pytest.raises(CheckpointError, match=UNKNOWN):
        record(share_out(tensors_of_all_kinds(), ALONE).own)


def test_a_torch_that_writes_a_tensor_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of the two would ever be filled."""
    write = filesystem._write_item

    def twice(*args: Any) -> Any:
        write(*args)
        return write(*args)

    monkeypatch.setattr(filesystem, "_write_item", twice)
    with pytest.raises(CheckpointError, match=UNKNOWN):
        record(share_out(tensors_of_all_kinds(), ALONE).own)


def test_a_torch_that_writes_a_tensor_in_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ItemsStream.write

    def in_parts(self: Any, content: Any) -> int:
        view = memoryview(content).cast("B")
        return sum(whole(self, part) for part in (view[:300], view[300:]))

    monkeypatch.setattr(ItemsStream, "write", in_parts)
    with pytest.raises(CheckpointError, match=UNKNOWN):
        record(share_out(tensors_of_all_kinds(), ALONE).own)


def test_a_torch_that_puts_tensors_out_of_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_layout, "ALIGNMENT", 1 << 12)
    with pytest.raises(CheckpointError, match=UNKNOWN):
        record(share_out(tensors_of_all_kinds(), ALONE).own)
