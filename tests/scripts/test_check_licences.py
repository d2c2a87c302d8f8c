"""scripts/check_licences.py on the locks of this repository, and on locks with packages made for the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_licences.py"


def check(*arguments: str | Path, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *(str(argument) for argument in arguments)]
    environment = os.environ | ({"PYTHONPATH": str(packages)} if packages else {})
    return subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("good==1.0\nstrange==2.0\nelsewhere==3.0 ; sys_platform == 'no such platform'\n")
    return path


def install(folder: Path, name: str, version: str, *fields: str) -> None:
    """The metadata of a package, where Python looks for it."""
    (folder / f"{name}-{version}.dist-info").mkdir()
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *fields]
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text("\n".join(lines) + "\n")


def test_the_locks_of_this_repository_pass_and_what_was_not_judged_is_named() -> None:
    done = check("--json")
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)
    assert {finding["standing"] for finding in findings} <= {"allowed", "excepted", "elsewhere"}
    unjudged = [finding["package"] for finding in findings if finding["standing"] == "elsewhere"]
    assert "pywin32" in unjudged
    assert all(name in done.stderr for name in unjudged)
    assert all(finding["reason"] for finding in findings if finding["standing"] == "excepted")


def test_a_new_package_under_a_copyleft_licence_is_refused_by_name(tmp_path: Path, lock: Path) -> None:
    install(tmp_path, "good", "1.0", "License-Expression: MIT")
    install(
        tmp_path, "strange", "2.0", "Classifier: License :: OSI Approved :: GNU General Public License (GPL)"
    )
    done = check(lock, "--json", packages=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("strange 2.0: GNU General Public License (GPL) is not on the list")
    assert "1 allowed, 0 by exception, 1 refused" in done.stderr
    standings = {finding["package"]: finding["standing"] for finding in json.loads(done.stdout)}
    assert standings == {"good": "allowed", "strange": "refused", "elsewhere": "elsewhere"}


def test_a_package_that_is_not_installed_is_refused_and_not_passed_over(tmp_path: Path, lock: Path) -> None:
    install(tmp_path, "good", "1.0", "License: MIT")
    done = check(lock, packages=tmp_path)
    assert done.returncode == 1
    assert (
        "strange 2.0: it is not installed, so its licence is not known; run: make install-dev" in done.stderr
    )


def test_a_missing_lock_is_named(tmp_path: Path) -> None:
    done = check(tmp_path / "no.txt")
    assert done.returncode == 2
    assert "no.txt: missing" in done.stderr
