"""One repository on GitHub: its name in every form, its facts, and requests about it.

Requests are made by a function that is passed in. A refusal becomes an error that names the call; "not found"
may be an answer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, ServiceError

if TYPE_CHECKING:
    from trainyard.gateways.github_api import ApiAnswer

    Ask = Callable[..., ApiAnswer]  # `gateways.github_api.GitHub.ask`

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


class RefusedError(ServiceError):
    """GitHub refused a call."""

    def __init__(self, method: str, path: str, answer: "ApiAnswer") -> None:
        self.status, self.message = answer.status, answer.message
        super().__init__(f"GitHub refused {method} {path.partition('?')[0]}: {answer.message}{_hint(answer)}")


def request(
    ask: "Ask", method: str, path: str, body: Mapping[str, Any] | None = None, *, or_none: bool = False
) -> Any:
    """Return the content of the answer; with `or_none`, None for "not found". Raises RefusedError."""
    answer = ask(method, path, body)
    if answer.status == 404 and or_none:
        return None
    if not 200 <= answer.status < 300:
        raise RefusedError(method, path, answer)
    return answer.content


def list_items(ask: "Ask", path: str, key: str) -> list[Any]:
    """Return every item of a list, read page by page. Raises RefusedError."""
    items: list[Any] = []
    for number in range(1, 51):
        found = request(ask, "GET", f"{path}?per_page=100&page={number}").get(key) or []
        items += found
        if len(found) < 100:
            break
    return items


def get_repository(ask: "Ask", host: str, name: str) -> Repository:
    """Return the facts about a repository. Raises ConfigError or ServiceError where none can train."""
    found = request(ask, "GET", f"repos/{name}", or_none=True)
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


def _hint(answer: "ApiAnswer") -> str:
    """Return the fix for a refusal, to be appended to its message; empty when none is known."""
    text = answer.message.lower()
    if answer.status == 401:
        return ". Log in again: gh auth login"
    if "not accessible by" in text:
        return ". The token lacks a permission: docs/runbooks/permissions.md#setting-up lists them"
    if "scope" in text or "must have admin" in text:
        return ". Your login may not do that: gh auth refresh --scopes repo,workflow"
    return ""
