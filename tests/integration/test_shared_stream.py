"""A stream whose reading and encoding several processes share: the same batches whatever their number.

`stream_processes` runs the processes, with gloo.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
STEPS, CUT = 60, 37
INTERLEAVED = (1, 4)


def group(name: str, processes: int, **changes: object) -> dict[str, Any]:
    return {"name": name, "processes": processes, "first": 0, "last": STEPS, "after": None, **changes}


def groups() -> list[dict[str, Any]]:
    """Groups of 1 to 4 processes from the start; and groups that end early, each resumed by another one."""
    result = []
    for files, sizes, (before, after) in ((1, (1, 2, 3, 4), (4, 1)), (4, (1, 2, 4), (2, 3))):
        result += [group(f"{size}-of-{files}", size, interleaved=files) for size in sizes]
        result.append(group(f"cut-of-{files}", before, interleaved=files, last=CUT))
        result.append(group(f"on-of-{files}", after, interleaved=files, first=CUT, after=f"cut-of-{files}"))
    return result


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The results of each group's processes, by its name and then by rank."""
    folder = tmp_path_factory.mktemp("a folder")
    (folder / "texts").mkdir()
    for file in range(4):
        rows = [f"text {row} of file {file} " + "some words " * (row * (file + 3) % 17) for row in range(300)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in rows)
        (folder / "texts" / f"{file}.jsonl").write_text(lines)
    (folder / "groups.json").write_text(json.dumps(groups()))
    script = Path(__file__).with_name("stream_processes.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/home"}
    result = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY_ROOT,
        env=environment,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return {
        each["name"]: [
            each | json.loads((folder / f"{each['name']}-{rank}.json").read_text())
            for rank in range(each["processes"])
        ]
        for each in groups()
    }


@pytest.mark.slow
@pytest.mark.parametrize("files", INTERLEAVED)
def test_any_number_of_processes_draws_the_same_batches_and_saves_the_same_position(
    drawn: dict[str, list[dict[str, Any]]], files: int
) -> None:
    alone = drawn[f"1-of-{files}"][0]
    others = [found for name, group_ in drawn.items() if name.endswith(f"-of-{files}") for found in group_]
    for found in others:
        first = CUT if found["first"] else 0
        assert found["digests"] == alone["digests"][first : first + len(found["digests"])]
    whole = [found for found in others if found["last"] == STEPS]
    assert len(whole) > 2
    assert all(found["position"] == alone["position"] for found in whole)
    assert len(set(alone["digests"])) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("files", "processes"), [(1, 2), (1, 3), (1, 4), (4, 2), (4, 4)])
def test_each_process_encodes_its_share_of_the_texts(
    drawn: dict[str, list[dict[str, Any]]], files: int, processes: int
) -> None:
    whole = drawn[f"1-of-{files}"][0]["texts"]
    counts = [found["texts"] for found in drawn[f"{processes}-of-{files}"]]
    rows = 64
    assert whole > 1000
    assert all(abs(count - whole / processes) <= 2.5 * rows for count in counts), (whole, counts)


@pytest.mark.slow
def test_validation_reads_the_same_tokens_in_any_number_of_processes_which_share_the_work(
    drawn: dict[str, list[dict[str, Any]]],
) -> None:
    alone = drawn["1-of-1"][0]
    assert alone["sizes"][:2] == [1, 50_000]
    assert 50_000 < alone["sizes"][2] < 10**7, "the split is read once, and not repeated"
    for processes in (1, 2, 3, 4):
        found = drawn[f"{processes}-of-1"]
        assert all(
            (one["beginnings"], one["sizes"]) == (alone["beginnings"], alone["sizes"]) for one in found
        )
        assert all(one["read"] <= alone["read"] / processes + 400 for one in found), [
            one["read"] for one in found
        ]
