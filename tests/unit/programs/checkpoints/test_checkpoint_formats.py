"""Which checkpoints of a volume are found and complete: planted in every format, damaged in every way."""

import io
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.errors import CheckpointError, DamagedFileError
from trainyard.programs.checkpoints.checkpoint_formats import (
    TRACKER,
    FoundCheckpoint,
    choose_checkpoint,
    find_checkpoints,
    newest_of_each_run,
)
from trainyard.programs.checkpoints.volume_agent import main
from trainyard.programs.checkpoints.volume_listing import VolumeListing, parse_listing


def listing_of(lines: Iterable[bytes]) -> VolumeListing:
    return parse_listing(b"\n".join(lines))


def looked(root: Path) -> VolumeListing:
    out, err = io.BytesIO(), io.BytesIO()
    assert main(["look", str(root)], out, err) == 0, err.getvalue()
    return listing_of(out.getvalue().splitlines())


def found(root: Path) -> dict[str, FoundCheckpoint]:
    return {each.path: each for each in find_checkpoints(looked(root))}


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
    weights = shapes.safetensors_bytes(50)
    for content, why in ((weights, ""), (weights[:-1], "is cut off"), (b"", "is empty")):
        (tmp_path / "model.safetensors").write_bytes(content)
        each = found(tmp_path)["."]
        assert each.is_complete is (not why) and each.why.endswith(why)


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


GOOD = {"path": "a/b", "size": 1, "modified": 1.0}


@each_case(
    "line",
    [
        b"nonsense",
        b"[]",
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in ({"path": "/etc/passwd"}, {"path": "../x"}, {"size": -1}, {"whole": 3})
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
        {"path": f"{folder}/.metadata", "size": 9, "modified": 0.0, "names": []},
        {"path": f"{folder}/__0_0.distcp", "size": 9, "modified": 0.0},
        {"path": f"{folder.split('/', maxsplit=1)[0]}/{TRACKER}", "size": 1, "modified": 0.0, "text": "5"},
    ]
    lines = [json.dumps(line).encode() for line in [*files, {"end": len(files)}]]
    [found] = find_checkpoints(listing_of(lines))
    assert not found.is_complete
