"""Judge which other processes are on the GPUs before a training starts. Pure: the processes are passed in.

Another process is named and never refused: it may be a training of another repository, for which this one
waits (TRAINYARD_GPU_LOCK), or one that is ending. Nothing is killed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.plan.finding import Finding, Severity
from trainyard.run.sizes import format_size

VARIABLES = {
    "TRAINYARD_RUN_ID": "run",
    "GITHUB_RUN_ID": "GitHub run",
    "GITHUB_REPOSITORY": "repository",
    "RUNNER_NAME": "runner",
}
"""The variables that show which job started a process, in words; no other is read, as they may be secret."""
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
    environment: Mapping[str, str] = field(default_factory=dict)
    """Those of VARIABLES that it has and that may be read."""


def judge_gpu_processes(processes: Sequence[GpuProcess]) -> Iterator[Finding]:
    """Yield a finding that names the processes."""
    if not processes:
        return
    named = [
        f"pid {each.pid} ({_short(each.command)}), {_memory(each)}, {whose(each)}"
        for each in processes[:_SHOWN]
    ]
    more = len(processes) - _SHOWN
    what = "another process is" if len(processes) == 1 else f"{len(processes)} other processes are"
    pids = " ".join(str(each.pid) for each in processes[:_SHOWN])
    yield Finding(
        "gpu processes",
        Severity.WARNING,
        f"{what} on the GPU: {'; '.join(named)}{f'; and {more} more' if more > 0 else ''}",
        f"if nobody needs it: kill {pids}; trainings of several repositories wait for each other with "
        "TRAINYARD_GPU_LOCK",
    )


def whose(process: GpuProcess) -> str:
    """Return who started a process: the run and the runner that its environment names, or its user."""
    theirs = process.environment
    named = [f"{word} {theirs[name]}" for name, word in VARIABLES.items() if theirs.get(name)]
    if named:
        return f"of {', '.join(named)}"
    return f"of user {process.user}" if process.user else "of another container or user"


def _memory(process: GpuProcess) -> str:
    return "unknown memory" if process.memory_bytes is None else format_size(process.memory_bytes)


def _short(command: str) -> str:
    return command if len(command) <= _COMMAND else f"{command[: _COMMAND - 1]}…"
