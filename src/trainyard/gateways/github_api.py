"""The calls of GitHub's REST API that workflows need.

Every call has a time limit. Reads and deletions are retried, other changes are not. The token is sent
only to GitHub and never to the target of a redirect, and appears in no error. The callers decide what to
request. https://docs.github.com/en/rest
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.gateways.bounded_calls import call_again
from trainyard.gateways.http_requests import RETRIED_STATUSES, HttpAnswer, is_http, send_request
from trainyard.gateways.process import run_program

CALL_SECONDS = 20
_ATTEMPTS = 3
_LOGIN_SECONDS = 60
# Variables that would colour the answer of `gh`, mix logs into it, or select another repository.
_LEFT_OUT = ("GH_FORCE_TTY", "CLICOLOR_FORCE", "GH_DEBUG", "DEBUG", "GH_REPO")
_PAGES, _A_PAGE = 10, 100
_HEADERS = {
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
    "Content-Type": "application/json",
}
Json = dict[str, Any]


class ApiRefusedError(ServiceError):
    """GitHub refused a call."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        self.status = status
        place = path.partition("?")[0] or "the repository"
        super().__init__(f"GitHub refused {method} {place}: {f'{status} {message}'.rstrip()}")


class GitHub:
    """One repository on GitHub, accessed with one token. Raises ConfigError for a wrong name or server."""

    def __init__(self, repository: str, token: str, *, server: str = "https://api.github.com") -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository, re.ASCII):
            raise ConfigError(f"GITHUB_REPOSITORY: {repository!r} is not owner/name")
        if not is_http(server):
            raise ConfigError("GITHUB_API_URL is not an http or https address")
        self._base, self._token = f"{server.rstrip('/')}/repos/{repository}", token

    def get(self, path: str, *, or_none: bool = False, **query: str | int) -> Any:
        """Return the answer to a read; with `or_none`, None for "not found".

        Raises ServiceError when GitHub refuses or cannot be reached.
        """
        try:
            return self._json("GET", path, query=query)
        except ApiRefusedError as error:
            if or_none and error.status == 404:
                return None
            raise

    def pages(self, path: str, key: str = "", **query: str | int) -> Iterator[Json]:
        """Every item of a list, read page by page; `key` names the list if the answer is an object."""
        for page in range(1, _PAGES + 1):
            answer = self._json("GET", path, query={**query, "per_page": _A_PAGE, "page": page})
            items = answer.get(key, []) if key else answer
            yield from items
            if len(items) < _A_PAGE:
                return

    def text(self, path: str) -> str:
        """Return the text that a read answers with, such as the log of a job."""
        return self._call("GET", path, again=True).decode(errors="replace")

    def post(self, path: str, body: Json | None = None) -> Any:
        """Return the answer to a change; it is not retried."""
        return self.change("POST", path, body or {})

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a change by any method; it is not retried."""
        return self._json(method, path, body=None if body is None else dict(body))

    def delete(self, path: str) -> None:
        """Delete something; it is retried."""
        self._json("DELETE", path)

    def dispatch(self, workflow: str, *, ref: str, inputs: Mapping[str, str]) -> str:
        """Start `workflow` on a branch or tag; return the new run's URL, empty if GitHub does not give it.

        Raises ServiceTroubleError when it is not known whether the workflow was started.
        """
        body = {"ref": ref, "inputs": dict(inputs), "return_run_details": True}
        answer = self.post(f"/actions/workflows/{quote(workflow, safe='')}/dispatches", body)
        return str((answer or {}).get("html_url") or "")

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Json | None = None,
    ) -> Any:
        address = f"{path}?{urlencode(query)}" if query else path
        answer = self._call(method, address, body=body, again=method in ("GET", "DELETE"))
        try:
            return json.loads(answer) if answer else None
        except ValueError:
            raise ServiceError(f"GitHub's answer to {method} {path} is not JSON") from None

    def _call(self, method: str, path: str, *, body: Json | None = None, again: bool = False) -> bytes:
        answer = call_again(lambda: self._once(method, path, body), attempts=_ATTEMPTS if again else 1)
        if answer.status < 300:
            return answer.content
        refusal = ApiRefusedError(method, path, answer.status, _message_of(answer.content))
        if _is_limited(answer):
            raise ServiceTroubleError(f"GitHub's rate limit is reached: {refusal}")
        raise refusal

    def _once(self, method: str, path: str, body: Json | None) -> HttpAnswer:
        answer = send_request(
            method,
            self._base + path,
            seconds=CALL_SECONDS,
            headers=_HEADERS,
            authorization=f"Bearer {self._token}" if self._token else "",  # a public repository needs none
            body=None if body is None else json.dumps(body).encode(),
        )
        if answer.status in RETRIED_STATUSES and not _is_limited(answer):
            refusal = ApiRefusedError(method, path, answer.status, _message_of(answer.content))
            raise ServiceTroubleError(str(refusal))
        return answer


def github_from(environment: Mapping[str, str] = os.environ, *, variable: str = "GITHUB_TOKEN") -> GitHub:
    """Return the repository of the running workflow, with the token in the environment's `variable`.

    Raises ConfigError when a variable of a workflow run is missing.
    """
    for name in ("GITHUB_REPOSITORY", variable):
        if not environment.get(name):
            raise ConfigError(
                f"{name} is not set: GITHUB_REPOSITORY names the repository, and {variable} holds the token."
            )
    server = environment.get("GITHUB_API_URL") or "https://api.github.com"
    return GitHub(environment["GITHUB_REPOSITORY"], environment[variable].strip(), server=server)


def token_of_login(host: str) -> str:
    """Return the token of a person's login at a host. Raises ConfigError without `gh`, or without a login."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    line = ["gh", "auth", "token", "--hostname", host]
    given = kept | {"NO_COLOR": "1", "GH_NO_UPDATE_NOTIFIER": "1"}
    done = run_program(line, seconds=_LOGIN_SECONDS, stdin="", environment=given)
    if done.exit_code is None:
        raise ConfigError(
            f"gh cannot be started ({done.stderr}): see https://cli.github.com, then gh auth login"
        )
    if not done.ok:
        raise ConfigError(f"gh is not logged in to {host}: gh auth login --hostname {host}")
    return done.stdout.strip()


def server_of(host: str) -> str:
    """Return the address of the API of GitHub, a tenant with data residency, or an Enterprise Server."""
    if host == "github.com" or host.endswith(".ghe.com"):
        return f"https://api.{host}"
    return f"https://{host}/api/v3"


def _is_limited(answer: HttpAnswer) -> bool:
    return answer.headers.get("X-RateLimit-Remaining") == "0"


def _message_of(content: bytes) -> str:
    """Return GitHub's own text, which states why a call was refused."""
    try:
        found = json.loads(content[:10_000])
    except ValueError:
        return ""
    return " ".join(str(found.get("message", "")).split())[:300] if isinstance(found, dict) else ""
