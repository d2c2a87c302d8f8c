"""The GitHub runner that runs this job: its version, and whether its machine goes with the job.

GitHub sets no variable with the version. The runner's folder is found by the process Runner.Worker, which
started the job, or else by the workspace inside it; a container of a job may see neither.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainyard.gateways.process import run_program

_SECONDS = 10


def runner_version(
    family: Sequence[int], environment: Mapping[str, str] = os.environ, *, proc: Path = Path("/proc")
) -> str | None:
    """Return the version, such as `2.331.0`; None on GitHub's own machines and where it is not known.

    `family` are the processes that started this one.

    After an update the version is in a folder's name. Otherwise the runner prints it.
    """
    if (
        environment.get("GITHUB_ACTIONS") != "true"
        or environment.get("RUNNER_ENVIRONMENT") == "github-hosted"
    ):
        return None
    for programs in _program_folders(family, environment, proc):
        if found := re.fullmatch(r"bin\.(\d+\.\d+\.\d+)", programs.resolve().name, re.ASCII):
            return found[1]
        done = run_program([str(programs / "Runner.Listener"), "--version"], seconds=_SECONDS)
        if done.ok and re.fullmatch(r"\d+\.\d+\.\d+", done.stdout.strip(), re.ASCII):
            return done.stdout.strip()
    return None


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
