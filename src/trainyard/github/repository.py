"""One repository on GitHub: its name in every form, and its facts, by an API that is passed in."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError

if TYPE_CHECKING:
    from trainyard.gateways.github_api import GitHub

GITHUB = "github.com"
_PARTS = re.compile(r"(?:(?P<host>[\w.-]+(?::\d+)?)/)?(?P<name>[\w.-]+/[\w.-]+)", re.ASCII)
_URL = re.compile(
    r"(?:https?|ssh|git)://(?:[^@/]*@)?(?P<host>[^/@]+)/(?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?", re.ASCII
)
_SCP = re.compile(r"(?:[^@/:]+@)?(?P<host>[\w.-]+):(?!/)(?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?", re.ASCII)


@dataclass(frozen=True)
class Repository:
    """The facts about a repository."""

    host: str
    name: str
    """`OWNER/REPO`."""
    page: str
    owner_id: int
    repository_id: int
    is_of_organisation: bool
    is_private: bool
    branch: str
    """The default branch."""
    created: str

    @property
    def base(self) -> str:
        return f"repos/{self.name}"


def get_repository(api: "GitHub", host: str, name: str) -> Repository:
    """Return the facts about a repository. Raises ConfigError or ServiceError where none can train."""
    try:
        found = api.get("", or_none=True)
    except ServiceTroubleError:
        raise
    except ServiceError as error:
        raise ServiceError(with_hint(error)) from None
    if found is None:
        raise ServiceError(
            f"{host} has no repository {name} that your login may see. Check the name, and gh auth status; "
            f"push it: {_push_command(name)}"
        )
    owner = found.get("owner") or {}
    repository = Repository(
        host=host,
        name=str(found["full_name"]),
        page=str(found.get("html_url") or f"https://{host}/{name}"),
        owner_id=int(owner.get("id") or 0),
        repository_id=int(found.get("id") or 0),
        is_of_organisation=owner.get("type") == "Organization",
        is_private=found.get("visibility", "private" if found.get("private") else "public") != "public",
        branch=str(found.get("default_branch") or "main"),
        created=str(found.get("created_at") or ""),
    )
    if found.get("fork"):
        parent = (found.get("parent") or {}).get("full_name") or "another repository"
        raise ConfigError(
            f"{repository.name} is a fork of {parent}. In a fork pushes and the schedule train nothing. "
            f"Make a copy: {_push_command('OWNER/NAME')}, then --repository OWNER/NAME."
        )
    if found.get("archived"):
        raise ConfigError(
            f"{repository.name} is archived, and nothing runs in it: unarchive it in "
            f"{repository.page}/settings"
        )
    if not (found.get("permissions") or {}).get("admin"):
        raise ServiceError(
            f"You are not an administrator of {repository.name}, but only an administrator may set it up. "
            "Ask for that right, or name your own copy: --repository OWNER/NAME"
        )
    return repository


def parse_repository(text: str, *, host: str = "") -> tuple[str, str]:
    """Return host and `OWNER/REPO` of a text; `host` is used when the text names none. Raises ConfigError."""
    found = _PARTS.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text[:140]!r} is not OWNER/REPO or HOST/OWNER/REPO")
    return (found["host"] or host or GITHUB).lower(), found["name"]


def repository_of_remote(url: str) -> tuple[str, str]:
    """Return host and `OWNER/REPO` of a remote's URL.

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


def _push_command(name: str) -> str:
    """Return the command that makes a repository of a clone; gh fails where the remote origin exists."""
    return f"git remote rename origin upstream; gh repo create {name} --private --source . --push"


def with_hint(refusal: ServiceError) -> str:
    """Return the text of GitHub's refusal with the fix where one is known."""
    text = str(refusal).rstrip(".")
    if ": 401 " in text:
        return f"{text}. Log in again: gh auth login"
    if "not accessible by" in text.lower():
        return f"{text}. The token lacks a permission: docs/runbooks/permissions.md#setting-up lists them"
    if "scope" in text.lower() or "must have admin" in text.lower():
        return f"{text}. Your login may not do that: gh auth refresh --scopes repo,workflow"
    return text
