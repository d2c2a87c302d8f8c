"""One step of the set-up: what was found, what follows from it, and what a person has to do.

Values only. The rules that make them are in the modules beside this one; `setup` puts them into their order.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainyard.errors import ExitCode


class Verdict(StrEnum):
    """How a step stands."""

    OK = "ok"
    """Read from GitHub, and as it should be."""
    CHANGE = "change"
    """The changes of the step make it so. Never the last word: a change ends as one of the others."""
    DONE = "done"
    """Changed now, and read back."""
    WOULD = "would do"
    """A dry run: the changes were not made."""
    OPTIONAL = "optional"
    """Not needed, and not asked for."""
    YOU = "you"
    """Only a person can do it; the step says how."""
    WAITS = "waits"
    """Another step comes first."""
    REFUSED = "refused"
    """GitHub refused, or took it and did not keep it."""
    UNREACHED = "not reached"
    """GitHub could not be asked any more."""


@dataclass(frozen=True)
class Change:
    """One call that changes something on GitHub."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def command_line(self, host: str, repository: str) -> str:  # noqa: ARG002 - the path names the repository
        """The same as a command for a shell."""
        given = f" --input - <<< {shlex.quote(json.dumps(self.body))}" if self.body else ""
        return f"{on_host(host)}gh api --method {self.method} {self.path}{given}"


@dataclass(frozen=True)
class SecretChange:
    """A secret that `gh secret set` sets; the value is never here."""

    name: str
    environment: str
    """Empty for a secret of the repository."""

    def place(self, host: str, repository: str) -> list[str]:
        """What names repository and environment on the command line of `gh`."""
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
    """A command, or a page to open, for a person."""

    where: str
    """`here`, `on the GPU machine` or `in the browser`."""
    command: str
    note: str = ""
    """What to know before it is used."""


@dataclass(frozen=True)
class Step:
    """One row of the set-up."""

    name: str
    verdict: Verdict
    text: str
    """What was found, and compared with what."""
    changes: tuple[Change | SecretChange, ...] = ()
    overwrites: bool = False
    """The changes replace what somebody chose: it is shown and agreed to first."""
    todo: tuple[Todo, ...] = field(default=())


def on_host(host: str) -> str:
    """What stands before a command of `gh` that is for another host than github.com."""
    return "" if host == "github.com" else f"GH_HOST={host} "


def named_repository(host: str, repository: str) -> str:
    """The repository as `gh --repo` takes it."""
    return repository if host == "github.com" else f"{host}/{repository}"


def exit_code(steps: Iterable[Step]) -> ExitCode:
    """0 when every step was checked, 1 when things remain, 4 when GitHub refused or could not be reached."""
    verdicts = {step.verdict for step in steps}
    if verdicts & {Verdict.REFUSED, Verdict.UNREACHED}:
        return ExitCode.REFUSED
    remain = {Verdict.CHANGE, Verdict.WOULD, Verdict.YOU, Verdict.WAITS}
    return ExitCode.NO if verdicts & remain else ExitCode.DONE
