"""Which Python `scripts/install_environment.sh` takes on each distribution.

The Pythons are stand-ins: this Python with another version, with or without headers. uv is one that
records which Python it is given. The script reads no name of a distribution, so each is a list of Pythons.
"""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.scripts.conftest import ROOT

TOOLS = "tools/Python/{}/x64/bin/python3"
DOWNLOADED = "--managed-python --python 3.11"
DISTRIBUTIONS = {
    "Debian 11": ({"python3": "3.9"}, DOWNLOADED),
    "Debian 12": ({"python3": "3.11"}, "python3"),
    "Debian 13": ({"python3": "3.13"}, "python3"),
    "Ubuntu 22.04": ({"python3": "3.10"}, DOWNLOADED),
    "Ubuntu 24.04": ({"python3": "3.12"}, "python3"),
    "Ubuntu 26.04": ({"python3": "3.14"}, DOWNLOADED),
    "RHEL 8": ({"python3": "3.6"}, DOWNLOADED),
    "RHEL 8 with python3.11": ({"python3": "3.6", "python3.11": "3.11"}, "python3.11"),
    "Rocky 9": ({"python3": "3.9"}, DOWNLOADED),
    "Rocky 9 with python3.12": ({"python3": "3.9", "python3.12": "3.12"}, "python3.12"),
    "RHEL 10": ({"python3": "3.12"}, "python3"),
    "Fedora 43 with python3.13": ({"python3": "3.14", "python3.13": "3.13"}, "python3.13"),
    "Amazon Linux 2023": ({"python3": "3.9"}, DOWNLOADED),
    "CodeBuild's linux-5.0": ({"python3": "3.11"}, "python3"),
    "no Python at all": ({}, DOWNLOADED),
    "hosted": ({"python3": "3.12", TOOLS.format("3.11.9"): "3.11", TOOLS.format("3.14.1"): "3.14"}, "tools"),
}
"""Distribution -> its Pythons, and the one that is taken."""


def take(folder: Path, pythons: Mapping[str, str], *, headers: str = "", named: str = "") -> str:
    """Return the Python that uv is given on a machine with these; those in `headers` have C headers."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sh", "sed", "cut", "date", "cat", "ls", "env"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name, version in pythons.items():
        path = folder / name if "/" in name else programs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        major, minor = version.split(".")
        include = folder / (name if name in headers.split() else "none")
        change = (
            f"import sys, sysconfig; sys.version_info = ({major}, {minor}, 0, 'final', 0); "
            f"sys._base_executable = {str(path)!r}; sysconfig.get_path = lambda *_: {str(include) + '.d'!r}"
        )
        path.write_text(f"""#!/bin/sh\nexec "{sys.executable}" -I -S -c "{change}\n$2"\n""")
        path.chmod(0o755)
        if name in headers.split():
            Path(f"{include}.d").mkdir(parents=True)
            Path(f"{include}.d", "Python.h").touch()
    uv = folder / "uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    pinned = (ROOT / "requirements-uv.in").read_text().partition("uv==")[2].split()[0]
    record = folder / "given"
    uv.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo uv {pinned}; exit; fi\necho "$@" > {record}\nexit 1\n'
    )
    uv.chmod(0o755)
    variables = {
        "PATH": str(programs), "UV_HOME": str(folder / "uv"), "VENV": str(folder / "venv"),
        "PYTHON": named or "python3", "PYTHON_NAMED": named, "RUNNER_TOOL_CACHE": str(folder / "tools"),
    }  # fmt: skip
    script = ["sh", "scripts/install_environment.sh", "core"]
    done = subprocess.run(script, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4, done.stderr  # this uv makes no environment
    return record.read_text().partition("--force ")[2].removesuffix(f" {folder / 'venv'}\n")


@each_case("distribution", DISTRIBUTIONS)
def test_each_distribution_trains_with_what_it_has_or_uv_downloads_one(
    tmp_path: Path, distribution: str
) -> None:
    pythons, taken = DISTRIBUTIONS[distribution]
    path = tmp_path / (TOOLS.format("3.11.9") if taken == "tools" else f"bin/{taken}")
    expected = taken if taken == DOWNLOADED else f"--python {path}"
    assert take(tmp_path, pythons) == expected


@pytest.mark.parametrize("with_headers", ["", "python3", "python3.13", "python3 python3.13"])
def test_a_python_with_headers_comes_before_one_without(tmp_path: Path, with_headers: str) -> None:
    taken = "python3.13" if with_headers == "python3.13" else "python3"
    given = take(tmp_path, {"python3": "3.12", "python3.13": "3.13"}, headers=with_headers)
    assert given == f"--python {tmp_path / 'bin' / taken}"


def test_a_python_that_is_named_is_taken_with_or_without_headers(tmp_path: Path) -> None:
    given = take(tmp_path, {"python3": "3.12", "python3.13": "3.13"}, headers="python3", named="python3.13")
    assert given == f"--python {tmp_path / 'bin' / 'python3.13'}"


def test_the_action_installs_by_make_alone_on_every_system() -> None:
    text = (ROOT / ".github" / "actions" / "setup" / "action.yml").read_text()
    assert "uses:" not in text
    workflows = (path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    assert not any("setup-python" in each for each in itertools.chain([text], workflows))
