"""What git says of the code that runs: commit, branch, and whether the tree was dirty."""

import hashlib
from pathlib import Path
from typing import Any

from trainyard.gateways.process import run_program

_SECONDS = 20
_CODE = ("src", "scripts", "configs", "native")
_STATUS = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no")
_DIFFERENCE = (
    *("diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--no-relative", "--unified=3", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "HEAD"),
)
"""Spelt out, so that the user's configuration has no say. The full index has a hash of each changed file."""


def git_facts(directory: Path) -> dict[str, Any]:
    """The commit, branch, dirty flag and (if dirty) SHA-256 of the difference; empty outside a repository.

    Untracked files count as dirty where they can change what runs; others, such as a run's own, do not.
    A flag that git or a file did not answer for is left out: not knowing is not the same as clean.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return {}
    facts: dict[str, Any] = {"commit": commit.strip()}
    branch = (_git(directory, "rev-parse", "--abbrev-ref", "HEAD") or "").strip()
    if branch and branch != "HEAD":
        facts["branch"] = branch
    return facts | _state_of_tree(directory)


def origin_address(directory: Path) -> str:
    """The address of the remote `origin`, empty where there is none. It may hold a login: show it to
    nobody."""
    return (_git(directory, "remote", "get-url", "origin") or "").strip()


def _state_of_tree(directory: Path) -> dict[str, Any]:
    """The dirty flag and the hash of the difference to the commit; empty when any part of it is not known."""
    answers = [_git(directory, *_STATUS), _untracked_code(directory), _git(directory, *_DIFFERENCE)]
    known = [answer for answer in answers if answer is not None]
    if len(known) < len(answers):
        return {}
    if not any(known):
        return {"dirty": False}
    return {"dirty": True, "diff_sha256": hashlib.sha256("\0\0".join(known).encode()).hexdigest()}


def _untracked_code(directory: Path) -> str | None:
    """The names of untracked files of code with the hashes of their contents; None if one is not readable."""
    names = _git(directory, "ls-files", "-z", "--others", "--exclude-standard", "--", *_CODE)
    if names is None:
        return None
    lines = []
    for name in filter(None, names.split("\0")):
        content = _content(directory / name)
        if content is None:
            return None
        lines.append(f"{content} {name}\0")
    return "".join(lines)


def _content(path: Path) -> str | None:
    """A hash of a file, or where a link leads to nothing; None for what has no content of its own."""
    try:
        if path.is_symlink() and not path.exists():
            return f"-> {path.readlink()}"
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _git(directory: Path, *arguments: str) -> str | None:
    done = run_program(["git", "-C", str(directory), *arguments], seconds=_SECONDS)
    return done.stdout if done.ok else None
