"""Ask GitHub about one repository, through a function that is passed in.

A refusal becomes an error that names the call; "not found" may be an answer.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from trainyard.errors import ConfigError, ServiceError
from trainyard.github.rules import About


class GitHubAnswer(Protocol):
    """GitHub's answer to one call."""

    @property
    def status(self) -> int: ...
    @property
    def content(self) -> Any: ...
    @property
    def message(self) -> str: ...


class Ask(Protocol):
    """Asks GitHub once; raises ServiceTroubleError when there is no answer."""

    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> GitHubAnswer: ...


class RefusedError(ServiceError):
    """GitHub refused a call."""

    def __init__(self, method: str, path: str, answer: GitHubAnswer) -> None:
        self.status, self.said = answer.status, answer.message
        super().__init__(f"GitHub refused {method} {path.partition('?')[0]}: {answer.message}{_hint(answer)}")


def request(ask: Ask, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The content of the answer to one call. Raises RefusedError."""
    answer = ask(method, path, body)
    if not 200 <= answer.status < 300:
        raise RefusedError(method, path, answer)
    return answer.content


def get_if_found(ask: Ask, path: str) -> Any:
    """The content of an answer; None when GitHub answers "not found". Raises RefusedError."""
    try:
        return request(ask, "GET", path)
    except RefusedError as error:
        if error.status == 404:
            return None
        raise


def get_every_item(ask: Ask, path: str, key: str, *, size: int = 100, none: bool = False) -> list[Any]:
    """Every item of a list, read page by page; with `none`, a missing list counts as empty.

    Raises RefusedError.
    """
    items: list[Any] = []
    joint = "&" if "?" in path else "?"
    for number in range(1, 51):
        address = f"{path}{joint}per_page={size}&page={number}"
        content = get_if_found(ask, address) if none else request(ask, "GET", address)
        found = (content or {}).get(key) or []
        items += found
        if len(found) < size:
            break
    return items


def push_command(name: str) -> str:
    """Make the repository `name` of a clone. gh adds the remote origin, and fails where there is one."""
    return f"git remote rename origin upstream; gh repo create {name} --private --source . --push"


def get_repository(ask: Ask, host: str, name: str) -> tuple[About, Mapping[str, Any]]:
    """The repository, and GitHub's whole answer about it. Raises RefusedError."""
    found = get_if_found(ask, f"repos/{name}")
    if found is None:
        raise ServiceError(
            f"{host} has no repository {name} that your login may see. Check the name, and gh auth status; "
            f"push it: {push_command(name)}"
        )
    owner = found.get("owner") or {}
    told = About(
        host=host,
        name=str(found["full_name"]),
        page=str(found.get("html_url") or f"https://{host}/{name}"),
        owner_id=int(owner.get("id") or 0),
        repository_id=int(found.get("id") or 0),
        organisation=owner.get("type") == "Organization",
        private=found.get("visibility", "private" if found.get("private") else "public") != "public",
        branch=str(found.get("default_branch") or "main"),
        created=str(found.get("created_at") or ""),
        issues=bool(found.get("has_issues")),
    )
    return told, found


def refuse_unfit(about: About, found: Mapping[str, Any]) -> None:
    """Raise an error for a repository in which training cannot be set up."""
    if found.get("fork"):
        parent = (found.get("parent") or {}).get("full_name") or "another repository"
        raise ConfigError(
            f"{about.name} is a fork of {parent}, where pushes and the schedule train nothing. Make a copy: "
            f"{push_command('OWNER/NAME')}, then --repository OWNER/NAME."
        )
    if found.get("archived"):
        raise ConfigError(
            f"{about.name} is archived, and nothing runs in it: unarchive it in {about.page}/settings"
        )
    if not (found.get("permissions") or {}).get("admin"):
        raise ServiceError(
            f"You are not an administrator of {about.name}, but only one may set it up. Ask to become "
            "one, or name your own copy: --repository OWNER/NAME"
        )


def _hint(answer: GitHubAnswer) -> str:
    """The fix for a refusal, to be appended to its message; empty when none is known."""
    text = answer.message.lower()
    if answer.status == 401:
        return ". Log in again: gh auth login"
    if "not accessible by" in text:
        return ". The token lacks a permission: docs/runbooks/permissions.md#setting-up lists them"
    if "scope" in text or "must have admin" in text:
        return ". Your login may not do that: gh auth refresh --scopes repo,workflow"
    return ""
