"""The one command that makes a GPU machine a runner: download, check, unpack, register, start as a service.

It only writes the text, which a person pastes on that machine. Running it again does the remaining steps.
Only this text holds the registration token; the runner gets it in its environment, not on a command line.
https://docs.github.com/en/actions/how-tos/manage-runners/self-hosted-runners
"""

import re
import shlex
from collections.abc import Mapping, Sequence

MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
"""`uname -m` -> GitHub's name of the architecture."""
OLDEST_DRIVER = 580
"""The oldest branch of the NVIDIA driver that works with torch's CUDA 13.0."""
DRIVER_COMMAND = f"sudo apt-get install -y nvidia-driver-{OLDEST_DRIVER}-server && sudo reboot"


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
    gives = "".join(f"  give {shlex.quote(folder)}\n" for folder in folders)
    cases = "".join(
        f"    {machine}) url={shlex.quote(downloads[kind][0])}\n"
        f"      sum={shlex.quote(downloads[kind][1])} ;;\n"
        for machine, kind in MACHINES.items()
        if kind in downloads
    )
    # The runner adds `self-hosted` itself.
    named = ",".join(label for label in labels if label.lower() != "self-hosted")
    given = f" --labels {shlex.quote(named)}" if named else ""
    return f"""\
sudo bash -s <<'TRAINYARD'
# Make this machine a runner of {address}; running it again does the remaining steps.
set -euo pipefail
give() {{
  [ -d "$1" ] || install -d -o runner "$1"
  sudo -u runner test -w "$1" || echo "The user runner may not write to $1: chown it." >&2
}}
register() {{
  for program in curl tar git make; do
    command -v "$program" > /dev/null ||
      {{ echo "$program is missing: apt-get install $program" >&2; exit 1; }}
  done
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -n 1) || driver=
  if ! [ "${{driver%%.*}}" -ge {OLDEST_DRIVER} ] 2> /dev/null; then
    echo "The NVIDIA driver is ${{driver:-missing}}; training on the GPU needs {OLDEST_DRIVER} or newer:" >&2
    echo "  {DRIVER_COMMAND}" >&2
  fi
  id runner > /dev/null 2>&1 || useradd --create-home --shell /bin/bash runner
{gives}  folder=$(getent passwd runner | cut -d: -f6)/actions-runner-{name}
  install -d -o runner "$folder"
  cd "$folder"
  case $(uname -m) in
{cases}    *) echo "GitHub has no runner for $(uname -m)" >&2; exit 1 ;;
  esac
  if ! [ -e .unpacked ]; then
    curl --fail --silent --show-error --location --retry 3 --output runner.tar.gz "$url"
    echo "$sum  runner.tar.gz" | sha256sum --check --quiet
    sudo -u runner tar -xzf runner.tar.gz
    rm runner.tar.gz
    [ ! -x bin/installdependencies.sh ] || ./bin/installdependencies.sh > /dev/null
    touch .unpacked
  fi
  if ! [ -e .runner ]; then
    export ACTIONS_RUNNER_INPUT_TOKEN={shlex.quote(token)}
    sudo -u runner --preserve-env=ACTIONS_RUNNER_INPUT_TOKEN ./config.sh --unattended \\
      --url {shlex.quote(address)} --name "$(hostname)"{given}
    unset ACTIONS_RUNNER_INPUT_TOKEN
  fi
  [ -e .service ] || ./svc.sh install runner
  ./svc.sh start
}}
register < /dev/null
TRAINYARD"""
