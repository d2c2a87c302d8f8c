"""One step of the set-up: the present state, the changes to make, and what a person has to do.

It has values only. `rules` makes them, and `setup` puts them in order.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.errors import ExitCode


class SetupVerdict(StrEnum):
    """The state of a step."""

    OK = "ok"
    """Read from GitHub, and correct."""
    CHANGE = "change"
    """The step's changes would make it correct. Never the final verdict: a change ends as another one."""
    DONE = "done"
    """Changed now, and read back."""
    WOULD = "would do"
    """The changes were not made, because this is a dry run."""
    OPTIONAL = "optional"
    """Not needed and not requested."""
    YOU = "you"
    """Only a person can do it; the step says how."""
    WAITS = "waits"
    """Another step must be done first."""
    REFUSED = "refused"
    """GitHub refused the change, or accepted it but did not keep it."""
    UNREACHED = "not reached"
    """GitHub could not be reached any more."""


@dataclass(frozen=True)
class SetupChange:
    """One call that changes something on GitHub."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def command_line(self, host: str, repository: str) -> str:  # noqa: ARG002 - the path names the repository
        """The call as a command for a shell."""
        given = f" --input - <<< {shlex.quote(json.dumps(self.body))}" if self.body else ""
        return f"{on_host(host)}gh api --method {self.method} {self.path}{given}"


@dataclass(frozen=True)
class SecretChange:
    """A secret that `gh secret set` sets; this class never holds its value."""

    name: str
    environment: str
    """Empty for a secret of the repository."""

    def place(self, host: str, repository: str) -> list[str]:
        """The arguments of `gh` that name the repository and the environment."""
        return [
            *(["--env", self.environment] if self.environment else []),
            "--repo",
            named_repository(host, repository),
        ]

    def command_line(self, host: str, repository: str) -> str:
        """The command; `gh` asks for the value."""
        return shlex.join(["gh", "secret", "set", self.name, *self.place(host, repository)])


@dataclass(frozen=True)
class Todo:
    """A command to run or a page to open, for a person."""

    where: str
    """`here`, `on the GPU machine` or `in the browser`."""
    command: str
    note: str = ""
    """A remark to read before that."""


@dataclass(frozen=True)
class SetupStep:
    """One row of the set-up."""

    name: str
    verdict: SetupVerdict
    text: str
    """The state that was found, or its difference from the wanted one."""
    changes: tuple[SetupChange | SecretChange, ...] = ()
    overwrites: bool = False
    """The changes replace a setting that somebody chose, so the person must agree first."""
    todo: tuple[Todo, ...] = ()


def on_host(host: str) -> str:
    """The prefix of a `gh` command: names the host unless it is github.com."""
    return "" if host == "github.com" else f"GH_HOST={host} "


def named_repository(host: str, repository: str) -> str:
    """The repository in the form of `gh --repo`."""
    return repository if host == "github.com" else f"{host}/{repository}"


def exit_code_of_steps(steps: Iterable[SetupStep]) -> ExitCode:
    """0 when every step is checked, 1 when steps remain, 4 when GitHub refused or could not be reached."""
    verdicts = {step.verdict for step in steps}
    if verdicts & {SetupVerdict.REFUSED, SetupVerdict.UNREACHED}:
        return ExitCode.REFUSED
    remain = {SetupVerdict.CHANGE, SetupVerdict.WOULD, SetupVerdict.YOU, SetupVerdict.WAITS}
    return ExitCode.NO if verdicts & remain else ExitCode.DONE
