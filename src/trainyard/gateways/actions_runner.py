"""The GitHub runner that runs this job: whether its machine goes with the job.

The runner's folder is found by the process Runner.Worker, which started the job, or else by the workspace
inside it; a container of a job may see neither.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def lost_machine(
    family: Sequence[int], environment: Mapping[str, str] = os.environ, *, proc: Path = Path("/proc")
) -> str:
    """Return what the machine of this job is if it, and its disk, goes with the job; empty if it stays.

    `.runner` is the file of the runner's own registration.
    """
    if environment.get("GITHUB_ACTIONS") != "true":
        return ""
    if environment.get("RUNNER_ENVIRONMENT") == "github-hosted":
        return "a machine of GitHub"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "a pod"
    for programs in _program_folders(family, environment, proc):
        try:
            registration = json.loads((programs.parent / ".runner").read_text(encoding="utf-8-sig"))
        except (OSError, ValueError):
            continue
        if str(registration.get("ephemeral") or registration.get("Ephemeral")).lower() == "true":
            return "an ephemeral runner"
    return ""


def _program_folders(family: Sequence[int], environment: Mapping[str, str], proc: Path) -> Iterator[Path]:
    """Yield the folders that may hold the runner's programs."""
    for pid in family:
        try:
            program = (proc / str(pid) / "exe").readlink()
        except OSError:
            continue
        if program.name == "Runner.Worker":
            yield program.parent
    if workspace := environment.get("RUNNER_WORKSPACE"):
        root = Path(workspace).parent.parent  # _work/REPOSITORY
        if (root / "bin" / "Runner.Listener").exists():
            yield root / "bin"
