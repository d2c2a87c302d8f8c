"""The one command that makes a GPU machine a runner: download, check, unpack, register, start as a service.

It only writes the text, `register_runner.sh` with its variables, which a person pastes on that machine. Only
this text holds the registration token; the runner gets it in its environment, not on a command line.
https://docs.github.com/en/actions/how-tos/manage-runners/self-hosted-runners
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
"""`uname -m` -> GitHub's name of the architecture."""


def runner_command(
    address: str,
    labels: Sequence[str],
    downloads: Mapping[str, tuple[str, str]],
    *,
    token: str,
    folders: Sequence[str] = (),
) -> str:
    """Return the command in several lines, ready to be pasted.

    `address` is the repository's page, `downloads` has URL and SHA-256 of the runner by architecture,
    `folders` are those that the runner must be able to write, such as that of a `file://` store.
    """
    name = re.sub(r"[^\w.-]+", "-", address.partition("://")[2].partition("/")[2])
    # The runner adds `self-hosted` itself.
    named = ",".join(label for label in labels if label.lower() != "self-hosted")
    known = {machine: downloads[kind] for machine, kind in MACHINES.items() if kind in downloads}
    archives = [f"[{machine}]={shlex.quote(f'{digest} {url}')}" for machine, (url, digest) in known.items()]
    variables = [
        *(f"PAGE={shlex.quote(address)}", f"NAME={shlex.quote(name)}", f"TOKEN={shlex.quote(token)}"),
        f"LABELS={shlex.quote(named)}",
        f"FOLDERS=({shlex.join(folders)})",
        f"declare -A DOWNLOADS=({' '.join(archives)})",
    ]
    script = Path(__file__).with_name("register_runner.sh").read_text(encoding="utf-8")
    return "\n".join(["sudo bash -s <<'TRAINYARD'", *variables, f"{script}TRAINYARD"])
