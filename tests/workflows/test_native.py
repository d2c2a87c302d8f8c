"""The job that builds and tests the C++ kernels, on every change and on no training."""

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def native_job(root: Path) -> dict[str, Any]:
    text = (root / ".github" / "workflows" / "ci.yml").read_text()
    job: dict[str, Any] = yaml.load(text, Loader=yaml.BaseLoader)["jobs"]["native"]
    return job


def test_it_is_built_once_for_a_change(root: Path) -> None:
    workflows = sorted((root / ".github" / "workflows").glob("*.yml"))
    assert [path.name for path in workflows if "step native" in path.read_text()] == ["ci.yml"]


def test_it_waits_for_no_gpu_and_for_no_other_job(native_job: dict[str, Any]) -> None:
    assert native_job["runs-on"] == "ubuntu-24.04"
    assert "needs" not in native_job
    assert "concurrency" not in native_job


def test_what_cmake_needs_is_installed_before_it_is_called(native_job: dict[str, Any]) -> None:
    runs = [step["run"] for step in native_job["steps"] if "run" in step]
    assert all(package in runs[0] for package in ("cmake", "ninja-build", "libgtest-dev"))
    assert runs[1] == "exec env PYTHONPATH=src python3 -m trainyard step native"


def test_no_failure_of_it_is_passed_over(native_job: dict[str, Any]) -> None:
    assert "continue-on-error" not in str(native_job)
    assert not any("--no-tests" in step.get("run", "") for step in native_job["steps"])


def test_a_change_of_the_kernels_starts_no_training_that_would_not_build_them(root: Path) -> None:
    text = (root / ".github" / "workflows" / "training_ci.yml").read_text()
    assert "native/**" not in yaml.load(text, Loader=yaml.BaseLoader)["on"]["push"]["paths"]
