"""The login of a person at GitHub, through the command line `gh`."""

import os
from collections.abc import Mapping

from trainyard.errors import ConfigError
from trainyard.gateways.process import run_program

CALL_SECONDS = 60
_LEFT_OUT = ("GH_FORCE_TTY", "CLICOLOR_FORCE", "GH_DEBUG", "DEBUG", "GH_REPO")
"""Variables that would colour the answers, mix logs into them, or select another repository."""


class GitHubCli:
    """One GitHub host, accessed through `gh`."""

    def __init__(self, host: str, environment: Mapping[str, str] = os.environ) -> None:
        kept = {name: value for name, value in environment.items() if name not in _LEFT_OUT}
        self._host = host
        self._environment = kept | {"GH_HOST": host, "NO_COLOR": "1", "GH_NO_UPDATE_NOTIFIER": "1"}

    def token(self) -> str:
        """Return the token of the login. Raises ConfigError when `gh` is missing, or has no login."""
        line = ["gh", "auth", "token", "--hostname", self._host]
        done = run_program(line, seconds=CALL_SECONDS, stdin="", environment=self._environment)
        if done.exit_code is None:
            raise ConfigError(
                f"gh cannot be started ({done.stderr}): see https://cli.github.com, then gh auth login"
            )
        if not done.ok:
            raise ConfigError(f"gh is not logged in to {self._host}: gh auth login --hostname {self._host}")
        return done.stdout.strip()
