"""The plan job's script: its outputs, its summary, and its refusals."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainyard.command import handler
from trainyard.config.registries import EVERY_RECIPE
from trainyard.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
SMOKE = str(ROOT / "configs" / "smoke.yaml")
VARIABLES = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_RUN_ID": "4711",
    "GITHUB_RUN_NUMBER": "812",
    "GITHUB_SHA": "0123456789abcdef0123456789abcdef01234567",
    "GITHUB_REF_NAME": "main",
    "GITHUB_EVENT_NAME": "workflow_dispatch",
    "TRAINYARD_SCHEDULE": "true",
    "TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]',
    "TRAINYARD_STORE": "s3://ml-runs/phase2",
}
LABELS = {"TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]'}
STORE = {"TRAINYARD_STORE": "s3://ml-runs/phase2"}
PROJECT = {"TRAINYARD_CODEBUILD_PROJECT": "yard"}
STATES: dict[str, dict[str, str]] = {
    "none": {},
    "labels": LABELS,
    "store": STORE,
    "labels and store": LABELS | STORE,
    "project": PROJECT,
    "project and store": PROJECT | STORE,
    "everything": LABELS | PROJECT | STORE,
    "broken labels": {"TRAINYARD_RUNNER_LABELS": "gpu"} | STORE,
    "broken labels alone": {"TRAINYARD_RUNNER_LABELS": "[]"},
    "broken store": LABELS | {"TRAINYARD_STORE": "ml-runs"},
    "broken store alone": {"TRAINYARD_STORE": "s3://"},
    "broken project": {"TRAINYARD_CODEBUILD_PROJECT": "a b"} | STORE,
}
DEADLY = ("TRAINYARD_STORE", "TRAINYARD_RUNNER_LABELS", "TRAINYARD_CODEBUILD_PROJECT")
CONTINUES = (
    '{"lineage":"4711","number":2,"run_number":812,"commit":"'
    + "a" * 40
    + '","step":9,"deaths":0,"outages":0,"thread":""}'
)
TRIGGERS: dict[str, tuple[dict[str, str], list[str]]] = {
    "push": ({"GITHUB_EVENT_NAME": "push"}, []),
    "schedule": ({"GITHUB_EVENT_NAME": "schedule"}, []),
    "second attempt of a push": ({"GITHUB_EVENT_NAME": "push", "GITHUB_RUN_ATTEMPT": "2"}, []),
    "dispatch": ({}, ["--target", "gpu-runner"]),
    "dispatch to codebuild": ({}, ["--target", "codebuild"]),
    "dry run": ({}, ["--target", "gpu-runner", "--only-plan", "true"]),
    "dry run for codebuild": ({}, ["--target", "codebuild", "--only-plan", "true"]),
    "next segment": ({}, ["--target", "gpu-runner", "--continues", CONTINUES]),
    "next segment on codebuild": ({}, ["--target", "codebuild", "--continues", CONTINUES]),
}


@pytest.fixture(scope="module")
def plan_run(load_script: Any) -> Any:
    return load_script("step_plan")


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
        *(
            "--overrides",
            " training.max_steps=50\n\ntraining.seed=7\nevaluation.command=[e,--api-key,eight888] ",
        ),
        *("--epochs", "2", "--output", str(kept)),
    )
    assert outputs["overrides"].splitlines() == [
        "training.max_steps=50",
        "training.seed=7",
        "evaluation.command=[e,--api-key,eight888]",
        "training.epochs=2",
    ]
    assert json.loads(kept.read_text()) == json.loads(outputs["plan"])
    assert json.loads((job / "output").read_text().splitlines()[1])["run_number"] == "812"
    summary = (job / "summary").read_text()
    assert summary.startswith("### Plan: smoke-llama on gpu-runner") and "eight888" not in summary


def test_it_takes_inputs_and_variables_as_github_has_them(
    plan_run: Any, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINYARD_STORE")
    monkeypatch.setenv("TRAINYARD_VARIABLES", json.dumps({"TRAINYARD_STORE": "s3://bucket", "OTHER": "x"}))
    inputs = {"config": SMOKE, "epochs": "3", "dry_run": True, "target": "gpu-runner", "continues": ""}
    assert plan_run.main(["--json", "--inputs", json.dumps(inputs)]) == 0
    outputs = json.loads(capsys.readouterr().out)
    assert (outputs["train"], outputs["overrides"]) == ("false", "training.epochs=3")
    assert (outputs["store"], outputs["config"]) == ("s3://bucket", SMOKE)
    assert "OTHER" not in os.environ
    for wrong in ("[]", "{", "x"):
        with pytest.raises(ConfigError, match="--inputs"):
            plan_run.main(["--inputs", wrong])


@pytest.mark.parametrize("attempt", ["1", "2"])
@pytest.mark.parametrize("schedule", ["", "off", "yes", "on", "true"])
def test_the_daily_run_is_off_until_it_is_turned_on_or_run_again(
    plan_run: Any, job: Path, monkeypatch: pytest.MonkeyPatch, schedule: str, attempt: str
) -> None:
    monkeypatch.setenv("GITHUB_EVENT_NAME", "schedule")
    monkeypatch.setenv("GITHUB_RUN_ATTEMPT", attempt)
    monkeypatch.setenv("TRAINYARD_SCHEDULE", schedule)
    assert plan_run.main(["--config", SMOKE]) == 0
    plan = json.loads((job / "output").read_text().splitlines()[1])
    trains = schedule in ("on", "true") or attempt == "2"
    assert plan["jobs"] == {"ready": False, "train": trains, "eks": False}
    off = "gh variable set TRAINYARD_SCHEDULE --body true" in (job / "summary").read_text()
    assert off is not trains


def test_it_says_what_does_not_seem_to_fit_and_lets_the_machine_decide(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_INSTANCE_TYPE", "g6.xlarge")
    config = str(ROOT / "configs" / "training_configuration.yaml")
    assert plan_run.main(["--config", config]) == 0
    told = capsys.readouterr()
    assert "::warning::The run seems not to fit" in told.err
    assert "TRAINYARD_CONFIG" not in told.err
    assert "does not fit on one L4" in told.out


@pytest.mark.parametrize("card", ["g6.xlarge", "g5.xlarge", "p5.4xlarge"])
@pytest.mark.parametrize("event", ["push", "schedule"])
def test_the_default_of_a_push_on_a_small_card_is_said_to_be_too_large_before_it_runs(
    plan_run: Any,
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    card: str,
) -> None:
    monkeypatch.setenv("TRAINYARD_INSTANCE_TYPE", card)
    monkeypatch.setenv("GITHUB_EVENT_NAME", event)
    config = str(ROOT / "configs" / "training_configuration.yaml")
    assert plan_run.main(["--config", config]) == 0
    said = "gh variable set TRAINYARD_CONFIG" in capsys.readouterr().err
    assert said is (card != "p5.4xlarge"), "all but the H100 have less than 40 GB"


@pytest.mark.parametrize("attempt", ["1", "2"])
@pytest.mark.parametrize("continues", ["", CONTINUES])
@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch", "merge_group"])
def test_only_a_first_push_or_daily_run_is_left_out_where_it_is_proven(
    plan_run: Any,
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    continues: str,
    attempt: str,
) -> None:
    monkeypatch.setenv("GITHUB_EVENT_NAME", event)
    monkeypatch.setenv("GITHUB_RUN_ATTEMPT", attempt)
    outputs = planned(plan_run, capsys, "--continues", continues)
    is_unasked = event in ("push", "schedule") and not continues and attempt == "1"
    assert outputs["unless_proven"] == ("true" if is_unasked else "false")


@pytest.mark.parametrize("text", ["six", "0", "59", "481", "1.5", "-355"])
def test_a_time_limit_that_no_job_has_is_refused(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB_MINUTES", text)
    assert handler.exit_code_of(lambda: plan_run.main(["--config", SMOKE])) == 2
    assert "TRAINYARD_JOB_MINUTES: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("minutes", "deadline", "code"),
    [("355", "345m", 0), ("355", "346m", 2), ("355", "450m", 2), ("60", "", 0), ("", "470m", 0)],
)
def test_a_deadline_leaves_ten_minutes_of_whatever_the_limit_is(
    plan_run: Any,
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    minutes: str,
    deadline: str,
    code: int,
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB_MINUTES", minutes)
    monkeypatch.setenv("TRAINYARD_DEADLINE", deadline)
    assert handler.exit_code_of(lambda: plan_run.main(["--config", SMOKE, "--json"])) == code
    said = capsys.readouterr()
    assert (f"at {minutes} minutes" in said.err) is (code == 2)
    if not deadline:
        assert json.loads(said.out)["deadline"] == "30m"


def test_every_problem_of_a_configuration_is_shown_at_its_line(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = job / "wrong.yaml"
    wrong.write_text(f'extends: {SMOKE}\ntraining:\n  max_step: 3\n  learning_rate: "5e-5"\n')
    code = handler.exit_code_of(lambda: plan_run.main(["--config", str(wrong)]))
    told = capsys.readouterr().err
    assert code == 2
    assert f"::error file={wrong},line=3::training.max_step: unknown key; did you mean max_steps?" in told
    assert f"::error file={wrong},line=4::training.learning_rate" in told
    assert "2 errors. Nothing was started." in (job / "summary").read_text()
    assert not (job / "output").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--target", "slurm"], "target: 'slurm' is neither gpu-runner nor codebuild nor eks"),
        (["--epochs", "many"], "epochs: 'many'"),
        (["--continues", "{}"], "continues: is not the text"),
        (["--resume", "s3://x"], "resume: 's3://x'"),
    ],
)
def test_a_wrong_input_is_named(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    code = handler.exit_code_of(lambda: plan_run.main(["--config", SMOKE, *arguments]))
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
    code = handler.exit_code_of(lambda: plan_run.main(["--config", SMOKE]))
    assert (code, named in capsys.readouterr().err) == (2, True)
    monkeypatch.setenv("TRAINYARD_DEADLINE", "470m")
    assert handler.exit_code_of(lambda: plan_run.main(["--config", SMOKE])) == 0


@dataclass(frozen=True)
class Answer:
    """The result of a plan."""

    exit_code: int
    trains: bool = False
    on_codebuild: bool = False
    commands: tuple[str, ...] = ()
    """The variables for which the answer names commands."""


def rule(trigger: str, variables: dict[str, str]) -> Answer:
    """The expected answer, from the rule in docs/workflows.md and from nothing in the code."""
    asks_for_codebuild = "codebuild" in trigger
    names_a_target = trigger not in ("push", "schedule", "second attempt of a push")
    only_codebuild = "TRAINYARD_CODEBUILD_PROJECT" in variables and "TRAINYARD_RUNNER_LABELS" not in variables
    on_codebuild = asks_for_codebuild if names_a_target else only_codebuild
    place = "TRAINYARD_CODEBUILD_PROJECT" if on_codebuild else "TRAINYARD_RUNNER_LABELS"
    good = {**LABELS, **PROJECT, **STORE}
    if any(variables.get(name, good[name]) != good[name] for name in (place, "TRAINYARD_STORE")):
        return Answer(2)
    missing = tuple(name for name in (place, "TRAINYARD_STORE") if name not in variables)
    if "dry run" in trigger:
        return Answer(0, commands=missing)
    if not missing:
        return Answer(0, trains=True, on_codebuild=on_codebuild)
    return Answer(0 if trigger in ("push", "schedule") else 2, commands=missing)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_what_every_trigger_comes_to_in_every_state_of_the_variables(
    plan_run: Any,
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trigger: str,
    state: str,
) -> None:
    event, arguments = TRIGGERS[trigger]
    for name in DEADLY:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**event, **STATES[state]}.items():
        monkeypatch.setenv(name, value)
    expected = rule(trigger, STATES[state])
    code = handler.exit_code_of(lambda: plan_run.main(["--config", SMOKE, "--json", *arguments]))
    told, summary = capsys.readouterr(), (job / "summary").read_text()
    assert code == expected.exit_code
    set_up = re.findall(r"^gh variable set (\w+) --body \S+$", summary, re.M)
    assert set_up == list(expected.commands)
    if code == 2:
        assert "::error::" in told.err
        assert "### ❌ N" in summary
        assert not (job / "output").exists()
        return
    outputs = json.loads(told.out)
    assert outputs["train"] == ("true" if expected.trains else "false")
    is_dry, is_quiet = "dry run" in trigger, expected.trains or "dry run" in trigger
    assert ("::notice::Nothing was trained" in told.err) is not is_quiet
    assert summary.startswith("### Nothing was trained: " if not is_quiet else "### ")
    assert ("Nothing was started." in summary) is is_dry
    if expected.trains:
        first = json.loads(outputs["runner"])[0]
        assert first.startswith("codebuild-yard-" if expected.on_codebuild else "self-hosted")
        assert outputs["store"] == "s3://ml-runs/phase2"


def test_a_refusal_says_what_to_do_about_codebuild(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatch trains on its target, which is a runner of one's own unless the dispatch names another."""
    monkeypatch.delenv("TRAINYARD_RUNNER_LABELS")
    arguments = ["--config", SMOKE, "--target", "gpu-runner"]
    assert handler.exit_code_of(lambda: plan_run.main(arguments)) == 2
    refused = capsys.readouterr().err
    assert "set TRAINYARD_CODEBUILD_PROJECT instead" in refused
    assert "PYTHONPATH=src python3 -m trainyard init github --store URL" in refused
    monkeypatch.setenv("TRAINYARD_CODEBUILD_PROJECT", "yard")
    assert handler.exit_code_of(lambda: plan_run.main(arguments)) == 2
    assert "gh workflow run training_ci.yml -f target=codebuild" in capsys.readouterr().err


def test_a_build_of_codebuild_is_told_by_its_own_variable(
    plan_run: Any, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name)
    assert handler.exit_code_of(lambda: plan_run.main(["--config", SMOKE, "--target", "here"])) == 2
    refused = capsys.readouterr().err
    assert "export TRAINYARD_STORE=s3://BUCKET/PREFIX" in refused
    assert "gh variable" not in refused
    monkeypatch.setenv("TRAINYARD_STORE", "s3://ml-runs/codebuild")
    assert planned(plan_run, capsys, "--target", "here")["store"] == "s3://ml-runs/codebuild"


def test_tried_by_hand_it_needs_no_workflow(
    plan_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINYARD_STORE", "file:///tmp/store")
    assert planned(plan_run, capsys)["run_id"] == "gh-1"


TARGETS = {
    "gpu-runner": LABELS,
    "codebuild": PROJECT,
    "eks": {"TRAINYARD_EKS_CLUSTER": "ml", "TRAINYARD_EKS_ROLE": "arn:aws:iam::123456789012:role/eks"},
    "here": {},
}
FITTING: dict[str, list[str]] = {
    "torchtitan": ["program.preset=llama3.llama3_8b"],
    "command": ["program.command=[python,train.py]"],
}
"""Recipe -> the settings that its configuration needs besides its name."""


@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch", "dry run"])
@pytest.mark.parametrize("recipe", EVERY_RECIPE)
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_runs_every_recipe(
    plan_run: Any,
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    recipe: str,
    event: str,
) -> None:
    for name in DEADLY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITHUB_EVENT_NAME", event if event != "dry run" else "workflow_dispatch")
    for name, value in {**STORE, **TARGETS[target]}.items():
        monkeypatch.setenv(name, value)
    asked = ["--target", target] if event in ("workflow_dispatch", "dry run") or target == "here" else []
    asked += ["--only-plan", "true"] if event == "dry run" else []
    changes = " ".join([f"recipe={recipe}", *FITTING.get(recipe, [])])
    code = handler.exit_code_of(
        lambda: plan_run.main(["--config", SMOKE, "--overrides", changes, "--json", *asked])
    )
    told = capsys.readouterr()
    assert code == 0, told.err
    assert json.loads(told.out)["target"] == target


def test_a_repository_that_names_no_machine_yet_is_not_refused_for_its_recipe(
    plan_run: Any, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fresh copy stays green: it may be about to name a cluster."""
    monkeypatch.delenv("TRAINYARD_RUNNER_LABELS")
    monkeypatch.setenv("GITHUB_EVENT_NAME", "push")
    asked = ["--config", SMOKE, "--overrides", "recipe=megatron", "--json"]
    assert handler.exit_code_of(lambda: plan_run.main(asked)) == 0
    assert json.loads(capsys.readouterr().out)["train"] == "false"


@pytest.mark.parametrize(
    ("directory", "is_refused"),
    [
        ("", False),
        ("runs", False),
        ("runs/", False),
        ("my_runs/", True),
        ("src", True),
        ("/mnt/storage/runs", False),
    ],
)
def test_a_directory_of_runs_that_git_clean_deletes_is_refused(
    plan_run: Any, job: Path, monkeypatch: pytest.MonkeyPatch, directory: str, is_refused: bool
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TRAINYARD_RUNS_DIRECTORY", directory)
    if not is_refused:
        assert plan_run.main(["--config", SMOKE]) == 0
        return
    with pytest.raises(ConfigError, match=r"TRAINYARD_RUNS_DIRECTORY.*git clean deletes it"):
        plan_run.main(["--config", SMOKE])
    assert "git clean" in (job / "summary").read_text()
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    assert plan_run.main(["--config", SMOKE]) == 0, "nobody cleans on a laptop"
