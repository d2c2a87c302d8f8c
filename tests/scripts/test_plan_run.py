"""The plan job's script: what it resolves, what it shows, and how it says no."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard import command

ROOT = Path(__file__).resolve().parents[2]
SMOKE = str(ROOT / "configs" / "smoke.yaml")
VARIABLES = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_RUN_ID": "4711",
    "GITHUB_RUN_NUMBER": "812",
    "GITHUB_SHA": "0123456789abcdef0123456789abcdef01234567",
    "GITHUB_REF_NAME": "main",
    "TRAINYARD_STORE": "s3://ml-runs/phase2",
}


@pytest.fixture(scope="module")
def plan_run(load_script: Any) -> Any:
    return load_script("plan_run")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A step of a workflow; its files are in the folder."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.delenv("GITHUB_RUN_ATTEMPT", raising=False)
    return tmp_path


def planned(plan_run: Any, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert plan_run.main(["--config", SMOKE, "--json", *arguments]) == 0
    outputs: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outputs


def test_it_resolves_inputs_into_outputs_a_summary_and_a_file(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = job / "plan.json"
    outputs = planned(
        *(plan_run, capsys),
        *("--overrides", " training.max_steps=50\n\ntraining.seed=7 "),
        *("--epochs", "2", "--output", str(kept)),
    )
    assert outputs["overrides"].splitlines() == [
        "training.max_steps=50",
        "training.seed=7",
        "training.epochs=2",
    ]
    assert json.loads(kept.read_text()) == json.loads(outputs["plan"])
    assert "run_number<<" in (job / "output").read_text()
    assert (job / "summary").read_text().startswith("### Plan: smoke-llama on gpu-runner")


def test_it_says_what_does_not_seem_to_fit_and_lets_the_machine_decide(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_INSTANCE_TYPE", "g6.xlarge")
    config = str(ROOT / "configs" / "training_configuration.yaml")
    assert plan_run.main(["--config", config]) == 0
    told = capsys.readouterr()
    assert "::warning::It seems not to fit" in told.err
    assert "does not fit on one L4" in told.out


def test_every_problem_of_a_configuration_is_shown_at_its_line(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = job / "wrong.yaml"
    wrong.write_text(f'extends: {SMOKE}\ntraining:\n  max_step: 3\n  learning_rate: "5e-5"\n')
    code = command.exit_code_of(lambda: plan_run.main(["--config", str(wrong)]))
    told = capsys.readouterr().err
    assert code == 2
    assert f"::error file={wrong},line=3::training.max_step: unknown key; did you mean max_steps?" in told
    assert f"::error file={wrong},line=4::training.learning_rate" in told
    assert "2 errors. Nothing was started." in (job / "summary").read_text()
    assert not (job / "output").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--target", "eks"], "target: 'eks' is neither gpu-runner nor codebuild"),
        (["--epochs", "many"], "epochs: 'many'"),
        (["--continues", "{}"], "continues: is not what"),
        (["--resume", "s3://x"], "resume: 's3://x'"),
    ],
)
def test_a_wrong_input_is_named(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    code = command.exit_code_of(lambda: plan_run.main(["--config", SMOKE, *arguments]))
    assert code == 2
    assert f"::error::{named}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("deadline", "named"),
    [
        ("soon", "TRAINYARD_DEADLINE: 'soon' is not a duration"),
        ("0s", "TRAINYARD_DEADLINE: '0s' is not a duration"),
        ("8h", "TRAINYARD_DEADLINE: 8h is too late: the job ends at 480 minutes"),
        ("471m", "TRAINYARD_DEADLINE: 471m is too late"),
    ],
)
def test_a_deadline_that_the_job_does_not_live_to_is_refused(
    plan_run: Any,
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    deadline: str,
    named: str,
) -> None:
    monkeypatch.setenv("TRAINYARD_DEADLINE", deadline)
    code = command.exit_code_of(lambda: plan_run.main(["--config", SMOKE]))
    assert (code, named in capsys.readouterr().err) == (2, True)
    monkeypatch.setenv("TRAINYARD_DEADLINE", "470m")
    assert command.exit_code_of(lambda: plan_run.main(["--config", SMOKE])) == 0


def test_tried_by_hand_it_needs_no_workflow(
    plan_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINYARD_STORE", "file:///tmp/store")
    assert planned(plan_run, capsys)["run_id"] == "gh-1"
