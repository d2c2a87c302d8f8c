"""What git says of the code that runs: commit, branch, and whether the tree was dirty."""

import hashlib
from pathlib import Path
from typing import Any

from trainyard.gateways.process import run_program

_SECONDS = 20


def git_facts(directory: Path) -> dict[str, Any]:
    """The commit, branch, dirty flag and (if dirty) SHA-256 of the difference; empty outside a repository.

    Untracked files that git does not ignore count as dirty: they can change what runs.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return {}
    status = _git(directory, "status", "--porcelain")
    facts: dict[str, Any] = {"commit": commit, "dirty": status != ""}
    branch = _git(directory, "rev-parse", "--abbrev-ref", "HEAD")
    if branch and branch != "HEAD":
        facts["branch"] = branch
    if facts["dirty"]:
        difference = (_git(directory, "diff", "HEAD") or "") + (status or "")
        facts["diff_sha256"] = hashlib.sha256(difference.encode()).hexdigest()
    return facts


def _git(directory: Path, *arguments: str) -> str | None:
    done = run_program(["git", "-C", str(directory), *arguments], seconds=_SECONDS)
    return done.stdout.strip() if done.ok else None
