"""Decide which run a start is of: pure, from the record here, the store's claim, and what was asked for.

    nothing here     the id is free ──> start      it is this run's, elsewhere ──> adopt      else ──> refuse
    a run is here    equal inputs ──> done if it succeeded, else continue
                     other inputs ──> beside: a new run; refuse a finished one in a folder that was named

The inputs of a run are its command, configuration, commit with the state of its tree, lock and data.
docs/what_a_run_owns.md is this table for people.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_SHOWN = 12
"""Characters of a digest that a message shows."""
_MOST_KEYS = 5


class Answer(StrEnum):
    """What a start does."""

    START = "start"
    """Begin a new run here."""
    ADOPT = "adopt"
    """Continue the run that the store has, with its key, as its next attempt."""
    CONTINUE = "continue"
    """Continue the run that is here, as its next attempt."""
    DONE = "done"
    """Train nothing: this run has ended with success."""
    BESIDE = "beside"
    """Begin a new run in a folder beside this one."""
    REFUSE = "refuse"


@dataclass(frozen=True)
class Inputs:
    """What decides the result of a run, as far as it is known."""

    command: str = ""
    """The command in words; empty for the trainer of this repository."""
    command_sha256: str | None = None
    configuration: Mapping[str, Any] | None = None
    """The values that matter for the training, by their dotted keys; None if they are not known."""
    commit: str | None = None
    tree: str | None = None
    """`clean`, else the digest of the difference to the commit; None if it is not known."""
    lock: str | None = None
    data: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 by name of files that git does not track and that the command names, or Python can import."""


@dataclass(frozen=True)
class Recorded:
    """The run that a directory holds."""

    run_id: str
    key: str = ""
    """Empty for a record of before runs had keys."""
    status: str = ""
    """succeeded, failed or stopped; empty for a run without an outcome."""
    exit_code: int | None = None

    @property
    def has_succeeded(self) -> bool:
        """Whether an end with exit code 0 is on record."""
        return self.status == "succeeded" and self.exit_code == 0


@dataclass(frozen=True)
class Situation:
    """The facts that decide what a start does."""

    here: Recorded | None = None
    """The run in the directory."""
    differences: tuple[str, ...] = ()
    """How the inputs differ from those of the run in the directory, in words."""
    stored_key: str | None = None
    """The key to which the id, or the number, belongs in the store; None if it is free."""
    is_fixed: bool = False
    """Whether the folder, or the id, was named by whoever starts, and may not be another one."""
    may_adopt: bool = False
    """Whether this start is known to be of the stored run: `--resume`, a further attempt of the same workflow
    run, the next segment, or a pod that returns."""


def decide(situation: Situation) -> Answer:
    """Return what a start does in a situation."""
    here, stored = situation.here, situation.stored_key
    if here is None:
        if stored is None:
            return Answer.START
        return Answer.ADOPT if situation.may_adopt else Answer.REFUSE
    if situation.differences:
        return Answer.REFUSE if here.has_succeeded and situation.is_fixed else Answer.BESIDE
    if stored is not None and stored != here.key:
        return Answer.REFUSE
    return Answer.DONE if here.has_succeeded else Answer.CONTINUE


def recorded_run(run: Mapping[str, Any]) -> Recorded:
    """Return the run of a `run.json`, as far as it decides a situation."""
    outcome = run.get("outcome", {})
    code = outcome.get("exit_code")
    known = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Recorded(str(run["run_id"]), str(run.get("key", "")), str(outcome.get("status", "")), known)


def inputs_of(facts: Mapping[str, Any]) -> Inputs:
    """Return the inputs in a `run.json`, or in the facts that will be in one, but for the configuration."""
    git, data, program = (facts.get(name) or {} for name in ("git", "data", "program"))
    dirty = git.get("dirty")
    return Inputs(
        command=shlex.join(map(str, program.get("command", ()))),
        command_sha256=facts.get("program_sha256"),
        commit=git.get("commit"),
        tree="clean" if dirty is False else git.get("diff_sha256"),
        lock=facts.get("lock_sha256"),
        data=data.get("fingerprint"),
        files=git.get("files") or {},
    )


def differences(before: Inputs, now: Inputs) -> tuple[str, ...]:
    """Return how the inputs of two starts differ, a text each; empty if they are equal."""
    found = []
    if before.command_sha256 != now.command_sha256:
        found.append(_changed("command", before.command, now.command))
    found += _changed_values(before.configuration, now.configuration)
    if before.commit != now.commit:
        found.append(_changed("commit", _short(before.commit), _short(now.commit)))
    elif before.tree != now.tree:
        found.append(_changed("working tree", _tree(before.tree), _tree(now.tree)))
    # A file that is new since then may be one that the run wrote.
    found += [
        _changed(name, _short(digest), _short(now.files.get(name)))
        for name, digest in sorted(before.files.items())
        if now.files.get(name) != digest
    ][:_MOST_KEYS]
    for name in ("lock", "data"):
        was, is_now = getattr(before, name), getattr(now, name)
        if was != is_now:
            found.append(_changed(name, _short(was), _short(is_now)))
    return tuple(found)


def flat_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat_values(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _changed_values(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    """Return the differences of two configurations; the command is compared by its digest."""
    if before is None or now is None:
        return [] if before == now else ["configuration: that of the run cannot be read"]
    keys = sorted(key for key in {*before, *now} - {"program.command"} if before.get(key) != now.get(key))
    found = [_changed(key, before.get(key), now.get(key)) for key in keys[:_MOST_KEYS]]
    return [*found, *([f"{len(keys) - _MOST_KEYS} more settings"] if len(keys) > _MOST_KEYS else [])]


def _changed(name: str, before: object, now: object) -> str:
    was, is_now = (str("none" if value in (None, "") else value)[:120] for value in (before, now))
    return f"{name}: {was}, now {is_now}" if was != is_now else f"{name}: not the same"


def _short(digest: str | None) -> str:
    return (digest or "").removeprefix("sha256:")[:_SHOWN]


def _tree(state: str | None) -> str:
    return "unknown" if state is None else "clean" if state == "clean" else f"changed ({_short(state)})"
