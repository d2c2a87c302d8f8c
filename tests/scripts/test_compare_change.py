"""scripts/compare_change.py on two small checkouts: real runs, and sides that say what they are told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Program = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "workflows" / "act" / "tiny.yaml"
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


def test_two_real_sides_with_the_same_code_end_with_the_same_weights(
    program: Program, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    for part in ("train", "validation"):
        (texts / part).mkdir(parents=True)
        (texts / part / "text.py").write_text((ROOT / "src/trainyard/command.py").read_text())
    for name in ("base", "head"):
        side = tmp_path / name
        (side / "configs").mkdir(parents=True)
        for folder in ("scripts", "src"):
            (side / folder).symlink_to(ROOT / folder)
        for config in ("smoke.yaml", "training_configuration.yaml", "models"):
            (side / "configs" / config).symlink_to(ROOT / "configs" / config)
        (side / "configs" / "tiny.yaml").write_text(TINY.read_text().replace("TEXTS", str(texts)))
    rules = tmp_path / "base" / ".github" / "comparison.yml"
    rules.parent.mkdir()
    rules.write_text(
        "config: configs/tiny.yaml\nrepeats: 1\noverrides: []\ntokens_per_second: 1000\nmemory: 1000\n"
    )
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    done = program(
        *("compare_change.py", "--base", "base", "--head", "head", "--output", "c.json", "--github-summary"),
        GITHUB_STEP_SUMMARY=str(summary),
        GITHUB_OUTPUT=str(outputs),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("### ✅ No regression · ")
    assert "The weights after 12 steps are equal to the bit." in done.stdout
    assert summary.read_text() == done.stdout
    assert outputs.read_text().startswith("compared<<")
    record = json.loads((tmp_path / "c.json").read_text())
    base, head = (record[name]["runs"] for name in ("base", "head"))
    assert len(base) == len(head) == 1
    assert base[0]["loss"] == head[0]["loss"]
    assert base[0]["memory_bytes"] > 50e6
    assert base[0]["tokens_per_second"] > 0


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
    assert (done.returncode, "texts: has no scripts/train.py" in done.stderr) == (2, True)
