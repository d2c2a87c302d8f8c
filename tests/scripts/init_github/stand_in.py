"""A stand-in for GitHub's API: one repository that keeps what it receives, and its set-up without `gh`.

Its answers follow https://docs.github.com/en/rest; a test can have any call refused, or ignored.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.gateways.github_api import ApiRefusedError
from trainyard.gateways.github_api import GitHub as Api
from trainyard.github.repository import get_repository
from trainyard.github.setup import Setup, WantedSetup
from trainyard.github.setup_step import SetupStep, exit_code_of_steps

REPOSITORY = "me/lab"
REGISTRATION = "AREGISTRATIONTOKEN"
ENVIRONMENTS = ("training", "watch", "release", "images", "eks", "locks")
REFUSALS = {
    401: "Bad credentials",
    403: "Resource not accessible by personal access token",
    404: "Not Found",
    422: "Failed to create the environment protection rule. Please ensure the billing plan supports it.",
}
POLL = "contents/.github/workflows/watch_runners.yml"
FILE = "actions/workflows/training_ci.yml"
FORKS = "actions/permissions/fork-pr-contributor-approval"
CUSTOM = {"protected_branches": False, "custom_branch_policies": True}


def shipped() -> str:
    """The workflow that polls, as it is in a copy."""
    return (Path(__file__).resolve().parents[3] / ".github" / "workflows" / "watch_runners.yml").read_text()


def content(text: str) -> dict[str, Any]:
    return {"sha": "0" * 40, "content": base64.encodebytes(text.encode()).decode()}


def runner(name: str = "gpu-1", *labels: str, status: str = "online") -> dict[str, Any]:
    names = [{"name": label} for label in labels or ("self-hosted", "Linux", "X64", "gpu")]
    return {"id": 7, "name": name, "status": status, "labels": names}


@dataclass
class GitHub:
    """The state of the stand-in, and the requests that it received."""

    repository: dict[str, Any]
    shown: dict[str, Any]
    """Path below the repository -> what GitHub shows there."""
    faults: dict[str, int] = field(default_factory=dict)
    """`METHOD path` as a pattern -> the status of a refusal; 204 answers and does nothing."""
    calls: list[str] = field(default_factory=list)

    def changes(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("GET ")]

    def variable(self, name: str) -> str:
        return str(self.shown.get(f"actions/variables/{name}", {}).get("value", ""))

    def set_variable(self, name: str, value: str) -> None:
        self.shown[f"actions/variables/{name}"] = {"value": value, "updated_at": "2026-11-02T00:00:00Z"}

    def limits(self, environment: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.shown[f"environments/{environment}/deployment-branch-policies"][
            "branch_policies"
        ]
        return found

    def train(self, ending: str = "success", job: str = "Train and prove") -> None:
        """A run of training_ci.yml, newer than those before it."""
        runs = self.shown[f"{FILE}/runs"]["workflow_runs"]
        number = len(runs) + 1
        run = {"id": 90 + number, "run_number": number, "conclusion": ending}
        runs.insert(0, run | {"created_at": "2026-11-05T00:00:00Z"})
        jobs = [{"name": "Plan", "conclusion": "success"}, {"name": job, "conclusion": ending}]
        self.shown[f"actions/runs/{90 + number}/jobs"] = {"jobs": jobs}

    def reply(self, method: str, address: str, body: Any = None, headers: Any = None) -> tuple[int, Any]:
        """Answer one call, or do what its fault says."""
        path = address.partition("?")[0].removeprefix(f"/repos/{REPOSITORY}").strip("/")
        call = f"{method} {path}"
        self.calls.append(call)
        for pattern, status in self.faults.items():
            if re.fullmatch(pattern, call):
                return status, {"message": REFUSALS[status]} if status >= 400 else None
        match [method, *path.split("/")]:
            case ["GET", *_]:
                found = self.shown.get(path) if path else self.repository
                return (404, {"message": "Not Found"}) if found is None else (200, found)
            case ["PUT", *_, "enable"]:
                self.shown[path.removesuffix("/enable")] = {"state": "active"}
            case ["POST", "actions", "variables"]:
                self.set_variable(body["name"], body["value"])
            case ["POST", *_, "deployment-branch-policies"]:
                self.shown[path]["branch_policies"].append(body)
            case ["POST", *_, "registration-token"]:
                return 201, {"token": REGISTRATION, "expires_at": "2026-11-22T11:12:13.000Z"}
            case ["PUT", "environments", name]:
                self.environment(name, body["deployment_branch_policy"])
            case _:
                self.shown[path] = {**self.shown.get(path, {}), **body}
        return (201, {}) if method == "POST" else (204, None)

    def environment(self, name: str, limit: Any, *policies: tuple[str, str], rules: Any = ()) -> None:
        path = f"environments/{name}"
        assert not self.shown.get(path, {}).get("protection_rules"), "GitHub removes what is not sent"
        self.shown[path] = {"deployment_branch_policy": limit, "protection_rules": [*rules]}
        found = [{"name": pattern, "type": kind} for pattern, kind in policies]
        self.shown[f"{path}/deployment-branch-policies"] = {"branch_policies": found}


def fresh(**changes: Any) -> GitHub:
    """A private repository of a user, just after its first push."""
    repository = {"id": 22, "full_name": REPOSITORY, "html_url": "https://github.example/me/lab"}
    repository |= {"owner": {"login": "me", "id": 11, "type": "User"}, "permissions": {"admin": True}}
    repository |= {"private": True, "visibility": "private", "fork": False, "archived": False}
    repository |= {"default_branch": "main", "created_at": "2026-11-01T10:00:00Z"}
    archive = {"os": "linux", "sha256_checksum": "0" * 64}
    downloads = [
        {**archive, "architecture": each, "download_url": f"https://github.example/runner-{each}.tar.gz"}
        for each in ("x64", "arm64")
    ]
    shown = {
        "actions/permissions": {"enabled": True},
        FILE: {"state": "active"},
        f"{FILE}/runs": {"workflow_runs": []},
        FORKS: {"approval_policy": "first_time_contributors"},
        "actions/runners": {"runners": []},
        "actions/runners/downloads": downloads,
        "actions/oidc/customization/sub": {"use_default": True},
        POLL: content(shipped()),
    }
    return GitHub(repository | changes, shown)


def complete(github: GitHub | None = None) -> GitHub:
    """The repository (default: a fresh one) after a set-up that ends with exit code 0."""
    github = github or fresh()
    github.set_variable("TRAINYARD_RUNNER_LABELS", '["self-hosted","gpu"]')
    github.set_variable("TRAINYARD_STORE", "file:///mnt/storage/store")
    github.set_variable("TRAINYARD_WATCH", "on")
    for name in ENVIRONMENTS:
        lineage = [("trainyard-lineage-*", "tag")] if name in ("training", "eks") else []
        github.environment(name, CUSTOM, ("v*", "tag") if name == "release" else ("main", "branch"), *lineage)
    github.shown[POLL] = content(shipped().replace("# schedule:", "schedule:"))
    github.shown["actions/runners"]["runners"] = [runner()]
    github.train()
    return github


@dataclass
class Done:
    """The steps of one set-up."""

    steps: list[SetupStep]

    @property
    def code(self) -> int:
        return exit_code_of_steps(self.steps)

    def __getitem__(self, name: str) -> SetupStep:
        return next(step for step in self.steps if step.name == name)

    def todo(self, name: str) -> str:
        return "\n".join(f"{todo.note}: {todo.command}" for todo in self[name].todo)


def set_up(
    github: GitHub,
    wanted: WantedSetup | None = None,
    *,
    host: str = "github.com",
    yes: bool = True,
    dry_run: bool = False,
) -> Done:
    """Set the stand-in up without `gh` and without a connection, for rules with many cases."""
    api, wanted = InMemory(github), wanted or WantedSetup()
    repository = get_repository(api, host, REPOSITORY)
    return Done(list(Setup(api, repository, wanted, dry_run=dry_run, replace_chosen=yes).steps()))


class InMemory(Api):
    """The API of the stand-in."""

    def __init__(self, github: GitHub) -> None:
        super().__init__(REPOSITORY, "")
        self._github = github

    def _json(self, method: str, path: str, *, query: Any = None, body: Any = None) -> Any:
        status, found = self._github.reply(method, f"/repos/{REPOSITORY}{path}", json.loads(json.dumps(body)))
        if status >= 400:
            raise ApiRefusedError(method, path, status, found["message"])
        return found
