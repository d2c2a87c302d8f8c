"""Write the command lines that are suggested to people, ready to paste into a shell.

Every suggestion takes its text from here. Nothing is run.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMMAND = re.compile(r"(?:[^ ]*/|'[^']*/)?trainyard'? \w")
_OF_A_CLUSTER = re.compile(r"\b(kubectl|trainyard cluster \w+)(?= )")


@dataclass(frozen=True)
class ClusterTarget:
    """The options that name a cluster, and a kind of job there, as given; empty if not given."""

    kubeconfig: str = ""
    context: str = ""
    cluster: str = ""
    region: str = ""
    namespace: str = ""
    kind: str = ""

    def command(self, name: str, *words: str, namespace: str = "") -> str:
        """Return the command `trainyard NAME WORDS` for this cluster, quoted for a shell."""
        place = namespace or self.namespace
        named = ("kind", "kubeconfig", "context", "cluster", "region")
        options = [*(["--namespace", place] if place else []), *self._options(named)]
        return trainyard_command(shlex.join([*name.split(), *words, *options]))

    def in_text(self, text: str) -> str:
        """Return `text` with these options in its commands for kubectl and `trainyard cluster`.

        kubectl takes no name of an AWS cluster, and its commands already have the namespace that they need.
        """

        def extended(found: re.Match[str]) -> str:
            ours = found[0] != "kubectl"
            names = ("kubeconfig", "context", *(("cluster", "region", "namespace") if ours else ()))
            return " ".join([found[0], *map(shlex.quote, self._options(names))])

        return _OF_A_CLUSTER.sub(extended, text)

    def _options(self, names: Sequence[str]) -> list[str]:
        options = []
        for name in names:
            value = getattr(self, name)
            if value:  # argparse takes a value that begins with - only in one word
                options += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
        return options


DEFAULT_CLUSTER = ClusterTarget()
"""The cluster that a script takes if no option names one."""


def trainyard_command(words: str) -> str:
    """Return the command `trainyard WORDS`, by its path if the shell does not find this `trainyard`.

    What a job of GitHub suggests is read on another machine, which has no such path.
    """
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return f"trainyard {words}"
    ours = Path(sys.executable).parent / "trainyard"
    # `make train` puts its environment on PATH, but only for its own processes.
    found = None if "MAKELEVEL" in os.environ else shutil.which("trainyard")
    active = os.environ.get("VIRTUAL_ENV")
    is_active = active and Path(active).resolve() == Path(sys.prefix).resolve()
    if sys.prefix == sys.base_prefix or is_active or (found and Path(found).resolve() == ours.resolve()):
        return f"trainyard {words}"
    return f"{shlex.quote(str(from_here(ours)))} {words}"


def is_command(text: str) -> bool:
    """Return whether `text` is a call of trainyard, and not a sentence."""
    return _COMMAND.match(text) is not None


def made_by(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return `trainyard run` and its options if that started this process; otherwise an empty list."""
    words = shlex.split(environment.get("TRAINYARD_COMMAND_LINE", ""))
    return words if words[:2] == ["trainyard", "run"] else []


def resume_command(directory: Path, *, command_line: Sequence[str] = ()) -> str:
    """Return the command that resumes a run from its newest checkpoint that verifies.

    A run that a pipeline started (`made_by`) resumes with the pipeline, which also stores and proves it.
    """
    if command_line:
        return trainyard_command(shlex.join(["run", "--run-dir", str(directory), *command_line[2:]]))
    return f"{again_command(directory)} --run-dir {shlex.quote(str(directory))} --resume auto"


def changed_command(
    directory: Path,
    changes: Mapping[str, Any],
    *,
    checkpoint: Path | None = None,
    command_line: Sequence[str] = (),
) -> str:
    """Return the command that trains the run's configuration with `changes`, as a new run.

    The new run starts from `checkpoint`.
    """
    settings = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in changes.items()]
    words = [word for setting in settings for word in ("--set", setting)]
    words += [] if checkpoint is None else ["--resume", str(from_here(checkpoint))]
    command, config = "run" if command_line else "train", str(from_here(directory / "config.yaml"))
    return trainyard_command(shlex.join([command, "--config", config, *words, *command_line[2:]]))


def again_command(directory: Path, *, command_line: Sequence[str] = ()) -> str:
    """Return the command that trains the run's configuration again, as a new run.

    With `command_line` (`made_by`) it is that pipeline, so that the new run is stored and proven too.
    """
    return changed_command(directory, {}, command_line=command_line)


def sync_command(directory: Path | str, *, store: str, run_number: int | None) -> str:
    """Return the command that stores the run as `run_number`; None: the number it has, else a free one."""
    flags = f"--run-dir {shlex.quote(str(directory))} --store {shlex.quote(store)}"
    return trainyard_command(f"store sync {flags} --run-number {run_number or 'auto'} --once")


def from_here(path: Path) -> Path:
    """Return `path` relative to the working directory if it lies inside, else unchanged."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path
