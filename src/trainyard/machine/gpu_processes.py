"""Judge which other processes are on the GPUs before a training starts. Pure: the processes are passed in.

Another process is named and never refused: it may be a training of another repository, for which this one
waits (TRAINYARD_GPU_LOCK), or one that is ending. Nothing is killed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainyard.machine.preflight import PreflightFinding, PreflightVerdict, format_bytes

VARIABLES = (
    *("TRAINYARD_RUN_ID", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_REPOSITORY", "GITHUB_JOB"),
    *("RUNNER_NAME", "RUNNER_TRACKING_ID"),
)
"""The variables that show which job started a process; no other is read, because others may be secret."""
_SHOWN = 5
_COMMAND = 100


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    command: str
    memory_bytes: int | None
    user: str = ""
    """Its user; empty if it is not known here, as for a process of another container."""
    is_own_user: bool = False
    environment: Mapping[str, str] | None = None
    """Those of VARIABLES that it has; None if they may not be read."""


def judge_gpu_processes(
    processes: Sequence[GpuProcess], here: Mapping[str, str]
) -> Iterator[PreflightFinding]:
    """Yield a finding that names the processes; `here` has the variables of this job."""
    if not processes:
        return
    named = [
        f"pid {each.pid} ({_short(each.command)}), {_memory(each)}, {whose(each, here)}"
        for each in processes[:_SHOWN]
    ]
    more = len(processes) - _SHOWN
    what = "another process is" if len(processes) == 1 else f"{len(processes)} other processes are"
    pids = " ".join(str(each.pid) for each in processes[:_SHOWN])
    yield PreflightFinding(
        "gpu processes",
        PreflightVerdict.DEGRADED,
        f"{what} on the GPU: {'; '.join(named)}{f'; and {more} more' if more > 0 else ''}",
        f"if nobody needs it: kill {pids}; trainings of several repositories wait for each other with "
        "TRAINYARD_GPU_LOCK",
    )


def whose(process: GpuProcess, here: Mapping[str, str]) -> str:
    """Return who started a process: this job, an earlier one of this runner, another runner's, or a user."""
    theirs = process.environment or {}
    job = _job(theirs)
    if theirs.get("RUNNER_TRACKING_ID") and theirs["RUNNER_TRACKING_ID"] == here.get("RUNNER_TRACKING_ID"):
        return "of this job"
    if job and theirs.get("RUNNER_NAME") and theirs["RUNNER_NAME"] == here.get("RUNNER_NAME"):
        return f"left by an earlier job of this runner: {job}"  # a runner has one job at a time
    if job and theirs.get("RUNNER_NAME"):
        return f"of the runner {theirs['RUNNER_NAME']}: {job}"
    if job:
        return f"of {job}"
    if not process.user:
        return "of another container or user"
    return f"of {'this user' if process.is_own_user else 'the user'}, {process.user}"


def _job(variables: Mapping[str, str]) -> str:
    """Return the run of the variables: `run gh-17, GitHub run 17 of owner/name`; empty without one."""
    run, workflow_run = variables.get("TRAINYARD_RUN_ID"), variables.get("GITHUB_RUN_ID")
    repository = variables.get("GITHUB_REPOSITORY")
    parts = [f"run {run}"] if run else []
    if workflow_run:
        parts.append(f"GitHub run {workflow_run}" + (f" of {repository}" if repository else ""))
    return ", ".join(parts) or ("an unknown run" if variables.get("RUNNER_NAME") else "")


def _memory(process: GpuProcess) -> str:
    return "unknown memory" if process.memory_bytes is None else format_bytes(process.memory_bytes)


def _short(command: str) -> str:
    return command if len(command) <= _COMMAND else f"{command[: _COMMAND - 1]}…"
