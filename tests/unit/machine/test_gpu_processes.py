"""The findings on other processes on the GPU, for each kind of owner."""

import pytest
from tests.cases import each_case

from trainyard.machine.gpu_processes import GpuProcess, judge_gpu_processes, whose
from trainyard.plan.finding import Severity

OWNERS = {
    "a workflow run": (
        {"RUNNER_NAME": "gpu-1", "GITHUB_RUN_ID": "4", "GITHUB_REPOSITORY": "me/other"},
        "of GitHub run 4, repository me/other, runner gpu-1",
    ),
    "make train": ({"TRAINYARD_RUN_ID": "20261126-1", "RUNNER_NAME": ""}, "of run 20261126-1"),
}


@pytest.mark.parametrize(("theirs", "said"), OWNERS.values(), ids=OWNERS)
def test_a_process_is_of_the_job_that_its_environment_names(theirs: dict[str, str], said: str) -> None:
    assert whose(GpuProcess(7, "python", 1, "runner", theirs)) == said


def test_otherwise_it_is_of_its_user() -> None:
    users = {"ada": "of user ada", "": "of another container or user"}
    assert {user: whose(GpuProcess(7, "python", 1, user)) for user in users} == users


@each_case("memory", [None, 1978 << 20])
@each_case("count", [1, 2, 5, 6])
def test_each_is_named_with_pid_command_and_memory(count: int, memory: int | None) -> None:
    processes = [GpuProcess(100 + n, f"python train.py {'x' * 200 * n}", memory) for n in range(count)]
    (finding,) = judge_gpu_processes(processes)
    assert finding.severity is Severity.WARNING
    assert "pid 100 (python train.py )" in finding.evidence
    assert ("2.1 GB" if memory else "unknown memory") in finding.evidence
    assert ("; and 1 more" in finding.evidence) is (count == 6)
    assert len(finding.evidence) < 1000
    assert "kill 100" in (finding.fix or "")


def test_a_gpu_without_others_gives_no_finding() -> None:
    assert list(judge_gpu_processes([])) == []
