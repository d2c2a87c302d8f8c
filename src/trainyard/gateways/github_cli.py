"""Make REST calls and set secrets on GitHub through its command line `gh`, with the login of the person.

`gh` knows the login, the host and the proxy; this module holds no token. The callers decide what to request.
A secret's value goes from the person, or from the environment, straight to `gh`, which encrypts it.
https://cli.github.com/manual/gh_api
"""

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError, ServiceError, ServiceTroubleError
from trainyard.gateways.process import run_attended, run_program

CALL_SECONDS = 60
PAUSES = (1.0, 4.0)
"""Seconds between the attempts of a read."""
_RETRIED_STATUSES = (500, 502, 503, 504)
_LEFT_OUT = ("GH_FORCE_TTY", "CLICOLOR_FORCE", "GH_DEBUG", "DEBUG", "GH_REPO")
"""Variables that would colour the answers, mix logs into them, or select another repository."""


@dataclass(frozen=True)
class CliAnswer:
    """GitHub's answer to one call."""

    status: int
    content: Any
    """The parsed JSON; None if there is none."""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The status and GitHub's own text, which states why a call was refused."""
        text = self.content.get("message", "") if isinstance(self.content, dict) else ""
        return " ".join(f"{self.status} {text}".split())[:300]


class RateLimitError(ServiceTroubleError):
    """GitHub's rate limit is reached; an immediate retry would only extend it."""


class GitHubCli:
    """One GitHub host, accessed through `gh`."""

    def __init__(self, host: str, environment: Mapping[str, str] = os.environ) -> None:
        kept = {name: value for name, value in environment.items() if name not in _LEFT_OUT}
        self._host = host
        self._environment = kept | {"GH_HOST": host, "NO_COLOR": "1", "GH_NO_UPDATE_NOTIFIER": "1"}

    def require_login(self) -> None:
        """Raise ConfigError when `gh` is missing, or has no login for the host. It does not query GitHub.

        Without a login, GitHub would only answer that the repository does not exist.
        """
        line = ["gh", "auth", "token", "--hostname", self._host]
        done = run_program(line, seconds=CALL_SECONDS, stdin="", environment=self._environment)
        if done.exit_code is None:
            raise ConfigError(
                f"gh cannot be started ({done.stderr}): see https://cli.github.com, then gh auth login"
            )
        if not done.ok:
            raise ConfigError(f"gh is not logged in to {self._host}: gh auth login --hostname {self._host}")

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> CliAnswer:
        """Make one call. A read is retried after errors that a retry can fix; a change is sent once.

        Raises ServiceTroubleError when there is no answer, or GitHub's rate limit is reached.
        """
        for pause in (*PAUSES, None) if method == "GET" else (None,):
            try:
                answer = self._once(method, path, body)
            except ServiceTroubleError as error:
                if pause is None or isinstance(error, RateLimitError):
                    raise
            else:
                if pause is None or answer.status not in _RETRIED_STATUSES:
                    return answer
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def set_secret(self, name: str, place: list[str], value: str | None) -> None:
        """Set a secret to `value`; if that is None, `gh` prompts for the value.

        `place` has the arguments that name the repository and the environment. Raises ServiceError.
        """
        line = ["gh", "secret", "set", name, *place]
        if value is None:
            code, message = run_attended(line, environment=self._environment), "see above"
        else:
            done = run_program(line, seconds=CALL_SECONDS, stdin=value, environment=self._environment)
            code, message = done.exit_code, done.stderr.replace(value, "***") if value else done.stderr
        if code != 0:
            raise ServiceError(f"gh secret set {name}: {' '.join(message.split())[:300]}")

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> CliAnswer:
        line = ["gh", "api", "--include", "--method", method, "-H", "X-GitHub-Api-Version: 2022-11-28", path]
        text = "" if body is None else json.dumps(body)
        done = run_program(
            [*line, *(["--input", "-"] if text else [])],
            seconds=CALL_SECONDS,
            stdin=text,
            environment=self._environment | {"GH_PROMPT_DISABLED": "1"},
        )
        parsed = _parse_answer(done.stdout)
        if parsed is not None:
            return parsed
        message = " ".join(done.stderr.split())[:300]
        raise ServiceTroubleError(f"{self._host} could not be reached: {message or 'no answer'}")


def _parse_answer(output: str) -> CliAnswer | None:
    """Return the answer in the output of `gh api --include`; None when GitHub did not answer.

    Raises RateLimitError.
    """
    head, _, rest = output.replace("\r\n", "\n").partition("\n\n")
    found = re.match(r"HTTP/[\d.]+ (\d{3})\b", head)
    if found is None:
        return None
    headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
    try:
        content = json.loads(rest) if rest.strip() else None
    except ValueError:
        content = None
    answer = CliAnswer(int(found[1]), content)
    if answer.status in (403, 429) and (_is_limit_reached(headers) or "rate limit" in answer.message.lower()):
        raise RateLimitError(f"GitHub's rate limit is reached ({answer.message}): try again later")
    return answer


def _is_limit_reached(headers: Mapping[str, str]) -> bool:
    return headers.get("x-ratelimit-remaining") == "0" or "retry-after" in headers
