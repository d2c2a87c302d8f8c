"""What the tests of the workflows share: the shipped files, parsed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Shipped:
    """A workflow or composite action as it is shipped."""

    path: Path
    text: str
    content: dict[str, Any]
    """Parsed with every scalar a string, so that the key `on` stays what it is."""

    @property
    def jobs(self) -> dict[str, Any]:
        jobs: dict[str, Any] = self.content.get("jobs", {})
        return jobs

    def steps(self) -> list[dict[str, Any]]:
        """Every step, of all jobs or of the composite action."""
        if "runs" in self.content:
            return list(self.content["runs"]["steps"])
        return [step for job in self.jobs.values() for step in job["steps"]]


def read(path: Path) -> Shipped:
    text = path.read_text(encoding="utf-8")
    return Shipped(path, text, yaml.load(text, Loader=yaml.BaseLoader))


WORKFLOWS = [read(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
ACTIONS = [read(path) for path in sorted((ROOT / ".github" / "actions").glob("*/action.yml"))]


def name_of(shipped: Shipped) -> str:
    return shipped.path.relative_to(ROOT).as_posix()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`workflow` runs a test over every workflow, `shipped` over the composite actions too."""
    if "workflow" in metafunc.fixturenames:
        metafunc.parametrize("workflow", WORKFLOWS, ids=name_of)
    if "shipped" in metafunc.fixturenames:
        metafunc.parametrize("shipped", [*WORKFLOWS, *ACTIONS], ids=name_of)


@pytest.fixture(scope="session")
def training() -> Shipped:
    return read(ROOT / ".github" / "workflows" / "training_ci.yml")


@pytest.fixture(scope="session")
def training_job(training: Shipped) -> dict[str, Any]:
    job: dict[str, Any] = training.jobs["train"]
    return job


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT
