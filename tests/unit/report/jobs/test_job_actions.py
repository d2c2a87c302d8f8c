"""The outputs of a job for later jobs of a workflow, and a summary that names the failure."""

from tests.cases import each_case
from tests.unit.report.jobs.test_job_text import FAILURE, state

from trainyard.errors import ExitCode
from trainyard.jobs.state.job_state import State
from trainyard.report.jobs.job_actions import state_error, state_markdown, state_outputs


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
