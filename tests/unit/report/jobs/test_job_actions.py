"""The outputs of a job for later jobs of a workflow, and a summary that names the failure."""

from tests.cases import each_case
from tests.unit.jobs import plans
from tests.unit.report.jobs.test_job_text import FAILURE, state

from trainyard.errors import ExitCode
from trainyard.jobs.state.job_state import State
from trainyard.report.jobs.job_actions import (
    plan_markdown,
    plan_outputs,
    state_error,
    state_markdown,
    state_outputs,
)


def test_later_jobs_find_the_job_by_the_outputs_of_its_plan() -> None:
    plan = plans.plan(nodes=4, kind="trainjob").to_json()
    assert plan_outputs(plan, store="s3://ml") == {
        "job": "llama",
        "kind": "trainjob",
        "namespace": "team",
        "image": plans.IMAGE,
        "store": "s3://ml",
    }


def test_the_summary_of_a_plan_says_what_is_sent_and_what_would_not_be_proven() -> None:
    whole = plan_markdown(plans.plan(nodes=4, queue="research").to_json(), store="s3://ml")
    for words in ("4 on p5.48xlarge, 8 GPUs each, 32 EFA", "| 32 (8 per pod) |", "claim `fsx`", "research"):
        assert words in whole
    bare = plan_markdown(plans.plan("compute.strategy=single", gpus_per_node=0, claim="").to_json(), store="")
    assert "no GPU" in bare
    assert "nothing is stored, and nothing is proven" in bare
    assert "the pod's own disk" in bare


@each_case("which", State)
def test_only_an_end_is_told_as_one(which: State) -> None:
    found = state(which)
    data, code = found.record(), found.exit_code
    outputs = state_outputs(data, exit_code=code)
    assert (outputs["status"], outputs["ended"]) == (which.value, "true" if found.ended else "false")
    assert outputs["exit_code"] == str(int(code))
    assert (state_error(data, exit_code=code) is not None) == (which in (State.FAILED, State.UNKNOWN))
    assert code is not ExitCode.DONE or which is State.SUCCEEDED


def test_the_summary_of_a_failure_has_its_place_its_lines_and_the_next_command() -> None:
    text = state_markdown(state(State.FAILED).record())
    assert text.startswith("### ❌ Failed: pytorchjob `llama`")
    assert "class **oom-host**, rank 1, exit code 137, pod job-worker-0, node gpu-3" in text
    assert "~~~~~~\nstep 41\nKilled\n~~~~~~" in text
    assert "Next: `trainyard job logs llama" in text
    assert FAILURE.evidence[0] not in text.splitlines()[0]
    assert state_markdown(state(State.RUNNING).record()).startswith("### ⏳ Running")
    assert state_markdown(state(State.SUCCEEDED).record()).startswith("### ✅ Succeeded")
