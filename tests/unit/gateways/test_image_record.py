"""The record of an image: a commit counts only while the code is still the one that was recorded."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.gateways.images.image_record import code_facts, code_sha256, runs_code_of

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "3f2c1ab" + "0" * 33


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Code as an image holds it, with the record that the real script writes."""
    folder = tmp_path_factory.mktemp("built") / "opt"
    for name in ("src/tiny/__init__.py", "scripts/train.py", "configs/smoke.yaml"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f"# {name}\n")
    (folder / "src/trainyard").symlink_to(ROOT / "src/trainyard")
    (folder / "lock.txt").write_text("torch==1\n")
    script = ROOT / "docker" / "write_image_record.py"
    subprocess.run(
        [sys.executable, str(script), "image.json", "fsdp", "lock.txt"],
        cwd=folder,
        env={"BASE_IMAGE": "debian", "GIT_COMMIT": COMMIT},
        check=True,
        timeout=60,
    )
    assert code_facts(folder, folder / "image.json") == {"commit": COMMIT, "dirty": False}
    return folder


@pytest.fixture
def house(built: Path, tmp_path: Path) -> Path:
    """A copy that a test may change; its record names the place of the copy."""
    folder = tmp_path / "opt"
    shutil.copytree(built, folder, symlinks=True)
    record = json.loads((folder / "image.json").read_text())
    record["code"]["directory"] = str(folder)
    (folder / "image.json").unlink()
    (folder / "image.json").write_text(json.dumps(record))
    return folder


def facts(folder: Path) -> dict[str, object]:
    return code_facts(folder, folder / "image.json")


def test_code_that_is_as_it_was_built_is_the_clean_commit(house: Path) -> None:
    assert facts(house) == {"commit": COMMIT, "dirty": False}
    (house / "scripts" / "__pycache__").mkdir()
    (house / "scripts" / "__pycache__" / "train.pyc").write_bytes(b"1")
    (house / "runs").mkdir()
    assert facts(house) == {"commit": COMMIT, "dirty": False}, "what running leaves is not a change"


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": lambda f: (f / "scripts/train.py").write_text("x"),
    "added": lambda f: (f / "configs/more.yaml").write_text(""),
    "removed": lambda f: (f / "scripts/train.py").unlink(),
    "renamed": lambda f: (f / "scripts/train.py").rename(f / "scripts/other.py"),
    "link": lambda f: (f / "src/lib").symlink_to("/tmp"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_code_changed_since_is_dirty_with_its_digest(house: Path, change: Callable[[Path], object]) -> None:
    change(house)
    assert facts(house) == {"commit": COMMIT, "dirty": True, "diff_sha256": code_sha256(house)}


def test_code_that_cannot_be_read_is_not_called_clean(house: Path) -> None:
    (house / "configs/smoke.yaml").unlink()
    os.mkfifo(house / "configs/smoke.yaml")
    assert facts(house)["dirty"] is True


def test_a_clone_in_the_image_is_not_the_code_of_the_image(house: Path, tmp_path: Path) -> None:
    (house / ".git").mkdir()
    assert facts(house) == {}, "git was asked, and its answer stands"
    assert code_facts(tmp_path, house / "image.json") == {}, "another folder"


def test_without_a_usable_record_nothing_is_claimed(house: Path) -> None:
    place = house / "image.json"
    record = json.loads(place.read_text())
    place.unlink()
    assert facts(house) == {}, "missing"
    short = record | {"commit": "3f2c1ab"}
    no_code = {name: value for name, value in record.items() if name != "code"}
    for content in ("{", "[]", *map(json.dumps, (record | {"commit": None}, short, no_code))):
        place.write_text(content)
        assert facts(house) == {}, content


@each_case(
    ("name", "content", "same"),
    [
        ("a.py", "a = 1\n", True),
        ("a.py", "a = 2\n", False),
        ("deep/b.py", "", False),
        ("new.py", "", False),
        ("__pycache__/a.pyc", "x", True),
    ],
)
def test_a_package_has_a_repositorys_code_if_no_file_differs(
    tmp_path: Path, name: str, content: str, same: bool
) -> None:
    own, other = tmp_path / "house" / "src" / "package", tmp_path / "site-packages" / "package"
    for folder in (own, other):
        (folder / "deep").mkdir(parents=True)
        (folder / "a.py").write_text("a = 1\n")
        (folder / "deep" / "b.py").write_text("b = 1\n")
    (other / name).parent.mkdir(exist_ok=True)
    (other / name).write_text(content)
    assert runs_code_of(tmp_path / "house", own)
    assert runs_code_of(tmp_path / "house", other) is same
    assert not runs_code_of(tmp_path / "no-house", other)
