"""scripts/compare_change.py on sides that say what they are told; compare.yml is played on real ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Program = Callable[..., Any]
TOLD = """
import json, sys
from pathlib import Path

run = Path(sys.argv[sys.argv.index("--run-dir") + 1])
told = json.loads((Path(__file__).parent / "told.json").read_text())
turns = Path(__file__).parent / "turns"
turn = len(turns.read_text()) if turns.exists() else 0
turns.write_text("x" * (turn + 1))
if "failure" in told:
    sys.exit(told["failure"])
run.mkdir(parents=True)
outcome = {"steps": 4, "final_loss": told["loss"], "state_sha256": {"model": "ab"}}
(run / "run.json").write_text(json.dumps({"run_id": "r", "outcome": outcome}))
row = json.dumps({"step": 1, "tokens_per_second": told["speeds"][turn]})
(run / "metrics.jsonl").write_text(row + chr(10))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[..., Path]:
    """Makes a side whose training says what it is told."""

    def make(name: str, **told: Any) -> Path:
        scripts = tmp_path / name / "scripts"
        scripts.mkdir(parents=True)
        (scripts / "train.py").write_text(TOLD)
        (scripts / "prepare_data.py").write_text("")
        (scripts / "told.json").write_text(json.dumps({"loss": 2.5, "speeds": [100.0, 90.0, 110.0], **told}))
        return tmp_path / name

    return make


def test_what_is_found_goes_to_the_summary_the_record_and_the_step(
    program: Program, checkout: Callable[..., Path], tmp_path: Path
) -> None:
    checkout("base")
    checkout("head")
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    done = program(
        *("compare_change.py", "--base", "base", "--head", "head", "--output", "c.json", "--github-summary"),
        GITHUB_STEP_SUMMARY=str(summary),
        GITHUB_OUTPUT=str(outputs),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("### ✅ No regression · `base` → `head`")
    assert "The weights after 4 steps are equal to the bit." in done.stdout
    assert summary.read_text() == done.stdout
    assert outputs.read_text().startswith("compared<<")
    assert [
        len(json.loads((tmp_path / "c.json").read_text())[side]["runs"]) for side in ("base", "head")
    ] == [3, 3]


def test_a_slower_head_is_red_and_annotated(program: Program, checkout: Callable[..., Path]) -> None:
    checkout("base")
    checkout("head", speeds=[50.0, 60.0, 55.0])
    done = program("compare_change.py", "--base", "base", "--head", "head", GITHUB_ACTIONS="true")
    assert done.returncode == 1
    assert "### ❌ Worse: tokens/s" in done.stdout
    assert "::error title=Worse%3A tokens/s::100 (90 to 110) → 55 (50 to 60)" in done.stderr


def test_sides_take_turns_and_what_fails_is_not_run_again(
    program: Program, checkout: Callable[..., Path], tmp_path: Path
) -> None:
    checkout("base")
    head = checkout("head", failure="Step 3: loss nan is not finite")
    done = program("compare_change.py", "--base", "base", "--head", "head", "--output", "c.json")
    assert done.returncode == 1
    assert "### ❌ It does not train any more" in done.stdout
    assert "train.py ended with 1:\nStep 3: loss nan is not finite" in done.stdout
    assert (head / "scripts" / "turns").read_text() == "x"
    assert (tmp_path / "base" / "scripts" / "turns").read_text() == "xxx"


def test_a_base_that_does_not_train_is_no_reason_to_refuse(
    program: Program, checkout: Callable[..., Path]
) -> None:
    checkout("base", failure="unknown key")
    checkout("head")
    done = program("compare_change.py", "--base", "base", "--head", "head")
    assert done.returncode == 0
    assert "### ⚠ Nothing to compare with" in done.stdout


def test_a_base_without_a_trainer_is_nothing_to_compare_with(
    program: Program, checkout: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    checkout("head")
    outputs = tmp_path / "outputs"
    sides = ("--base", "base", "--head", "head", "--output", "c.json")
    done = program("compare_change.py", *sides, GITHUB_OUTPUT=str(outputs))
    assert (done.returncode, "::error" in done.stderr) == (0, False)
    assert "### ⚠ Nothing to compare with" in done.stdout
    assert "It has no scripts/prepare_data.py yet." in done.stdout
    assert outputs.read_text().startswith("compared<<")
    assert len(json.loads((tmp_path / "c.json").read_text())["head"]["runs"]) == 3


def test_the_bases_rules_count_and_not_those_of_the_change(
    program: Program, checkout: Callable[..., Path], tmp_path: Path
) -> None:
    for side, limit in ((checkout("base"), 0.01), (checkout("head", loss=2.6), 0.5)):
        (side / ".github").mkdir()
        (side / ".github" / "comparison.yml").write_text(f"loss: {limit}\n")
    assert program("compare_change.py", "--base", "base", "--head", "head").returncode == 1
    for side in (tmp_path / "base", tmp_path / "head"):
        (side / "scripts" / "turns").unlink()
    wide = ("--rules", "head/.github/comparison.yml")
    assert program("compare_change.py", "--base", "base", "--head", "head", *wide).returncode == 0


def test_wrong_rules_and_no_checkout_are_usage_errors(
    program: Program, checkout: Callable[..., Path], tmp_path: Path
) -> None:
    checkout("base")
    (tmp_path / "rules.yml").write_text("speed: 1\n")
    sides = ("--base", "base", "--head", "base")
    done = program("compare_change.py", *sides, "--rules", "rules.yml")
    assert (done.returncode, "rules.yml: speed: unknown key" in done.stderr) == (2, True)
    assert program("compare_change.py", *sides, "--rules", "none.yml").returncode == 2
    done = program("compare_change.py", "--base", "base", "--head", "texts")
    assert (done.returncode, "texts/scripts/train.py: no such" in done.stderr) == (2, True)
    done = program("compare_change.py", "--base", "none", "--head", "base")
    assert (done.returncode, "none: no such folder" in done.stderr) == (2, True)
