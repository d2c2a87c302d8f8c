"""The workflows that train on a cluster: which job runs after which results, and what it gets."""

import json
from itertools import product
from typing import Any

import pytest
import yaml
from tests.workflows.conftest import ROOT, Shipped, read

from trainyard.commands import step_eks
from trainyard.github.cluster_job import POLL, WORKFLOW

RESULTS = ("success", "failure", "cancelled", "skipped")
JOBS = ["plan", "send", "watch", "prove", "report"]


@pytest.fixture(scope="module")
def eks() -> Shipped:
    return read(ROOT / ".github" / "workflows" / WORKFLOW)


@pytest.fixture(scope="module")
def poll() -> Shipped:
    return read(ROOT / ".github" / "workflows" / POLL)


def test_the_file_is_short_and_each_step_is_one_command_that_its_parser_takes(
    eks: Shipped, poll: Shipped
) -> None:
    assert len(eks.text.splitlines()) <= 250
    found = []
    for step in [*eks.steps(), *poll.steps()]:
        if "run" in step:
            program, *name, action = step["run"].removeprefix("exec ").split()[:4]
            words = step["run"].removeprefix("exec ").split()[3:]
            assert (program, name) == (".venv/bin/trainyard", ["step", "eks"]), (step["name"], action)
            assert step["run"].startswith("exec "), "a cancellation has to reach Python"
            given = [word.strip('"').replace("$TIMEOUT", "10m") for word in words]
            found.append(step_eks.parse_args(given).command)
    assert found == list(step_eks.COMMANDS)


def test_no_value_is_chosen_by_an_expression(eks: Shipped, poll: Shipped) -> None:
    """`a && b || c` chooses between two values; a default (`a || b`) and a condition of a job do not."""
    for shipped in (eks, poll):
        for line in shipped.text.splitlines():
            if "${{" in line and not line.strip().startswith("if:"):
                assert not ("&&" in line and "||" in line), line


def test_the_jobs_are_in_the_order_of_a_deployment(eks: Shipped) -> None:
    assert list(eks.jobs) == JOBS
    for number, name in enumerate(JOBS):
        needs = eks.jobs[name].get("needs", [])
        assert ([needs] if isinstance(needs, str) else needs) == JOBS[:number]


def test_a_dispatch_and_a_call_take_the_same_inputs(eks: Shipped) -> None:
    on = eks.content["on"]
    dispatched, called = on["workflow_dispatch"]["inputs"], on["workflow_call"]["inputs"]
    assert set(dispatched) == set(called)
    for name, each in called.items():
        first = dispatched[name].get("options", [""])[0]  # GitHub's default of a choice
        assert each.get("default", "") == dispatched[name].get("default", first), name


def jobs_that_run(eks: Shipped, expressions: Any, inputs: dict[str, Any], results: dict[str, str]) -> Any:
    """Return the jobs that run with these results, and GitHub's context `needs` after the last one.

    GitHub skips a job whose needs failed or were skipped unless its condition has a status function.
    """
    needs: dict[str, Any] = {}
    ran = []
    for name in JOBS:
        before = [needs[each]["result"] for each in JOBS[: JOBS.index(name)]]
        status = "failure" if "failure" in before else "success"
        condition = eks.jobs[name].get("if", "")
        runs = expressions.holds(condition, status=status, needs=needs, inputs=inputs)
        if not any(f"{word}()" in condition for word in ("always", "cancelled", "failure")):
            runs = runs and set(before) <= {"success"}
        ran += [name] if runs else []
        ended = {"ended": results.get("ended", "")} if name == "watch" and runs else {}
        needs[name] = {"result": results.get(name, "success") if runs else "skipped", "outputs": ended}
    return ran, needs


@pytest.mark.parametrize("ended", ["true", "false", ""])
@pytest.mark.parametrize("first", [True, False])
def test_which_jobs_run_after_which_results(eks: Shipped, expressions: Any, first: bool, ended: str) -> None:
    """Each result of each job; only a run that saw a good end is proven, and every run reports."""
    inputs = {"plan": "" if first else '{"job": "gh-1"}', "dry_run": False}
    for plan, send, watch in product(RESULTS[:3], repeat=3):
        results = {"plan": plan, "send": send, "watch": watch, "ended": ended}
        ran, _ = jobs_that_run(eks, expressions, inputs, results)
        expected = ["plan"] if first else []
        expected += ["send"] if first and plan == "success" else []
        # A job whose sending was cancelled may have been sent.
        watched = not first or (plan != "failure" and send != "failure")
        expected += ["watch"] if watched else []
        expected += ["prove"] if watched and watch != "failure" and ended == "true" else []
        if "cancelled" not in (plan, send):
            assert ran == [*expected, "report"], results


def test_a_dry_run_plans_and_does_nothing_else(eks: Shipped, expressions: Any) -> None:
    ran, _ = jobs_that_run(eks, expressions, {"plan": None, "dry_run": True}, {})
    assert ran == ["plan"]


def test_a_cancelled_run_starts_nothing_but_its_report(eks: Shipped, expressions: Any) -> None:
    needs = {name: {"result": "success", "outputs": {"ended": "true"}} for name in JOBS}
    context = {"needs": needs, "inputs": {"plan": "", "dry_run": False}}
    runs = [n for n in JOBS[2:] if expressions.holds(eks.jobs[n]["if"], status="cancelled", **context)]
    assert runs == ["report"]


@pytest.mark.parametrize(
    ("given", "sent", "plan"),
    [("", "sent", "sent"), ("given", "", "given"), ("given", None, "given"), ("", "", "")],
)
def test_later_jobs_get_the_plan_that_was_sent_or_given(
    eks: Shipped, expressions: Any, given: str, sent: str | None, plan: str
) -> None:
    context = {"inputs": {"plan": given}, "needs": {"send": {"outputs": {"plan": sent}}}}
    for name in ("watch", "prove", "report"):
        assert (expressions.value(eks.jobs[name]["env"]["TRAINYARD_PLAN"], **context) or "") == plan
    assert eks.jobs["send"]["env"]["TRAINYARD_PLAN"] == "${{ needs.plan.outputs.plan }}"


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (None, ["ubuntu-24.04"]),
        ("", ["ubuntu-24.04"]),
        ('["self-hosted","vpc"]', ["self-hosted", "vpc"]),
        ('"arc-set"', "arc-set"),
        ('{"group":"vpc"}', {"group": "vpc"}),
    ],
)
def test_what_talks_to_the_cluster_runs_where_the_repository_says(
    eks: Shipped, poll: Shipped, expressions: Any, value: str | None, labels: Any
) -> None:
    variables = {} if value is None else {"TRAINYARD_EKS_RUNNER": value}
    for job in [*(eks.jobs[name] for name in JOBS[:-1]), poll.jobs["poll"]]:
        assert expressions.value(job["runs-on"], vars=variables) == labels
    assert eks.jobs["report"]["runs-on"] == "ubuntu-24.04", "a runner that is away does not hide how it ended"


def test_the_role_and_its_region_come_from_variables_and_no_action_assumes_it(
    eks: Shipped, poll: Shipped, expressions: Any
) -> None:
    given = poll.jobs["poll"]["steps"][-1]["env"]
    for variables, region in (({"TRAINYARD_AWS_REGION": "eu-west-1"}, "eu-west-1"), ({}, "us-east-1")):
        variables = {**variables, "TRAINYARD_EKS_ROLE": "arn"}
        for env in (eks.content["env"], given):
            assert expressions.value(env["TRAINYARD_AWS_ROLE"], vars=variables) == "arn"
            assert expressions.value(env["TRAINYARD_AWS_REGION"], vars=variables) == region
    for shipped in (eks, poll):
        assert "configure-aws-credentials" not in shipped.text
        for job in shipped.jobs.values():
            needs_aws = job["runs-on"] != "ubuntu-24.04"
            assert ("id-token" in job["permissions"]) is needs_aws


@pytest.mark.parametrize(("posted", "known"), [("true", "2"), ("", "")])
def test_the_caller_knows_whether_the_end_was_reported(
    eks: Shipped, expressions: Any, posted: str, known: str
) -> None:
    context = {"steps": {"report": {"outputs": {"posted": posted}}}, "github": {"run_attempt": "2"}}
    assert expressions.value(eks.jobs["report"]["outputs"]["reported"], **context) == known


def test_copies_never_decide_a_run(eks: Shipped) -> None:
    for step in eks.steps():
        if "artifact@" in step.get("uses", ""):
            assert step["continue-on-error"] == "true", step["name"]
        elif step["name"] in ("Check and plan", "Send", "Watch", "Prove", "Report"):
            assert "continue-on-error" not in step, step["name"]


def test_the_polls_run_where_there_is_a_cluster_and_never_at_the_full_hour(
    poll: Shipped, expressions: Any
) -> None:
    for name, runs in (("gpus", True), ("", False)):
        assert expressions.holds(poll.jobs["poll"]["if"], vars={"TRAINYARD_EKS_CLUSTER": name}) is runs
    assert "schedule" not in poll.content["on"], "a copy without a cluster polls nothing"
    content = yaml.load(poll.text.replace("\n  # schedule:", "\n  schedule:"), Loader=yaml.BaseLoader)
    [schedule] = content["on"]["schedule"]
    assert "0" not in schedule["cron"].split()[0].split(",")


def test_the_environments_of_the_jobs_are_those_that_the_setup_makes(eks: Shipped, poll: Shipped) -> None:
    for shipped in (eks, poll):
        content = yaml.safe_load(shipped.text)
        assert {json.dumps(job["environment"]) for job in content["jobs"].values()} == {
            '{"name": "eks", "deployment": false}'
        }
