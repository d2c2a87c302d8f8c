"""The command for the GPU machine, run by bash; stand-ins replace what needs root or a service manager."""

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.github.runner_command import MACHINES, runner_command

TOKEN = "ATOKEN-of-an-hour"
PAGE = "https://github.com/me/lab"
Run = Callable[..., subprocess.CompletedProcess[str]]
STAND_INS = {
    "sudo": """
while [ $# -gt 0 ]; do case $1 in -u) shift 2 ;; --*) shift ;; *) break ;; esac; done
exec "$@"
""",
    "id": "test -e {root}/home",
    "useradd": 'mkdir -p {root}/home; echo "useradd $*" >> {root}/notes',
    "getent": 'echo "runner:x:1:1::{root}/home:/bin/bash"',
    "install": 'for last; do :; done; mkdir -p "$last"; echo "install $*" >> {root}/notes',
    "nvidia-smi": "echo {driver}",
}
CONFIG = """#!/bin/sh
echo "config $* with ${ACTIONS_RUNNER_INPUT_TOKEN}" >> "$NOTES"
cat > /dev/null  # a program that reads its input must not eat the rest of the command
test -z "$REFUSE" || exit 3
touch .runner
"""
SERVICE = """#!/bin/sh
echo "svc $* ${ACTIONS_RUNNER_INPUT_TOKEN}" >> "$NOTES"
test "$1" != install || touch .service
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "runner"
    folder.mkdir()
    for name, text in (("config.sh", CONFIG), ("svc.sh", SERVICE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = tmp_path / "runner.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for each in folder.iterdir():
            file.add(each, each.name)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def paste(command: str, driver: str = "580.95.05", **variables: str) -> subprocess.CompletedProcess[str]:
        programs = tmp_path / "bin"
        programs.mkdir(exist_ok=True)
        for name, text in STAND_INS.items():
            body = text.replace("{root}", str(tmp_path)).replace("{driver}", driver)
            (programs / name).write_text(f"#!/bin/bash\n{body}\n")
            (programs / name).chmod(0o755)
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "NOTES": str(tmp_path / "notes"),
            "REFUSE": "",
        }
        return subprocess.run(
            ["bash", "-c", command], env=environment | variables, capture_output=True, text=True, timeout=60
        )

    return paste


def command_of(archive: Path, *folders: str, checksum: str = "", token: str = TOKEN) -> str:
    digest = checksum or hashlib.sha256(archive.read_bytes()).hexdigest()
    labels = ("self-hosted", "gpu", "h100")
    downloads = dict.fromkeys(MACHINES.values(), (archive.as_uri(), digest))
    return runner_command(PAGE, labels, downloads, token=token, folders=folders)


def notes(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().splitlines()


def test_the_first_run_registers_the_runner_and_a_second_only_starts_it(
    run: Run, archive: Path, tmp_path: Path
) -> None:
    store = str(tmp_path / "a store")
    command = command_of(archive, store)
    done = run(command)
    assert (done.returncode, done.stderr) == (0, "")
    folder = f"{tmp_path}/home/actions-runner-me-lab"
    name = platform.node()
    assert notes(tmp_path) == [
        "useradd --create-home --shell /bin/bash runner",
        f"install -d -o runner {store}",
        f"install -d -o runner {folder}",
        f"config --unattended --url {PAGE} --name {name} --labels gpu,h100 with {TOKEN}",
        "svc install runner ",
        "svc start ",
    ]
    assert not (Path(folder) / "runner.tar.gz").exists()
    again = run(command)
    assert (again.returncode, notes(tmp_path)[6:]) == (
        0,
        [f"install -d -o runner {folder}", "svc start "],
    )


def test_a_download_with_a_wrong_checksum_is_not_unpacked(run: Run, archive: Path, tmp_path: Path) -> None:
    done = run(command_of(archive, checksum="0" * 64))
    assert done.returncode != 0
    assert "did NOT match" in done.stderr
    assert [line for line in notes(tmp_path) if line.startswith(("config", "svc"))] == []
    assert run(command_of(archive)).returncode == 0, "the next one begins anew"


def test_a_refused_registration_stops_and_a_new_token_continues(
    run: Run, archive: Path, tmp_path: Path
) -> None:
    assert run(command_of(archive), REFUSE="yes").returncode == 3
    assert [line for line in notes(tmp_path) if line.startswith("svc")] == []
    assert run(command_of(archive, token="ANEW")).returncode == 0
    assert notes(tmp_path)[-3].endswith("with ANEW")


def test_an_old_driver_is_reported_with_the_install_command(run: Run, archive: Path) -> None:
    for driver, words in (
        ("580.95.05", ""),
        ("570.86.15", "is 570.86.15"),
        ("ERR!", "is ERR!"),
        ("", "is missing"),
    ):
        done = run(command_of(archive), driver=driver)
        assert done.returncode == 0, "a machine without a GPU may be a runner too"
        assert words in done.stderr
        assert ("sudo apt-get install -y nvidia-driver-580-server && sudo reboot" in done.stderr) is bool(
            words
        )


def test_values_in_the_command_are_quoted(run: Run, archive: Path, tmp_path: Path) -> None:
    evil = "/srv/$(touch pwned)/`touch pwned`/it's"
    folder = str(tmp_path) + evil
    done = run(command_of(archive, folder, token="A'$(touch pwned)"))
    assert done.returncode == 0, done.stderr
    assert f"install -d -o runner {folder}" in notes(tmp_path)
    assert not [path for path in tmp_path.rglob("pwned") if path.is_file()]


def test_shellcheck_finds_nothing_in_it(archive: Path, tmp_path: Path) -> None:
    lines = command_of(archive, "/mnt/storage/store").splitlines()
    script = tmp_path / "register.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines[1:-1]]) + "\n")
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([program, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
