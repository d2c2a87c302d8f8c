"""Read the name of a repository: `OWNER/REPO`, `HOST/OWNER/REPO`, or the URL of a git remote."""

import re

from trainyard.errors import ConfigError

GITHUB = "github.com"
_PARTS = re.compile(r"(?:(?P<host>[\w.-]+(?::\d+)?)/)?(?P<name>[\w.-]+/[\w.-]+)", re.ASCII)
_URL = re.compile(
    r"(?:https?|ssh|git)://(?:[^@/]*@)?(?P<host>[^/@]+)/(?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?", re.ASCII
)
_SCP = re.compile(r"(?:[^@/:]+@)?(?P<host>[\w.-]+):(?!/)(?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?", re.ASCII)


def parse_repository(text: str, *, host: str = "") -> tuple[str, str]:
    """Host and `OWNER/REPO` of a text; `host` is used when the text names none. Raises ConfigError."""
    found = _PARTS.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text[:140]!r} is not OWNER/REPO or HOST/OWNER/REPO")
    return (found["host"] or host or GITHUB).lower(), found["name"]


def of_remote(url: str) -> tuple[str, str]:
    """Host and `OWNER/REPO` of a remote's URL.

    Raises ConfigError, whose message never holds the URL, because the URL may hold a login.
    """
    found = _URL.fullmatch(url) or _SCP.fullmatch(url)
    if found is None:
        raise ConfigError(
            "git's remote origin is not a repository of GitHub: name one with --repository OWNER/REPO"
        )
    host = found["host"].lower()
    if url.startswith(("ssh:", "git:")) or "://" not in url:
        host = host.partition(":")[0]  # drop the port, which is for SSH
    return (GITHUB if host in ("ssh.github.com", "www.github.com") else host), found["name"]
