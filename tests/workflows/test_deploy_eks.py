"""The workflow that sends a job to a cluster: who watches next, what decides its colour, what it hands on."""

import json
from typing import Any

import pytest
import yaml
from tests.workflows.conftest import ROOT, Shipped, read

from trainyard.command.arguments import duration as seconds_of
from trainyard.github.target import PLACES

TAKES_UP = json.dumps(
    {"job": "gh-1", "kind": "rayjob", "namespace": "team", "store": "s3://ml", "thread": "C1:1.1", "watch": 7}
)
PLANNED = {"outputs": {"job": "gh-9", "kind": "pytorchjob", "namespace": "default", "store": "s3://b"}}


@pytest.fixture(scope="module")
def eks() -> Shipped:
    return read(ROOT / ".github" / "workflows" / "deploy_eks.yml")


def step_called(job: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in job["steps"] if step["name"] == name)
    return found


def test_the_jobs_are_in_the_order_of_a_deployment(eks: Shipped) -> None:
    names = [
        "preflight",
        "plan",
        "submit",
        "watch",
        "watch_again",
        "continue",
        "collect",
        "publish",
        "report",
    ]
    assert list(eks.jobs) == names
    for number, name in enumerate(names):
        needs = eks.jobs[name].get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(names[:number])


def test_a_step_is_one_call_and_python_gets_the_signals(eks: Shipped) -> None:
    for step in eks.steps():
        if "run" in step:
            assert step["run"].count("scripts/") == 1, step["name"]
            assert "exec " in step["run"], step["name"]


def test_a_dispatch_and_a_call_take_the_same_inputs(eks: Shipped) -> None:
    on = eks.content["on"]
    dispatched, called = on["workflow_dispatch"]["inputs"], on["workflow_call"]["inputs"]
    assert set(dispatched) == set(called)
    assert {name: each["default"] for name, each in dispatched.items()} == {
        name: each["default"] for name, each in called.items()
    }


def test_what_was_planned_is_sent(eks: Shipped) -> None:
    plan, submit = (step_called(eks.jobs["plan"], "Plan"), step_called(eks.jobs["submit"], "Send the job"))
    for name in ("CLUSTER", "CONFIG", "OVERRIDES", "NODES", "GPUS", "INSTANCE_TYPE"):
        assert plan["env"][name] == submit["env"][name]
    for name in ("JOB", "KIND", "NAMESPACE", "IMAGE", "STORE"):
        assert submit["env"][name] == f"${{{{ needs.plan.outputs.{name.lower()} }}}}"
    assert "--dry-run" in plan["run"]
    assert "--dry-run" not in submit["run"]


def test_a_watch_and_the_one_that_takes_it_up_do_the_same_and_send_nothing(eks: Shipped) -> None:
    watch, again = eks.jobs["watch"], eks.jobs["watch_again"]
    assert (watch["steps"], watch["env"]) == (again["steps"], again["env"])
    for job in (watch, again):
        assert job["continue-on-error"] == "true"
    following = [
        step["run"] for name in ("watch", "collect") for step in eks.jobs[name]["steps"] if "run" in step
    ]
    assert all("manage_training_job.py" in run for run in following)
    assert not any(word in run for run in following for word in ("deploy_training", " cancel", " delete"))


def test_a_watch_fits_into_its_credentials_and_its_job(eks: Shipped) -> None:
    steps = eks.jobs["watch"]["steps"]
    role = next(step for step in steps if "configure-aws-credentials" in step.get("uses", ""))
    assert role["with"]["role-duration-seconds"] == "${{ vars.TRAINYARD_EKS_SESSION || 3600 }}"
    timeout = step_called(eks.jobs["watch"], "Watch the job")["env"]["TIMEOUT"]
    assert timeout == "${{ vars.TRAINYARD_EKS_WATCH || '50m' }}"
    assert seconds_of("50m") + 300 < 3600
    assert int(eks.jobs["watch"]["timeout-minutes"]) < 360


@pytest.mark.parametrize(
    ("takes_up", "sent", "first", "second", "runs"),
    [
        ("", "success", {"ended": "true"}, {}, ["watch", "collect"]),
        ("", "success", {}, {"ended": "true"}, ["watch", "watch_again", "collect"]),
        ("", "success", {"ended": "false"}, {"ended": "true"}, ["watch", "watch_again", "collect"]),
        ("", "success", {}, {}, ["watch", "watch_again", "continue"]),
        ("", "success", {"ended": "false"}, {"ended": "false"}, ["watch", "watch_again", "continue"]),
        ("", "failure", {}, {}, []),
        ("", "skipped", {}, {}, []),
        (TAKES_UP, "skipped", {"ended": "true"}, {}, ["watch", "collect"]),
        (TAKES_UP, "skipped", {}, {}, ["watch", "watch_again", "continue"]),
    ],
)
def test_a_watch_that_did_not_see_the_end_is_taken_up(
    eks: Shipped,
    expressions: Any,
    takes_up: str,
    sent: str,
    first: dict[str, str],
    second: dict[str, str],
    runs: list[str],
) -> None:
    """A runner that is lost leaves no outputs, whatever the result of its job is."""
    needs: dict[str, Any] = {"plan": PLANNED, "submit": {"result": sent}}
    needs["watch"] = {"result": "failure" if not first else "success", "outputs": first}
    needs["watch_again"] = {"result": "skipped" if not second else "failure", "outputs": second}
    context = {"inputs": {"takes_up": takes_up}, "needs": needs}
    names = ("watch", "watch_again", "continue", "collect")
    for status in ("success", "failure"):
        found = [n for n in names if expressions.holds(eks.jobs[n]["if"], status=status, **context)]
        assert found == runs
    cancelled = [n for n in names if expressions.holds(eks.jobs[n]["if"], status="cancelled", **context)]
    assert cancelled == []


def test_a_watch_of_its_own_knows_the_job_without_sending_it(eks: Shipped, expressions: Any) -> None:
    for takes_up, job, watch in ((TAKES_UP, "gh-1", 7), ("", "gh-9", 1)):
        context = {"inputs": {"takes_up": takes_up}, "needs": {"plan": PLANNED}}
        assert expressions.value(eks.jobs["watch"]["env"]["JOB"], **context) == job
        assert expressions.value(eks.jobs["publish"]["env"]["JOB"], **context) == job
        given = step_called(eks.jobs["continue"], "Dispatch the next watch")["env"]
        assert expressions.value(given["WATCH"], **context) == watch
    assert not expressions.holds(eks.jobs["preflight"]["if"], inputs={"takes_up": TAKES_UP})
    assert expressions.holds(eks.jobs["preflight"]["if"], inputs={"takes_up": ""})
    name = eks.content["run-name"]
    assert expressions.value(name, inputs={"takes_up": TAKES_UP}) == "watch 7 of gh-1"
    assert expressions.value(name, inputs={"takes_up": ""}) == ""


def test_only_a_run_that_succeeded_on_the_cluster_is_proven_from_outside(
    eks: Shipped, expressions: Any
) -> None:
    for result, published in (("success", True), ("failure", False), ("skipped", False)):
        needs = {"collect": {"result": result}}
        assert expressions.holds(eks.jobs["publish"]["if"], needs=needs) is published
    steps = [step["name"] for step in eks.jobs["publish"]["steps"]]
    assert steps.index("Prove the run") < steps.index("Attest the manifest")
    assert not any("continue-on-error" in step_called(eks.jobs["publish"], n) for n in ("Prove the run",))


@pytest.mark.parametrize(
    ("results", "outputs", "moment"),
    [
        ({"publish": "success"}, {}, "succeeded"),
        ({"collect": "failure"}, {"collect": {"exit_code": "75"}}, "stopped"),
        ({"collect": "failure"}, {"collect": {"exit_code": "1"}}, "failed"),
        ({"publish": "failure"}, {}, "failed"),
        ({}, {}, "failed"),
    ],
)
def test_slack_hears_the_end_as_an_event(
    eks: Shipped, expressions: Any, results: dict[str, str], outputs: dict[str, Any], moment: str
) -> None:
    """The reason comes from `needs`: test_job_ends.py."""
    needs: dict[str, Any] = {
        name: {"result": results.get(name, "skipped"), "outputs": outputs.get(name, {})}
        for name in eks.jobs["report"]["needs"]
    }
    told = step_called(eks.jobs["report"], "Tell Slack")["env"]
    context = {"needs": needs, "inputs": {"takes_up": ""}, "github": {"run_id": "99"}}
    assert expressions.value(told["MOMENT"], **context) == moment


@pytest.mark.parametrize(
    ("reported", "dispatched", "known"), [("2", "", "2"), ("", "true", "2"), ("", "", ""), ("", "false", "")]
)
def test_the_caller_knows_whether_the_end_was_reported_or_the_watch_handed_over(
    eks: Shipped, expressions: Any, reported: str, dispatched: str, known: str
) -> None:
    value = eks.content["on"]["workflow_call"]["outputs"]["reported"]["value"]
    jobs = {
        "report": {"outputs": {"reported": reported}},
        "continue": {"outputs": {"dispatched": dispatched}},
    }
    assert expressions.value(value, jobs=jobs, github={"run_attempt": "2"}) == known
    for outcome, posted, told in (
        ("success", "true", "2"),
        ("success", "", ""),  # Slack did not answer
        ("failure", "", ""),
        ("skipped", "", ""),
    ):
        step = {"outcome": outcome, "outputs": {"posted": posted}}
        context = {"steps": {"told": step}, "github": {"run_attempt": "2"}}
        assert expressions.value(eks.jobs["report"]["outputs"]["reported"], **context) == told


def test_a_watch_that_was_handed_over_tells_nobody_that_it_failed(eks: Shipped, expressions: Any) -> None:
    for dispatched, dry, tells in (("true", False, False), ("", False, True), ("", True, False)):
        context = {
            "needs": {"continue": {"outputs": {"dispatched": dispatched}}},
            "inputs": {"dry_run": dry},
        }
        assert expressions.holds(eks.jobs["report"]["if"], status="failure", **context) is tells


@pytest.mark.parametrize("target", PLACES)
def test_one_target_of_the_training_workflow_runs(training: Any, expressions: Any, target: str) -> None:
    outputs = {"train": "true", "target": str(target), "store": "s3://b"}
    needs = {"plan": {"outputs": outputs}, "ready": {"result": "skipped"}}
    context = {"needs": needs, "vars": {"TRAINYARD_AWS_ROLE": "arn"}}
    names = ("ready", "train", "eks")
    found = [n for n in names if expressions.holds(training.jobs[n]["if"], **context)]
    assert found == (["eks"] if target == "eks" else ["ready", "train"])
    given = training.jobs["eks"]["with"]
    assert given == {name: f"${{{{ needs.plan.outputs.{name} }}}}" for name in ("config", "overrides")}


def test_the_environments_of_the_jobs_are_those_that_the_setup_makes(eks: Shipped) -> None:
    content = yaml.safe_load(eks.text)
    names = {job["environment"]["name"] for job in content["jobs"].values() if "environment" in job}
    assert names == {"eks"}
