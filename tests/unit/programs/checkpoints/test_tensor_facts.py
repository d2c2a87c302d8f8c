"""The tensors in files of torch and safetensors, read while they are hashed. torch writes the files."""

import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import each_case

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.tensor_facts import Tensors, read_tensors, relation_of_files, summary_of

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
NAN, INF = float("nan"), float("inf")


def read(path: Path) -> Tensors:
    digest = hashlib.sha256()
    found = summary_of({path.name: read_tensors(path, digest.update)})
    assert digest.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest(), "each byte once, in order"
    return found


def save_torch(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    torch.save({"model": tensors, "step": 3}, path)


def save_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path)


@each_case(("ending", "save"), [("pt", save_torch), ("model", save_torch), ("safetensors", save_safetensors)])
@each_case("kind", FLOATS)
@each_case(("value", "nan", "infinite"), [(1.0, False, False), (NAN, True, False), (INF, False, True)])
def test_a_number_that_is_not_finite_is_found_in_every_type(
    ending: str,
    save: Callable[[Path, dict[str, torch.Tensor]], None],
    kind: torch.dtype,
    value: float,
    nan: bool,
    infinite: bool,
    tmp_path: Path,
) -> None:
    numbers = torch.ones(300_000)
    numbers[299_999] = value
    save(path := tmp_path / f"a.{ending}", {"w": numbers.to(kind), "n": torch.arange(9), "e": torch.empty(0)})
    found = read(path)
    infinite = infinite and kind is not torch.float8_e4m3fn  # it has no infinity
    names = ("w",) if ending == "safetensors" else ("model.w",)
    assert (found.count, found.unread) == (3, ())
    assert (found.nan, found.infinite) == (names if nan else (), names if infinite else ())


def test_what_lies_in_a_storage_outside_of_a_tensor_does_not_count(tmp_path: Path) -> None:
    whole = torch.full((4, 10), NAN)
    whole[1:3, ::2] = 1.0
    model = torch.nn.Linear(3, 3)
    parameter = torch.nn.Parameter(torch.ones(2))
    torch.save({"view": whole[1:3, ::2], "m": model, "p": parameter}, tmp_path / "a.pt")
    found = read(tmp_path / "a.pt")
    assert (found.count, found.nan) == (4, ())
    torch.save({"view": whole[1:3, 1::2]}, tmp_path / "a.pt")
    assert read(tmp_path / "a.pt").nan == ("view",)


def test_two_files_are_equal_if_all_their_tensors_are(tmp_path: Path) -> None:
    """The step and the names inside the zip differ."""
    state = {"w": torch.arange(5.0), "b": torch.zeros(2, 3)}
    found = []
    for name, step, more in (("a", 1, {}), ("b", 2, {}), ("c", 2, {"b": torch.zeros(3, 2)})):
        torch.save({"model": {**state, **more}, "step": step}, tmp_path / f"{name}.pt")
        found.append(read(tmp_path / f"{name}.pt").sha256)
    assert found[0] == found[1] != found[2]


def without_checksums(path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save_torch(path, {"w": torch.randn(5000), "e": torch.empty(0)})
    finally:
        torch.serialization.set_crc32_options(True)


def legacy(path: Path) -> None:
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)


def test_files_without_checksums_are_read_and_those_of_other_kinds_are_called_unread(tmp_path: Path) -> None:
    without_checksums(tmp_path / "a.pt")
    assert (read(tmp_path / "a.pt").count, read(tmp_path / "a.pt").unread) == (2, ())
    for name, write in (("b.pt", legacy), ("__0_0.distcp", lambda path: path.write_bytes(b"x" * 99))):
        write(tmp_path / name)
        found = read(tmp_path / name)
        assert (found.count, len(found.unread)) == (0, 1) and found.unread[0].startswith(name)
    (tmp_path / "config.json").write_text("{}")
    assert read(tmp_path / "config.json") == Tensors()
    (tmp_path / "a.pt").write_bytes(bytes(1 << 20))  # as a file system leaves it after a power cut
    with pytest.raises(CheckpointError, match=r"a\.pt is damaged: it has only zeros"):
        read(tmp_path / "a.pt")


@each_case("at", [0, 70, 5000, 40_000, 399_000])
@each_case("count", [1, 4096])
def test_bytes_that_were_changed_in_a_file_of_torch_are_damage(at: int, count: int, tmp_path: Path) -> None:
    save_torch(path := tmp_path / "a.pt", {"w": torch.randn(50_000), "v": torch.randn(50_000)})
    content = bytearray(path.read_bytes())
    content[at : at + count] = bytes(255 - byte for byte in content[at : at + count])
    path.write_bytes(content)
    if at == 0:  # no zip any more: another format, which shows nothing
        assert read(path).unread
        return
    with pytest.raises(CheckpointError, match=r"a\.pt: .*damaged"):
        read(path)


def header_says(**values: Any) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **values}}).encode()
    return struct.pack("<Q", len(header)) + header


@each_case(
    "content",
    [
        b"",
        b"\xff" * 20,
        header_says() + bytes(7),
        header_says() + bytes(9),
        header_says(data_offsets=None) + bytes(8),
        struct.pack("<Q", 4) + b"[{}]",
    ],
)
def test_a_file_of_safetensors_has_the_size_that_its_header_states(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        read(tmp_path / "a.safetensors")


def test_the_bytes_of_parameters_are_found_in_files_of_any_kind(tmp_path: Path) -> None:
    """A number that is repeated, or a few of them, are in many files and show nothing."""
    first, last = torch.randn(40, 50), torch.randn(40, 50)
    excerpts = [(first.numpy().tobytes()[4000:4064], last.numpy().tobytes()[4000:4064])]
    saves: dict[str, Callable[[Path, torch.Tensor], object]] = {
        "pt": lambda path, each: save_torch(path, {"w": each}),
        "safetensors": lambda path, each: save_safetensors(path, {"w": each}),
        "pkl": lambda path, each: path.write_bytes(pickle.dumps({"w": each})),
        "npz": lambda path, each: np.savez(path, w=each.numpy()),
        "late": lambda path, each: path.write_bytes(bytes((1 << 20) - 4032) + each.numpy().tobytes()),
    }
    wrong = {}
    for ending, save in saves.items():
        path = tmp_path / f"a.{ending}"
        found = []
        for each in (last, first, first + last):
            save(path, each)
            found.append(relation_of_files([path], excerpts))
        if found != ["trained", "given", "unknown"]:
            wrong[ending] = found
    assert wrong == {}
    np.savez_compressed(tmp_path / "b.npz", w=last.numpy())
    assert relation_of_files([tmp_path / "b.npz"], excerpts) == "unknown"
    (tmp_path / "c.bin").write_bytes(bytes(500))
    for weak in ([], [(excerpts[0][0], bytes(64))], [(bytes(16), excerpts[0][1])], [(bytes(64), bytes(64))]):
        assert relation_of_files([tmp_path / "c.bin"], weak) == "unknown"


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    save_torch(tmp_path / "a.pt", {"w": torch.tensor([NAN]), "v": torch.tensor([INF])})
    found = read(tmp_path / "a.pt")
    assert Tensors.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Tensors.from_json(None) is None and Tensors.from_json({"count": "x"}) is None
