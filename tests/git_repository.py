"""Git in the tests' own repositories, as a person whom no machine has to know."""

import subprocess
from pathlib import Path

PERSON = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder and return what it prints; a submodule may come from a folder."""
    more = ("-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")
    line = ["git", "-C", str(folder), *PERSON, *more, *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def init_repository(folder: Path) -> None:
    """Make the folder a repository with one commit of all that is in it and not ignored."""
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "Train")):
        git(folder, *words)
