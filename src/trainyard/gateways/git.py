"""What git says of the code that runs: commit, branch, and whether the tree was dirty."""

import hashlib
from pathlib import Path
from typing import Any

from trainyard.gateways.process import run_program

_SECONDS = 20
_CODE = ("src", "scripts", "configs", "native")


def git_facts(directory: Path) -> dict[str, Any]:
    """The commit, branch, dirty flag and (if dirty) SHA-256 of the difference; empty outside a repository.

    Untracked files count as dirty where they can change what runs; others, such as a run's own, do not.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return {}
    status = _status(directory)
    facts: dict[str, Any] = {"commit": commit, "dirty": status != ""}
    branch = _git(directory, "rev-parse", "--abbrev-ref", "HEAD")
    if branch and branch != "HEAD":
        facts["branch"] = branch
    if facts["dirty"]:
        difference = (_git(directory, "diff", "HEAD") or "") + status
        facts["diff_sha256"] = hashlib.sha256(difference.encode()).hexdigest()
    return facts


def _status(directory: Path) -> str:
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    untracked = _git(directory, "ls-files", "--others", "--exclude-standard", "--", *_CODE)
    return "\n".join(filter(None, (changed, untracked)))


def _git(directory: Path, *arguments: str) -> str | None:
    done = run_program(["git", "-C", str(directory), *arguments], seconds=_SECONDS)
    return done.stdout.strip() if done.ok else None
