"""Which checkpoints of a volume are found and complete: planted in every format, damaged in every way."""

import io
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.errors import CheckpointError, DamagedFileError
from trainyard.programs.checkpoints.checkpoint_formats import (
    TRACKER,
    choose_checkpoint,
    find_checkpoints,
    newest_of_each_run,
    newest_step,
)
from trainyard.programs.checkpoints.found_checkpoint import FoundCheckpoint
from trainyard.programs.checkpoints.volume_agent import main
from trainyard.programs.checkpoints.volume_listing import ListingReader, VolumeListing


def listing_of(lines: Iterable[bytes]) -> VolumeListing:
    reader = ListingReader()
    for line in lines:
        reader.take(line)
    return reader.listing()


def looked(root: Path) -> VolumeListing:
    out, err = io.BytesIO(), io.BytesIO()
    assert main(["look", str(root)], out, err) == 0, err.getvalue()
    return listing_of(out.getvalue().splitlines())


def found(root: Path) -> dict[str, FoundCheckpoint]:
    return {each.path: each for each in find_checkpoints(looked(root))}


def test_the_newest_complete_one_of_each_run_is_found_whoever_wrote_it(tmp_path: Path) -> None:
    shapes.plant_all(tmp_path, big=1000)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_bytes(b"x")
    all_of_them = found(tmp_path)
    assert len(all_of_them) == 15
    assert [each.is_complete for each in all_of_them.values()].count(False) == 5
    newest = newest_of_each_run(all_of_them.values())
    assert {(each.path, each.format.value, each.step) for each in newest} == {
        ("ours/checkpoints/step-00000200", "trainyard", 200),
        ("verl/global_step_200", "verl", 200),
        ("megatron/iter_0000200", "megatron", 200),
        ("titan/step-200", "dcp", 200),
        ("hf/checkpoint-200", "huggingface", 200),
    }
    assert newest_step(all_of_them.values()) == 200
    assert newest_step([]) is None


MODEL = "model_optim_rng.pt"
Plant = Callable[..., Path]
WRITERS: dict[str, Plant] = {
    "trainyard": lambda root: shapes.ours(root, 7),
    "verl": lambda root: shapes.verl(root, 7),
    "megatron": lambda root: shapes.megatron(root, 7),
    "dcp": lambda root: shapes.dcp(root / "step-7"),
    "huggingface": lambda root: shapes.safetensors(root / "step-7"),
}
FREE_TO_LACK = {"config.json", "mp_rank_01/model_optim_rng.pt", "actor/fsdp_config.json"}
"""Nothing shows that these must exist: Megatron's file names do not show the number of ranks."""


@pytest.mark.parametrize("name", WRITERS)
def test_without_any_one_of_its_files_it_is_partial(name: str, tmp_path: Path) -> None:
    whole = WRITERS[name](tmp_path / "whole")
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    for number, lacking in enumerate(sorted(files)):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", root)
        (root / whole.relative_to(tmp_path / "whole") / lacking).unlink()
        (each,) = found(root).values()
        assert each.format.value == name
        assert each.is_complete == (str(lacking) in FREE_TO_LACK), (lacking, each.why)
        assert each.why


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_cut_short_makes_it_partial(name: str, tmp_path: Path) -> None:
    """A file of DCP does not show where it must end, but an empty file is not complete."""
    whole = WRITERS[name](tmp_path / "whole")
    big = [path for path in whole.rglob("*") if path.is_file() and path.stat().st_size > 200]
    assert big
    for number, path in enumerate(sorted(big)):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", root)
        copy = root / path.relative_to(tmp_path / "whole")
        copy.write_bytes(
            b"" if path.suffix == ".distcp" or path.name == ".metadata" else path.read_bytes()[:-100]
        )
        (each,) = found(root).values()
        assert not each.is_complete, path


@each_case(
    ("said", "complete"),
    [("7", True), ("9", True), ("6", False), ("release", False), ("", False), ("٧", False), ("7.0", False)],
)
@each_case("writer", ["verl", "megatron"])
def test_the_tracker_decides_and_no_time_of_a_file(
    writer: str, said: str, complete: bool, tmp_path: Path
) -> None:
    WRITERS[writer](tmp_path)
    (tmp_path / TRACKER).write_text(said)
    (each,) = found(tmp_path).values()
    assert each.is_complete == complete, each.why


def test_megatron_without_a_step_and_with_a_dcp_index(tmp_path: Path) -> None:
    release = shapes.megatron(tmp_path / "a", 1).rename(tmp_path / "a" / "release")
    (tmp_path / "a" / TRACKER).write_text("release\n")
    shapes.dcp(tmp_path / "b" / "iter_0000005")
    (tmp_path / "b" / TRACKER).write_text("5")
    newest = newest_of_each_run(found(tmp_path).values())
    assert [(each.path, each.step) for each in newest] == [("a/release", None), ("b/iter_0000005", 5)]
    shutil.rmtree(release / "mp_rank_00")
    assert not found(tmp_path)["a/release"].is_complete


def test_all_ranks_of_tensor_and_pipeline_are_needed(tmp_path: Path) -> None:
    for tensor, pipeline in ((0, 0), (0, 1), (1, 0), (1, 1)):
        shapes.archive(tmp_path / "iter_0000003" / f"mp_rank_{tensor:02d}_{pipeline:03d}" / MODEL, 10)
    (tmp_path / TRACKER).write_text("3")
    assert found(tmp_path)["iter_0000003"].is_complete
    shutil.rmtree(tmp_path / "iter_0000003" / "mp_rank_01_000")
    assert found(tmp_path)["iter_0000003"].why == "mp_rank_01_000 is missing"
    shutil.rmtree(tmp_path / "iter_0000003")
    (tmp_path / "iter_0000003").mkdir()
    (tmp_path / "iter_0000003" / "note").write_text("x")
    assert "neither" in found(tmp_path)["iter_0000003"].why


def test_verl_with_a_critic_two_worlds_and_megatron_below(tmp_path: Path) -> None:
    run = shapes.verl(tmp_path, 4)
    shapes.archive(run / "critic" / "model_world_size_2_rank_0.pt", 10)
    assert found(tmp_path)["global_step_4"].why == "critic: model of rank 1 of 2 is missing"
    shapes.archive(run / "critic" / "model_world_size_4_rank_0.pt", 10)
    assert "2 different world sizes" in found(tmp_path)["global_step_4"].why
    shutil.rmtree(run / "critic")
    shutil.rmtree(run / "actor")
    assert found(tmp_path)["global_step_4"].why == "it has no actor"
    shapes.dcp(run / "actor" / "dist_ckpt")
    shapes.safetensors(run / "actor" / "huggingface")
    (each,) = found(tmp_path).values()
    assert each.is_complete, "what lies below belongs to it"
    shutil.rmtree(run / "actor" / "dist_ckpt")
    assert found(tmp_path)["global_step_4"].why == "actor: no model file"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-100", 100),
        ("llama_v3-100steps", 100),
        ("checkpoint-500", 500),
        ("100", 100),
        ("run_step_7", 7),
        ("llama-3-8", None),
        ("model", None),
    ],
)
def test_the_step_is_read_from_the_name_and_no_size_of_a_model(
    name: str, step: int | None, tmp_path: Path
) -> None:
    shapes.dcp(tmp_path / name)
    assert found(tmp_path)[name].step == step


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        shapes.dcp(tmp_path / f"llama-{step}steps")
    assert [each.step for each in newest_of_each_run(found(tmp_path).values())] == [100]


def test_weights_in_one_file_and_in_the_folder_that_is_listed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(shapes.safetensors_bytes(50))
    assert found(tmp_path)["."].is_complete
    (tmp_path / "model.safetensors").write_bytes(shapes.safetensors_bytes(50)[:-1])
    assert found(tmp_path)["."].why == "model.safetensors is cut short"
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert found(tmp_path)["."].why == "model.safetensors is empty"
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert "cannot be read" in found(tmp_path)["."].why


def test_our_own_manifest_is_believed_only_where_it_fits(tmp_path: Path) -> None:
    folder = shapes.ours(tmp_path, 7)
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    for wrong, why in ((text[:-9], "manifest.json"), (text.replace('"step": 7', '"step": 8'), "of step 8")):
        manifest.write_text(wrong)
        each = found(tmp_path)["checkpoints/step-00000007"]
        assert not each.is_complete and why in each.why
    manifest.write_text(text)
    assert set(found(tmp_path)["checkpoints/step-00000007"].sha256) == {
        "checkpoints/step-00000007/model.bin.part",
        "checkpoints/step-00000007/state.json",
    }


def test_the_one_that_is_meant(tmp_path: Path) -> None:
    shapes.plant_all(tmp_path, big=100)
    known = list(found(tmp_path).values())
    assert choose_checkpoint(known, "verl/global_step_100").step == 100
    for path, step, why in (
        ("verl/global_step_300", None, "is not complete"),
        ("verl/nothing", None, "no such checkpoint; the command list"),
        ("", None, "several runs have checkpoints"),
        ("", 100, "several runs"),
        ("", 9, "no complete checkpoint of step 9"),
    ):
        with pytest.raises(CheckpointError, match=why):
            choose_checkpoint(known, path, step)
    titan = [each for each in known if each.run == "titan"]
    assert choose_checkpoint(titan).step == 200
    assert choose_checkpoint(titan, step=100).step == 100
    with pytest.raises(CheckpointError, match=r"of step 300; titan/step-300 is not complete: no \.metadata"):
        choose_checkpoint(titan, step=300)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint$"):
        choose_checkpoint([])


def test_links_are_not_followed_and_folders_are_needed(tmp_path: Path) -> None:
    shapes.dcp(tmp_path / "real" / "step-1")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "root" / "file").symlink_to(tmp_path / "real" / "step-1" / ".metadata")
    assert looked(tmp_path / "root").files == ()
    err = io.BytesIO()
    assert main(["look", str(tmp_path / "none")], io.BytesIO(), err) == 3
    assert json.loads(err.getvalue())["error"].startswith("there is no folder")


GOOD = {"p": "a/b", "s": 1, "m": 1.0}


@each_case(
    "line",
    [
        b"nonsense",
        b"[]",
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in (
                {"p": "/etc/passwd"},
                {"p": "../x"},
                {"p": ""},
                {"p": None},
                {"s": -1},
                {"s": "1"},
                {"s": True},
                {"m": "x"},
                {"whole": 3},
                {"text": 3},
                {"names": 3},
            )
        ),
    ],
)
def test_lines_that_are_not_the_programs_are_refused(line: bytes) -> None:
    with pytest.raises(DamagedFileError, match="list of files from the pod"):
        listing_of([line])


def test_a_list_without_its_end_is_refused() -> None:
    good = json.dumps(GOOD).encode()
    assert len(listing_of([good, b'{"end":1}']).files) == 1
    for lines in ([good], [good, b'{"end":2}'], []):
        with pytest.raises(DamagedFileError, match="is cut off"):
            listing_of(lines)


@pytest.mark.parametrize("folder", ["titan/step-5", "megatron/iter_0000005", "verl/global_step_5/actor"])
def test_an_index_that_names_no_file_proves_nothing(folder: str) -> None:
    files = [
        {"p": f"{folder}/.metadata", "s": 9, "m": 0.0, "names": []},
        {"p": f"{folder}/__0_0.distcp", "s": 9, "m": 0.0},
        {"p": f"{folder.split('/', maxsplit=1)[0]}/{TRACKER}", "s": 1, "m": 0.0, "text": "5"},
    ]
    lines = [json.dumps(line).encode() for line in [*files, {"end": len(files)}]]
    [found] = find_checkpoints(listing_of(lines))
    assert not found.is_complete
    assert found.why.endswith("its .metadata names no .distcp file")
