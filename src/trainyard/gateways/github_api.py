"""The calls of GitHub's REST API that workflows need, with the standard library only.

Every call has a time limit. Reads and deletions are retried, other changes are not. The token is sent
only to GitHub and never to the target of a redirect, and appears in no error. The callers decide what to
request. https://docs.github.com/en/rest
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError

CALL_SECONDS = 20
PAUSES = (1.0, 4.0)
"""Seconds between the attempts of a call that may be retried."""
_PAGES, _A_PAGE = 10, 100
_MOST_BYTES = 32 * 2**20
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
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
        if urlsplit(server).scheme not in ("http", "https"):
            raise ConfigError("GITHUB_API_URL is not an http or https address")
        self._base, self._token = f"{server.rstrip('/')}/repos/{repository}", token
        self._opener: OpenerDirector = build_opener(HTTPRedirectHandler)

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
        for pause in (*PAUSES, None) if again else (None,):
            try:
                return self._once(method, path, body)
            except HTTPError as error:
                refusal = ApiRefusedError(method, path, error.code, _message_of(error))
                if error.headers.get("X-RateLimit-Remaining") == "0":
                    raise ServiceTroubleError(f"GitHub's rate limit is reached: {refusal}") from None
                if error.code not in _RETRIED_STATUSES:
                    raise refusal from None
                if pause is None:
                    raise ServiceTroubleError(str(refusal)) from None
            except (URLError, OSError, HTTPException) as error:
                if pause is None:
                    cause = getattr(error, "reason", None) or error
                    text = f"GitHub could not be reached ({method} {path}): {cause}"
                    raise ServiceTroubleError(text) from None
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, path: str, body: Json | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data=data, method=method)  # noqa: S310 - checked in __init__
        request.add_header("Accept", "application/vnd.github+json")
        request.add_header("X-GitHub-Api-Version", "2022-11-28")
        request.add_header("Content-Type", "application/json")
        if self._token:  # a public repository can be read without one
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        with self._opener.open(request, timeout=CALL_SECONDS) as answer:
            content: bytes = answer.read(_MOST_BYTES)
            return content


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


def server_of(host: str) -> str:
    """Return the address of the API of GitHub, a tenant with data residency, or an Enterprise Server."""
    if host == "github.com" or host.endswith(".ghe.com"):
        return f"https://api.{host}"
    return f"https://{host}/api/v3"


def _message_of(error: HTTPError) -> str:
    """Return GitHub's own text, which states why a call was refused."""
    try:
        content = json.loads(error.read(10_000))
    except (ValueError, OSError, HTTPException):
        return ""
    return " ".join(str(content.get("message", "")).split())[:300] if isinstance(content, dict) else ""
