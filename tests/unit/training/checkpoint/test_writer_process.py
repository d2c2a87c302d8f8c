"""Saves in the background write, bit for bit, the files that saves in the foreground write."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests import warm_start
from tests.cases import each_case
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader

from trainyard.errors import CheckpointError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.training.checkpoint.shards import all_finite, live_tensors, share_out, write_checkpoint_index
from trainyard.training.checkpoint.writer_process import BackgroundEngine, Engine
from trainyard.training.runtime.world import ALONE

Tensors = dict[str, dict[str, Tensor]]


def tensors_of_all_kinds() -> Tensors:
    """Small tensors, whose files are mostly padding, and one larger than a chunk of hashing."""
    kinds = {
        "empty": torch.empty(0, 4),
        "one": torch.tensor(3.0),
        "half": torch.randn(99).bfloat16(),
        "count": torch.arange(7),
        "byte": torch.randint(0, 255, (13,), dtype=torch.uint8),
        "flags": torch.tensor([True, False, True]),
        "large": torch.randn(1_500, 1_001),
    }
    return {"model": kinds, "moments": {f"of.{i}": torch.randn(57, i + 1) for i in range(9)}}


@pytest.fixture
def behind() -> Iterator[BackgroundEngine]:
    engine = BackgroundEngine()
    yield engine
    engine.close()


def save(engine: Engine, tensors: Tensors, folder: Path) -> list[bytes]:
    """The shards of a complete save; each has the size and digest that the writer reports."""
    folder.mkdir()
    shares = share_out(tensors, ALONE)
    engine.start(lambda: engine.stage(shares.own, live_tensors(tensors), None)).result()
    written = engine.start(lambda: engine.write(folder)).result()
    for file in written.files:
        assert file.sha256 == sha256_of_file(folder / file.path)
        assert file.size == (folder / file.path).stat().st_size
    write_checkpoint_index(folder, shares.index, [written])
    return [path.read_bytes() for path in sorted(folder.glob("*.distcp"))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_checkpoints_written_in_the_background(tmp_path: Path, behind: BackgroundEngine) -> None:
    """Also a transposed tensor and a slice, whose copies are contiguous."""
    tensors = tensors_of_all_kinds()
    tensors["model"] |= {"turned": torch.randn(64, 32).t(), "part": torch.randn(90, 8)[10:20, 2:5]}
    save(behind, tensors, tmp_path / "saved")
    read = {part: {name: torch.zeros_like(t) for name, t in of.items()} for part, of in tensors.items()}
    state_dict_loader.load(read, checkpoint_id=str(tmp_path / "saved"))
    for part, of in tensors.items():
        for name, tensor in of.items():
            assert torch.equal(read[part][name], tensor), name


def test_every_save_has_the_values_of_its_moment(tmp_path: Path, behind: BackgroundEngine) -> None:
    """The saved names change, too: an optimizer has moments only after its first step."""
    large, small = tensors_of_all_kinds(), tensors_of_all_kinds()
    del small["moments"], small["model"]["half"]
    for number, tensors in enumerate((small, large, large, small)):
        tensors["model"]["large"].add_(1)
        after = save(behind, tensors, tmp_path / f"behind-{number}")
        assert after == save(Engine(), tensors, tmp_path / f"at-once-{number}")


def test_another_process_works_and_returns_its_errors(tmp_path: Path, behind: BackgroundEngine) -> None:
    assert behind.do(os.getpid) not in (os.getpid(), None)
    with pytest.raises(FileNotFoundError, match="none"):
        behind.do((tmp_path / "none").read_bytes)
    behind.start(
        lambda: behind.stage(share_out({"model": {}}, ALONE).own, live_tensors({"model": {}}), None)
    ).result()


@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@each_case("place", [0, 57, 99])
def test_finite_is_what_torch_calls_finite(dtype: torch.dtype, place: int) -> None:
    highest = torch.finfo(dtype).max
    assert all_finite(torch.full((100,), highest, dtype=dtype))  # although their sum is infinite
    for bad in (float("inf"), float("-inf"), float("nan")):
        tensor = torch.full((100,), highest, dtype=dtype)
        tensor[place] = bad
        assert not all_finite(tensor)


def test_signals_are_for_the_trainer(behind: BackgroundEngine) -> None:
    writer = behind.do(os.getpid)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(writer, number)
    assert behind.do(os.getpid) == writer


def test_one_that_was_killed_is_named_at_the_next_request(behind: BackgroundEngine) -> None:
    os.kill(behind.do(os.getpid), signal.SIGKILL)
    with pytest.raises(CheckpointError, match="ended by SIGKILL"):
        behind.do(os.getpid)


TRAINER = """
import os, time
from trainyard.training.checkpoint.writer_process import BackgroundEngine
if __name__ == "__main__":
    print(BackgroundEngine().do(os.getpid), flush=True)
    time.sleep(600)
"""


def test_a_writer_ends_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    """The writer is started as shipped. If it survived, it would write beside the resumed run."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    trainer = warm_start.Popen([sys.executable, str(tmp_path / "trainer.py")], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    writer = Path("/proc") / trainer.stdout.readline().decode().strip()
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    deadline = time.monotonic() + 60
    while writer.exists() and "Z" not in (writer / "stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
