"""`step plan`, the job that plans a workflow run: its outputs, its summary, and its refusals."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.scripts.conftest import ROOT

from trainyard.command import handler
from trainyard.commands import step_plan
from trainyard.config.registries import EVERY_RECIPE

SMOKE = str(ROOT / "configs" / "smoke.yaml")
LABELS = {"TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]'}
STORE = {"TRAINYARD_STORE": "s3://ml-runs/phase2"}
VARIABLES = {"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "4711", "GITHUB_RUN_NUMBER": "812", **LABELS, **STORE}
VARIABLES |= {"GITHUB_REF_NAME": "main", "GITHUB_EVENT_NAME": "workflow_dispatch"}
VARIABLES["GITHUB_SHA"] = "0123456789abcdef0123456789abcdef01234567"
PROJECT = {"TRAINYARD_CODEBUILD_PROJECT": "yard"}
STATES: dict[str, dict[str, str]] = {
    "none": {},
    "labels": LABELS,
    "store": STORE,
    "labels and store": LABELS | STORE,
    "project": PROJECT,
    "project and store": PROJECT | STORE,
    "everything": LABELS | PROJECT | STORE,
    "broken labels": {"TRAINYARD_RUNNER_LABELS": '["gpu"'} | STORE,
    "broken labels alone": {"TRAINYARD_RUNNER_LABELS": "[]"},
    "broken store": LABELS | {"TRAINYARD_STORE": "ml-runs"},
    "broken store alone": {"TRAINYARD_STORE": "s3://"},
    "broken project": {"TRAINYARD_CODEBUILD_PROJECT": "a b"} | STORE,
}
UNSET: dict[str, str | None] = dict.fromkeys({**LABELS, **STORE, **PROJECT})
CONTINUES = json.dumps(
    {"lineage": "4711", "number": 2, "run_number": 812, "commit": VARIABLES["GITHUB_SHA"], "step": 9}
    | {"outages": 0, "thread": "", "name": "", "inputs": {"set": "training.max_steps=7"}}
)
TRIGGERS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "push": ({"GITHUB_EVENT_NAME": "push"}, {}),
    "schedule": ({"GITHUB_EVENT_NAME": "schedule"}, {}),
    "second attempt of a push": ({"GITHUB_EVENT_NAME": "push", "GITHUB_RUN_ATTEMPT": "2"}, {}),
    "dispatch": ({}, {"runner": "gpu-runner"}),
    "dispatch to codebuild": ({}, {"runner": "codebuild"}),
    "dry run": ({}, {"runner": "gpu-runner", "dry_run": "true"}),
    "dry run for codebuild": ({}, {"runner": "codebuild", "dry_run": True}),
    "next segment": ({}, {"runner": "gpu-runner", "continues": CONTINUES}),
    "next segment on codebuild": ({}, {"runner": "codebuild", "continues": CONTINUES}),
}


@dataclass(frozen=True)
class Planned:
    """The end of one call: its exit code, and what it wrote."""

    code: int
    out: str
    err: str
    summary: str
    """Of the job."""
    written: str
    """The step outputs; empty if there are none."""

    @property
    def outputs(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def job_plan(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.written.splitlines()[1])
        assert "trains<<" in self.written
        return found


Plan = Callable[..., Planned]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Calls the step as a workflow does; keywords are variables, None for one that is not set."""
    for name in (*VARIABLES, "GITHUB_RUN_ATTEMPT", "CONTAINER", "GITHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(step_plan, "github_from", lambda: None)
    monkeypatch.setattr(step_plan, "make_tag", lambda *_: "")
    event = tmp_path / "event.json"

    def run(
        *, config: str = SMOKE, inputs: Mapping[str, Any] | None = None, **variables: str | None
    ) -> Planned:
        """`inputs` are those of the dispatch, as the event has them."""
        named = {"config": config} if config else {}
        event.write_text(json.dumps({"inputs": {**named, **(inputs or {})}}))
        files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for file in files.values():
            file.write_text("")
        with monkeypatch.context() as patch:
            for name, value in {"GITHUB_EVENT_PATH": event, **VARIABLES, **files, **variables}.items():
                if value is not None:
                    patch.setenv(name, str(value))
            code = handler.exit_code_of(lambda: step_plan.main(["--json"]))
        printed = capsys.readouterr()
        texts = [file.read_text() for file in files.values()]
        return Planned(code, printed.out, printed.err, *texts)

    return run


def test_it_resolves_inputs_into_outputs_and_a_summary(plan: Plan) -> None:
    changes = ["training.max_steps=50", "training.seed=7", "evaluation.command=[e,--api-key,eight888]"]
    done = plan(inputs={"set": f" {changes[0]}\n\n{changes[1]}\n{changes[2]} ", "epochs": "2"})
    assert done.outputs["overrides"].splitlines() == [*changes, "training.epochs=2"]
    assert done.job_plan["run_number"] == "812"
    assert done.summary.startswith("### Plan: smoke-llama on gpu-runner") and "eight888" not in done.summary


def test_a_dispatch_without_values_follows_the_variables(plan: Plan) -> None:
    on = yaml.safe_load((ROOT / ".github/workflows/training_ci.yml").read_text())[True]
    defaults = {name: each.get("default", "") for name, each in on["workflow_dispatch"]["inputs"].items()}
    known = {"TRAINYARD_CONFIG": SMOKE, "TRAINYARD_RUNNER_LABELS": None, **PROJECT}
    outputs = plan(inputs=defaults, config="", **known).outputs
    assert (outputs["config"], outputs["target"]) == (SMOKE, "codebuild")


def test_the_inputs_of_a_dispatch_replace_those_of_its_workflow_which_replace_the_variables(
    plan: Plan,
) -> None:
    own = {"store": "s3://own", "config": SMOKE, "set": "training.seed=1", "runner": "gpu", "role": ""}
    given = json.dumps(own | {"container": "a/b", "name": ""})
    outputs = plan(config="", INPUTS=given, TRAINYARD_STORE="s3://bucket ").outputs
    used = (outputs["store"], outputs["overrides"], outputs["queue"])
    assert used == ("s3://own", "training.seed=1", "trainyard-gpu")
    dispatch = {"set": "training.seed=2", "epochs": "3", "dry_run": True, "runner": "as set up"}
    outputs = plan(config="", INPUTS=given, inputs=dispatch).outputs
    assert (outputs["trains"], outputs["overrides"]) == (False, "training.seed=2\ntraining.epochs=3")
    assert plan(TRAINYARD_STORE="s3://bucket ").outputs["store"] == "s3://bucket", "typed with a blank"
    refused = plan(config="", INPUTS="[]")
    assert refused.code == 2 and "INPUTS" in refused.err


def test_a_later_segment_has_the_inputs_of_the_first_and_runs_its_commit_only(plan: Plan) -> None:
    done = plan(inputs={"continues": CONTINUES, "set": ""})
    assert (done.outputs["overrides"], done.outputs["segment"]) == ("training.max_steps=7", "2")
    other = CONTINUES.replace(VARIABLES["GITHUB_SHA"], "f" * 40)
    refused = plan(inputs={"continues": other})
    assert refused.code == 2
    assert "Only the workflow itself continues a run, on the tag trainyard-lineage-4711" in refused.err
    named = plan(INPUTS='{"name": "seed-2"}', inputs={"continues": CONTINUES})
    assert (named.code, "continues another call" in named.err, named.job_plan["trains"]) == (0, True, False)


def test_what_may_not_be_tagged_has_one_segment_and_says_so_before(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GITHUB_TOKEN may not tag a commit whose workflow files differ from those of the default branch."""
    monkeypatch.setattr(step_plan, "make_tag", lambda *_: "403 Resource not accessible by integration")
    done = plan()
    assert (done.outputs["most_segments"], done.job_plan["plan"]["most_segments"]) == ("1", 1)
    assert "::warning title=One segment only::" in done.err
    assert "403 Resource not accessible" in done.err
    assert plan(inputs={"dry_run": True}).outputs["most_segments"] == "20", "nothing is tagged"


@each_case("card", ["g6.xlarge", "g5.xlarge", "p5.4xlarge"])
@each_case("event", ["push", "schedule", "workflow_dispatch"])
def test_what_does_not_seem_to_fit_is_reported_and_the_machine_decides(
    plan: Plan, event: str, card: str
) -> None:
    """Of a push and the daily run the default can be changed."""
    config = str(ROOT / "configs" / "training_configuration.yaml")
    done = plan(config=config, GITHUB_EVENT_NAME=event, TRAINYARD_INSTANCE_TYPE=card)
    is_small = card != "p5.4xlarge"  # all but the H100 have less than 40 GB
    assert (done.code, "::warning::The run seems not to fit" in done.err) == (0, is_small)
    assert ("does not fit on one" in done.summary) is is_small
    assert ("gh variable set TRAINYARD_CONFIG" in done.err) is (is_small and event != "workflow_dispatch")


@each_case("attempt", ["1", "2"])
@each_case("continues", ["", CONTINUES])
@each_case("event", ["push", "schedule", "workflow_dispatch", "merge_group"])
def test_only_a_first_push_or_daily_run_is_left_out_where_it_is_proven(
    plan: Plan, event: str, continues: str, attempt: str
) -> None:
    done = plan(inputs={"continues": continues}, GITHUB_EVENT_NAME=event, GITHUB_RUN_ATTEMPT=attempt)
    is_unasked = event in ("push", "schedule") and not continues and attempt == "1"
    assert done.outputs["unless_proven"] == ("true" if is_unasked else "false")


@each_case(
    ("minutes", "deadline", "result"),
    [
        *((text, "", "TRAINYARD_JOB_MINUTES: ") for text in ("six", "0", "59", "481", "1.5", "-355")),
        *((None, text, f"TRAINYARD_DEADLINE: '{text}' is not a duration") for text in ("soon", "0s")),
        (None, "8h", "TRAINYARD_DEADLINE: 8h is too late: the job ends at 480 minutes"),
        (None, "471m", "TRAINYARD_DEADLINE: 471m is too late"),
        *(("355", text, f"{text} is too late: the job ends at 355 minutes") for text in ("346m", "450m")),
        *((None, "470m", 470), ("355", "345m", 345), ("60", None, 30)),
    ],
)
def test_a_deadline_leaves_ten_minutes_of_the_limit(
    plan: Plan, minutes: str | None, deadline: str | None, result: str | int
) -> None:
    done = plan(TRAINYARD_JOB_MINUTES=minutes, TRAINYARD_DEADLINE=deadline)
    if isinstance(result, int):
        assert done.outputs["deadline"] == f"{result}m"
    else:
        assert done.code == 2 and result in done.err


def test_every_problem_of_a_configuration_is_shown_at_its_line(plan: Plan, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(f'extends: {SMOKE}\ntraining:\n  max_step: 3\n  learning_rate: "5e-5"\n')
    done = plan(config=str(wrong))
    assert (done.code, done.written) == (2, "")
    assert f"::error file={wrong},line=3::training.max_step: unknown key; did you mean max_steps?" in done.err
    assert f"::error file={wrong},line=4::training.learning_rate" in done.err
    assert "2 errors. Nothing was started." in done.summary


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


@each_case("state", STATES)
@each_case("trigger", TRIGGERS)
def test_what_every_trigger_comes_to_in_every_state_of_the_variables(
    plan: Plan, trigger: str, state: str
) -> None:
    event, arguments = TRIGGERS[trigger]
    expected = rule(trigger, STATES[state])
    done = plan(inputs=arguments, **{**UNSET, **event, **STATES[state]})
    assert done.code == expected.exit_code
    set_up = re.findall(r"^gh variable set (\w+) --body \S+$", done.summary, re.M)
    assert set_up == list(expected.commands)
    if done.code == 2:
        assert "::error::" in done.err
        assert "### ❌ N" in done.summary
        assert done.written == ""
        return
    outputs = done.outputs
    assert outputs["trains"] is expected.trains
    is_dry, is_quiet = "dry run" in trigger, expected.trains or "dry run" in trigger
    assert ("::notice::Nothing was trained" in done.err) is not is_quiet
    assert done.summary.startswith("### Nothing was trained: " if not is_quiet else "### ")
    assert ("Nothing was started." in done.summary) is is_dry
    if expected.trains:
        runner = ["ubuntu-24.04"] if expected.on_codebuild else ["self-hosted", "gpu"]
        assert done.job_plan["runner"] == runner
        assert outputs["store"] == "s3://ml-runs/phase2"


def test_a_refusal_says_how_to_set_all_up(plan: Plan) -> None:
    refused = plan(inputs={"runner": "gpu-runner"}, TRAINYARD_RUNNER_LABELS=None)
    assert refused.code == 2
    assert "PYTHONPATH=src python3 -m trainyard init github --store URL" in refused.err


TARGETS = {
    "gpu-runner": LABELS,
    "codebuild": PROJECT,
    "eks": {"TRAINYARD_EKS_CLUSTER": "ml", "TRAINYARD_EKS_ROLE": "arn:aws:iam::123456789012:role/eks"},
}
FITTING: dict[str, list[str]] = {
    "torchtitan": ["program.preset=llama3.llama3_8b"],
    "command": ["program.command=[python,train.py]"],
}
"""Recipe -> the settings that its configuration needs besides its name."""


@each_case("event", ["push", "schedule", "workflow_dispatch", "dry run"])
@each_case("recipe", EVERY_RECIPE)
@each_case("target", TARGETS)
def test_every_target_runs_every_recipe(plan: Plan, target: str, recipe: str, event: str) -> None:
    variables = {**UNSET, **STORE, **TARGETS[target]}
    inputs = {"dry_run": True, "runner": target} if event == "dry run" else {}
    inputs |= {"runner": target} if event == "workflow_dispatch" else {}
    event = "workflow_dispatch" if event == "dry run" else event
    changes = " ".join([f"recipe={recipe}", *FITTING.get(recipe, [])])
    done = plan(inputs={"set": changes, **inputs}, **variables, GITHUB_EVENT_NAME=event)
    assert done.outputs["target"] == target
