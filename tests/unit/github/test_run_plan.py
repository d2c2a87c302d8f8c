"""The values that a workflow run resolves for all later jobs, and when another segment follows."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.config.load import load_config
from trainyard.config.schema import Config
from trainyard.errors import ConfigError, ExitCode
from trainyard.github.continuation import SegmentEnd, next_segment
from trainyard.github.run_plan import DispatchInputs, RunPlan, overrides_in, plan_on, resolve, usd_per_hour
from trainyard.github.target import Target
from trainyard.report.plan.plan_text import read_plan
from trainyard.report.plan.run_plan_summary import RunPreview, markdown_plan, summarize_expectations
from trainyard.run.segment import Segment, manifest_place, read_continues, read_handover

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIRST = Segment("4711", 1, 812, COMMIT)
LABELS = {"TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]'}
STORE = {"TRAINYARD_STORE": "s3://ml-runs/phase2/", **LABELS}
MANIFEST = "s3://ml-runs/phase2/manifests/run-812-manifest-2.json"


@pytest.fixture(scope="module")
def smoke() -> Config:
    return load_config(ROOT / "configs" / "smoke.yaml").config


def plan_run(config: Config, segment: Segment = FIRST, variables: Any = STORE, **asked: Any) -> RunPlan:
    return resolve(DispatchInputs("configs/smoke.yaml", **asked), config, segment, variables=variables)


def test_a_push_asks_for_nothing_and_gets_everything(smoke: Config) -> None:
    outputs = plan_run(smoke).job_plan()
    assert outputs["trains"] is True
    assert outputs["run_id"] == "gh-4711"
    assert outputs["run_dir"] == "runs/gh-4711"
    assert outputs["run_number"] == "812"
    assert outputs["store"] == "s3://ml-runs/phase2"
    assert (outputs["resume"], outputs["fetch"]) == ("auto", "false")
    assert outputs["commit"] == COMMIT


def test_the_epochs_are_one_more_change_after_the_others(smoke: Config) -> None:
    outputs = plan_run(smoke, overrides=("training.seed=7",), epochs="3").job_plan()
    assert outputs["overrides"] == "training.seed=7\ntraining.epochs=3"
    for wrong in ("0", "1.5", "three", "-1", "٣"):
        with pytest.raises(ConfigError, match="epochs"):
            plan_run(smoke, epochs=wrong)
            _ = DispatchInputs("x", epochs=wrong).changes


def test_what_is_not_told_is_named_with_the_command_that_tells_it(smoke: Config) -> None:
    fresh = plan_run(smoke, variables={"GITHUB_EVENT_NAME": "push"})
    assert [(each.what, each.command) for each in fresh.missing_settings] == [
        ("where to train", """gh variable set TRAINYARD_RUNNER_LABELS --body '["self-hosted","gpu"]'"""),
        ("where to store", "gh variable set TRAINYARD_STORE --body s3://BUCKET/PREFIX"),
    ]
    assert (fresh.trains, fresh.is_refused) == (False, False)
    planned = fresh.job_plan()
    assert (planned["trains"], planned["store"], planned["runner"]) == (False, "", "none")
    codebuild = plan_run(smoke, variables={}, target=Target.CODEBUILD)
    assert [each.variable for each in codebuild.missing_settings] == [
        "TRAINYARD_CODEBUILD_PROJECT",
        "TRAINYARD_STORE",
    ]
    cluster = plan_run(smoke, variables={}, target=Target.EKS)
    names = ["TRAINYARD_EKS_CLUSTER", "TRAINYARD_EKS_ROLE", "TRAINYARD_STORE"]
    assert [each.variable for each in cluster.missing_settings] == names


def test_a_second_attempt_goes_on_whatever_the_first_one_was_told(smoke: Config) -> None:
    again = plan_run(smoke, variables=STORE | {"GITHUB_RUN_ATTEMPT": "2"}, resume="none").job_plan()
    assert (again["resume"], again["fetch"]) == ("auto", "true")
    assert plan_run(smoke, resume="none").job_plan()["resume"] == "none"
    assert plan_run(smoke, resume="runs/x/checkpoints/step-00000010").job_plan()["fetch"] == "false"


def test_a_manifest_begins_a_run_from_that_runs_checkpoint(smoke: Config) -> None:
    assert plan_run(smoke, resume=MANIFEST).job_plan()["fetch"] == "true"
    place = manifest_place(MANIFEST)
    assert place is not None
    assert (place.store, place.run_number) == ("s3://ml-runs/phase2", 812)
    for wrong in ("s3://ml-runs/phase2", "https://example.org/manifests/run-1-manifest.json", "file://"):
        with pytest.raises(ConfigError, match="is not a manifest of a run"):
            plan_run(smoke, resume=wrong)


def test_what_the_next_segment_needs_is_read_back(smoke: Config) -> None:
    plan = plan_run(
        smoke,
        variables=STORE | {"GITHUB_REF_NAME": "main", "TRAINYARD_MAX_SEGMENTS": "3"},
        target=Target.GPU_RUNNER,
        overrides=("a.b=1", "c=2"),
        epochs="2",
    )
    handover = read_handover(json.dumps(plan.job_plan()))
    assert (handover.segment, handover.most_segments) == (FIRST, 3)
    following = handover.segment.next(step=5).with_thread("C0123:1732140000.000100")
    given = handover.inputs_of(following, manifest="run-812-manifest.json")
    assert given.keys() == {"continues"}, "a workflow need not have other inputs"
    segment, inputs = read_continues(given["continues"])
    assert (segment, inputs["set"], inputs["epochs"]) == (following, "a.b=1\nc=2", "2")
    assert inputs["resume"] == "s3://ml-runs/phase2/manifests/run-812-manifest.json"
    assert read_continues(handover.inputs_of(following)["continues"])[1]["resume"] == "auto"
    for wrong in ("", "[]", "{}", json.dumps(plan.to_json()).replace(COMMIT, "main")):
        with pytest.raises(ConfigError, match="plan"):
            read_handover(wrong)


def about_to_start(config: Config, plan: RunPlan, **more: Any) -> RunPreview:
    figures = plan_on(plan.machine, config)
    facts = {"parameters": 803_968, "config_sha256": "77d0" * 16, **vars(figures), **more}
    names = {"target": str(plan.dispatch.target), "labels": plan.machine.labels, "model": config.model.name}
    return RunPreview(plan.job_plan(), **(names | facts))


def summary(config: Config, plan: RunPlan, **more: Any) -> str:
    return markdown_plan(about_to_start(config, plan, **more))


def test_slack_is_told_the_time_and_the_cost_that_the_plan_expects(smoke: Config) -> None:
    known = plan_run(smoke, variables=STORE | {"TRAINYARD_INSTANCE_TYPE": "g6.xlarge"})
    by_catalogue = read_plan(summarize_expectations(about_to_start(smoke, known)))["estimate"]
    assert by_catalogue["seconds"] > 0 and by_catalogue["usd"] > 0
    by_owner = read_plan(summarize_expectations(about_to_start(smoke, known, usd_per_hour=2.5)))["estimate"]
    assert by_owner["usd"] == pytest.approx(by_owner["seconds"] / 3600 * 2.5)
    assert read_plan(summarize_expectations(about_to_start(smoke, plan_run(smoke)))) == {
        "model": "smoke-llama",
        "steps": smoke.training.max_steps,
        "estimate": {},
    }


def test_the_summary_shows_the_cost_by_the_catalogue_or_by_the_owner(smoke: Config) -> None:
    known = plan_run(smoke, variables=STORE | {"TRAINYARD_INSTANCE_TYPE": "g6.xlarge"})
    text = summary(smoke, known)
    assert text.startswith("### Plan: smoke-llama on gpu-runner\n")
    assert "| length | at most " in text and " g6.xlarge at $ " in text, "in the words of the plan"
    assert "smoke-llama fits on one L4" in text
    assert "at $ 2.50 an hour (TRAINYARD\\_USD\\_PER\\_HOUR)" in summary(
        smoke, known, usd_per_hour=2.5
    ).replace("(TRAINYARD_USD_PER_HOUR)", "(TRAINYARD\\_USD\\_PER\\_HOUR)")


def test_the_summary_of_another_program_shows_its_command_and_no_model_of_ours(smoke: Config) -> None:
    given = smoke.to_plain() | {"recipe": "command"}
    given["program"] |= {"command": ["python", "train.py"], "steps": 60}
    config = Config.model_validate(given)
    text = summary(config, plan_run(config), model="python train.py", parameters=None)
    assert text.startswith("### Plan: `python train.py` on gpu-runner\n")
    assert "| program | `python train.py` |" in text and "| length | at most 60 steps |" in text
    assert config.model.name not in text and "parameters" not in text


def test_the_summary_says_what_is_not_known(smoke: Config) -> None:
    text = summary(
        smoke, plan_run(smoke, overrides=("training.seed=7", "data.train_path=a|b`c"), dry_run=True)
    )
    assert text.startswith("### Dry run: smoke-llama on gpu-runner\n")
    assert "TRAINYARD_INSTANCE_TYPE is not set" in text.replace("\\_", "_")
    assert "| cost | not known" in text
    assert "`data.train_path=a¦b'c`" in text
    assert text.endswith("Nothing was started.\n")


def test_how_a_run_begins_is_said(smoke: Config) -> None:
    assert "at step 0 |" in summary(smoke, plan_run(smoke, resume="none"))
    assert f"from `{MANIFEST}`" in summary(smoke, plan_run(smoke, resume=MANIFEST))
    later = summary(smoke, plan_run(smoke, FIRST.next(step=9)))
    assert "segment 2 of at most 20" in later
    assert "where the previous segment ended" in later


def test_a_price_is_an_amount() -> None:
    assert usd_per_hour("") is None
    assert usd_per_hour("1.25") == 1.25
    for wrong in ("free", "-1", "nan", "inf"):
        with pytest.raises(ConfigError, match="TRAINYARD_USD_PER_HOUR"):
            usd_per_hour(wrong)


@each_case(
    ("text", "words"),
    [
        ("", []),
        (" \n ", []),
        ("a.b=1 c.d=2\ne.f=3", ["a.b=1", "c.d=2", "e.f=3"]),
        ('model.name="my model" a=1', ['model.name="my model"', "a=1"]),
        ("model.name='my model' a=1", ["model.name='my model'", "a=1"]),
        ('"model.name=my model" a=1', ['model.name="my model"', "a=1"]),
        ('"a.b=1" c=2', ["a.b=1", "c=2"]),
        ('trainer.logger=["console", "wandb"]', ['trainer.logger=["console",', '"wandb"]']),
        ("model.name=don't a=that's", ["model.name=don't", "a=that's"]),
        ('model.name="half a=1', ['model.name="half', "a=1"]),
        ('a="it\'s here"', ['a="it\'s here"']),
        ("a=ünï b=1", ["a=ünï", "b=1"]),
    ],
)
def test_the_overrides_of_a_dispatch_keep_their_spaces_in_quotes(text: str, words: list[str]) -> None:
    assert list(overrides_in(text)) == words
    again = DispatchInputs("c.yaml", overrides_in(text)).inputs()["set"]
    assert list(overrides_in(again)) == words


def test_a_queue_is_one_set_of_labels_of_one_runner_and_a_next_segment_has_its_own(smoke: Config) -> None:
    def queue(segment: Segment = FIRST, **variables: str) -> str:
        return str(plan_run(smoke, segment, STORE | variables).job_plan()["queue"])

    assert queue() == "trainyard-gpu-self-hosted"
    assert queue(TRAINYARD_RUNNER_LABELS='["GPU","self-hosted"]') == queue(), "order and case do not count"
    assert queue(TRAINYARD_RUNNER_LABELS='["h100"]') == "trainyard-h100"
    assert queue(FIRST.next(step=9)) == f"{queue()}-next"
    spread = {
        queue(Segment(str(number), 1, number, COMMIT), TRAINYARD_RUNNERS="2") for number in range(1, 20)
    }
    assert len(spread) == 19, "the runners are the queue: none is idle while a job waits"


def test_calls_of_one_workflow_are_runs_of_their_own_and_one_is_continued(smoke: Config) -> None:
    named = Segment("4711", 1, 812, COMMIT, name="seed-1")
    plans = [
        resolve(DispatchInputs("x"), smoke, named, name=name, variables=STORE)
        for name in ("seed-1", "seed-2")
    ]
    assert [plan.trains for plan in plans] == [True, False]
    planned = plans[0].job_plan()
    assert (planned["run_id"], planned["title"], planned["run_number"]) == (
        "gh-4711-seed-1",
        "812 seed-1",
        "auto",
    )
    assert named.tag == "trainyard-lineage-4711-seed-1"


@each_case(
    ("text", "container"),
    [
        ("", ""),
        (" a/b:1 ", "a/b:1"),
        ('{"image": "a", "options": "--gpus all"}', {"image": "a", "options": "--gpus all"}),
    ],
)
def test_a_container_is_an_image_or_what_github_takes(smoke: Config, text: str, container: Any) -> None:
    assert plan_run(smoke, variables=STORE | {"CONTAINER": text}).job_plan()["container"] == container
    with pytest.raises(ConfigError, match="container"):
        plan_run(smoke, variables=STORE | {"CONTAINER": "{image}"})


def test_a_hosted_machine_has_less_time(smoke: Config) -> None:
    hosted = STORE | {"TRAINYARD_RUNNER_LABELS": '["ubuntu-24.04"]'}
    assert (plan_run(smoke).job_minutes, plan_run(smoke, variables=hosted).job_minutes) == (480, 355)


def test_a_later_segment_looks_into_the_store_and_says_why_it_is_there(smoke: Config) -> None:
    outputs = plan_run(smoke, FIRST.next(step=9), resume=MANIFEST).job_plan()
    assert (outputs["segment"], outputs["fetch"], outputs["resume"]) == ("2", "true", MANIFEST)
    assert outputs["reason"] == "the time limit of a job"
    assert outputs["run_dir"] == "runs/gh-4711"


SECOND = Segment("4711", 2, 812, "0123456789abcdef0123456789abcdef01234567", step=100)


@each_case(
    ("changes", "most", "step", "reason"),
    [
        ({}, 5, 250, "segment 2 stopped at step 250"),
        ({}, 3, 250, "segment 2 stopped at step 250"),
        ({}, 2, None, "is the last of 2"),
        *(({"exit_code": code}, 5, None, f"exit code {code}") for code in (0, 1, 2, 3, 137)),
        *(({"step": step}, 5, None, "made no progress") for step in (100, 99)),
        ({"stored": False}, 5, None, "not in the store"),
        ({"step": None}, 5, None, "not in the store"),
        # A job on a cluster that outlives the segment is followed by the next one.
        ({"is_running": True, "step": None, "stored": False}, 5, 100, "a job that still trains"),
        ({"is_running": True, "step": None, "stored": False}, 2, None, "is the last of 2"),
    ],
)
def test_a_segment_is_followed_if_it_stopped_with_progress_that_is_stored(
    changes: dict[str, Any], most: int, step: int | None, reason: str
) -> None:
    end = {"exit_code": int(ExitCode.STOPPED), "step": 250, "stored": True, **changes}
    decision = next_segment(SegmentEnd(SECOND, **end), most=most)
    assert reason in decision.reason
    assert decision.next == (None if step is None else SECOND.next(step=step))
