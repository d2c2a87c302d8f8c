"""A run of a removed recipe: it is listed, verified, restored, reported and proven as it was.

The archive holds the run directory and the store that `trainyard run` wrote at commit 746f4f3, with `recipe:
grpo` on a tiny model, and its proof.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trainyard.run.directory import RunDirectory
from trainyard.training.export.export import plan_export

FILTER: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python has extraction filters from 3.11.4 on."""
ARCHIVE = Path(__file__).parents[1] / "fixtures" / "run-of-recipe-grpo.tar.xz"
EXAMPLE = "examples/grpo trains the same with TRL"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `run` and `store`."""
    folder = tmp_path_factory.mktemp("grpo")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, **FILTER)
    return folder


def trainyard(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    hidden = ("GITHUB_", "SLACK_", "AWS_", "TRAINYARD_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    command = [sys.executable, "-m", "trainyard", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def done(folder: Path, *words: str) -> str:
    result = trainyard(folder, *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_it_is_listed_and_verified(folder: Path) -> None:
    store = ["--store", (folder / "store").as_uri()]
    (run,) = json.loads(done(folder, "store", "ls", *store, "--json"))["runs"]
    assert (run["run_number"], run["run_id"]) == (1, "20261126-023907-79a1")
    done(folder, "store", "verify", *store, "--run-number", "1")


def test_it_is_restored_and_reported_and_proven(folder: Path) -> None:
    store = ["--store", (folder / "store").as_uri(), "--run-number", "1"]
    done(folder, "store", "restore", *store, "--to", "back")
    before = json.loads((folder / "run" / "report" / "proof.json").read_bytes())
    for name in ("run", "back"):
        after = json.loads(done(folder, "prove", "--run-dir", name, *store, "--json"))
        assert after["proven"], after["parts"]
        known = {part["name"] for part in before["parts"]}  # it was proven before `learned` was a part
        assert [part for part in after["parts"] if part["name"] in known] == before["parts"]
        done(folder, "report", name, "--write")
        assert "Reward" in (folder / name / "report" / "index.html").read_text()


def test_its_weights_are_still_exported(folder: Path) -> None:
    assert plan_export(RunDirectory(folder / "run")).weights.path.name == "step-00000006"


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["train", "--config", "run/config.yaml"],
        [
            "train",
            "--config",
            str(ROOT / "configs" / "grpo.yaml"),
            "--set",
            f"program.directory={ROOT}",
            "--set",
            "program.lock=null",
            "--set",
            "program.steps=6",
        ],
    ],
    ids=["pipeline", "trainer", "example"],
)
def test_to_resume_it_is_refused_by_the_name_of_the_example(folder: Path, words: list[str]) -> None:
    before = (folder / "run" / "run.json").read_bytes()
    refused = trainyard(folder, *words, "--run-dir", "run")
    assert refused.returncode == 2
    assert EXAMPLE in refused.stderr
    assert (folder / "run" / "run.json").read_bytes() == before
