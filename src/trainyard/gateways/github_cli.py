"""The login of a person at GitHub, through the command line `gh`."""

import os

from trainyard.errors import ConfigError
from trainyard.gateways.process import run_program

CALL_SECONDS = 60
_LEFT_OUT = ("GH_FORCE_TTY", "CLICOLOR_FORCE", "GH_DEBUG", "DEBUG", "GH_REPO")
"""Variables that would colour the answer, mix logs into it, or select another repository."""


def token_of_login(host: str) -> str:
    """Return the token of the login at a host. Raises ConfigError when `gh` is missing, or has no login."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    line = ["gh", "auth", "token", "--hostname", host]
    given = kept | {"NO_COLOR": "1", "GH_NO_UPDATE_NOTIFIER": "1"}
    done = run_program(line, seconds=CALL_SECONDS, stdin="", environment=given)
    if done.exit_code is None:
        raise ConfigError(
            f"gh cannot be started ({done.stderr}): see https://cli.github.com, then gh auth login"
        )
    if not done.ok:
        raise ConfigError(f"gh is not logged in to {host}: gh auth login --hostname {host}")
    return done.stdout.strip()
