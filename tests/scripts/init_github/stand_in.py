"""A stand-in for GitHub's API: one repository that keeps what it receives, and its set-up without `gh`.

Its answers follow https://docs.github.com/en/rest; a test can have any call refused, or ignored.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from trainyard.errors import ServiceError
from trainyard.gateways.github_api import ApiAnswer
from trainyard.github.repository import get_repository
from trainyard.github.setup import ChangePolicy, Setup, WantedSetup
from trainyard.github.setup_step import SecretChange, SetupStep, exit_code_of_steps

REPOSITORY = "me/lab"
REGISTRATION = "AREGISTRATIONTOKEN"
ENVIRONMENTS = ("training", "watch", "release", "images", "eks", "locks")
REFUSALS = {
    403: "Resource not accessible by personal access token",
    404: "Not Found",
    422: "Failed to create the environment protection rule. Please ensure the billing plan supports it.",
}
Answer = tuple[int, Any]
POLLS = ("watch_runners.yml",)


def shipped(name: str) -> str:
    return (Path(__file__).resolve().parents[3] / ".github" / "workflows" / name).read_text()


@dataclass
class GitHub:
    """The state of the stand-in, and the requests that it received."""

    address: str = ""
    repository: dict[str, Any] = field(default_factory=dict)
    actions: dict[str, Any] = field(default_factory=lambda: {"enabled": True, "allowed_actions": "all"})
    workflows: dict[str, str] = field(default_factory=lambda: {"training_ci.yml": "active"})
    variables: dict[str, str] = field(default_factory=dict)
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    policies: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    """Place (an environment, or empty for the repository) -> name -> what was sent."""
    runners: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    jobs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    subject: dict[str, Any] = field(default_factory=lambda: {"use_default": True})
    approval: str = "first_time_contributors"
    faults: dict[str, int] = field(default_factory=dict)
    """`METHOD path` as a pattern -> the status of a refusal; 204 answers and does nothing."""
    files: dict[str, str] = field(default_factory=lambda: {name: shipped(name) for name in POLLS})
    """The workflow files that poll, as they are on the default branch."""
    calls: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)

    def changes(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("GET ")]

    def runner(self, name: str = "gpu-1", *labels: str, status: str = "online") -> dict[str, Any]:
        names = [{"name": label} for label in labels or ("self-hosted", "Linux", "X64", "gpu")]
        return {"id": 7, "name": name, "status": status, "busy": False, "labels": names}

    def train(self, ending: str = "success", job: str = "Train and prove") -> None:
        """A run of training_ci.yml, newer than those before it."""
        number = len(self.runs) + 1
        run = {"id": 90 + number, "run_number": number, "conclusion": ending}
        self.runs.insert(0, run | {"created_at": "2026-11-05T00:00:00Z"})
        self.jobs[90 + number] = [
            {"name": "Plan", "conclusion": "success"},
            {"name": job, "conclusion": ending},
        ]

    def reply(self, method: str, address: str, body: Any = None) -> Answer:
        """Answer one call, or do what its fault says."""
        path, _, query = address.partition("?")
        call = f"{method} {path}"
        if path != "/meta":
            self.calls.append(call)
            self.bodies.append(json.dumps(body))
        for pattern, status in self.faults.items():
            if re.fullmatch(pattern, call):
                return status, {"message": REFUSALS[status]} if status >= 400 else None
        return self.answer(method, path, {k: v[-1] for k, v in parse_qs(query).items()}, body or {})

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        """Answer one call that is not disturbed."""

        known = {"updated_at": "2026-11-02T00:00:00Z"}
        archive = {"os": "linux", "filename": "runner.tar.gz", "sha256_checksum": "0" * 64}
        url = f"https://{self.address}/runner"
        reads = {
            "": self.repository,
            "meta": {"installed_version": "3.22.0"},
            "permissions": self.actions if self.actions["enabled"] else {"enabled": False},
            "permissions/fork-pr-contributor-approval": {"approval_policy": self.approval},
            **{f"workflows/{name}": {"state": state} for name, state in self.workflows.items()},
            **{f"environments/{name}": {"name": name, **each} for name, each in self.environments.items()},
            "runners/downloads": [
                archive | {"architecture": each, "download_url": f"{url}-{each}.tar.gz"}
                for each in ("x64", "arm64")
            ],
            "oidc/customization/sub": self.subject,
            **{f"variables/{n}": {"name": n, "value": v, **known} for n, v in self.variables.items()},
            **{
                f"contents/.github/workflows/{name}": {
                    "sha": "0" * 40,
                    "content": base64.encodebytes(text.encode()).decode(),
                }
                for name, text in self.files.items()
            },
            **{f"secrets/{name}": {"name": name} for name in self.secrets.get("", {})},
        }
        lists = {
            "workflows/training_ci.yml/runs": ("workflow_runs", self.runs),
            **{f"runs/{number}/jobs": ("jobs", jobs) for number, jobs in self.jobs.items()},
            "runners": ("runners", self.runners),
        }
        for name, environment in self.environments.items():
            reads |= {
                f"environments/{name}/secrets/{each}": {"name": each} for each in self.secrets.get(name, {})
            }
            if (environment["deployment_branch_policy"] or {}).get("custom_branch_policies"):
                policies = ("branch_policies", self.policies[name])
                lists[f"environments/{name}/deployment-branch-policies"] = policies
        base = f"/repos/{self.repository['full_name']}"
        place = path.removeprefix(base).replace("/actions", "", 1).strip("/")
        if method == "GET" and place in reads:
            return 200, reads[place]
        if method == "GET" and place in lists:
            key, items = lists[place]
            size, number = int(query.get("per_page", 30)), int(query.get("page", 1))
            return 200, {"total_count": len(items), key: items[(number - 1) * size : number * size]}
        match [method, *place.split("/")]:
            case ["PUT", "permissions"]:
                self.actions.update(body)
            case ["PUT", "permissions", "fork-pr-contributor-approval"]:
                self.approval = body["approval_policy"]
            case ["PUT", "workflows", name, "enable"]:
                self.workflows[name] = "active"
            case ["POST", "variables"] if body["name"] in self.variables:
                return 409, {"message": "Already exists - Variable already exists"}
            case ["POST", "variables"] | ["PATCH", "variables", _]:
                self.variables[body.get("name") or place.split("/")[1]] = body["value"]
            case ["PUT", "contents", *_, name]:
                self.files[name] = base64.b64decode(body["content"]).decode()
            case ["PUT", "environments", name]:
                return self._limit(name, body)
            case ["POST", "environments", name, "deployment-branch-policies"] if name in self.policies:
                number = 100 + len(self.policies[name])
                self.policies[name].append({"id": number, "type": "branch", **body})
            case ["GET", *_, "secrets", "public-key"]:
                return 200, {"key_id": "1", "key": base64.b64encode(bytes(range(1, 33))).decode()}
            case ["PUT", *parts, "secrets", name]:
                self.secrets.setdefault("".join(parts[1:]), {})[name] = body["encrypted_value"]
            case ["POST", "runners", "registration-token"]:
                return 201, {"token": REGISTRATION, "expires_at": "2026-11-22T11:12:13.000Z"}
            case _:
                return 404, {"message": "Not Found"}
        return (201, {}) if method == "POST" else (204, None)

    def _limit(self, name: str, body: dict[str, Any]) -> Answer:
        assert not self.environments.get(name, {}).get("protection_rules"), "GitHub removes what is not sent"
        policy = body.get("deployment_branch_policy")
        self.environments[name] = {"protection_rules": [], "deployment_branch_policy": policy}
        self.policies.setdefault(name, [])
        return 200, {"name": name}


def fresh(**changes: Any) -> GitHub:
    """A private repository of a user, just after its first push."""
    repository = {
        "id": 22,
        "full_name": REPOSITORY,
        "html_url": "https://github.example/me/lab",
        "owner": {"login": "me", "id": 11, "type": "User"},
        "private": True,
        "visibility": "private",
        "fork": False,
        "archived": False,
        "default_branch": "main",
        "created_at": "2026-11-01T10:00:00Z",
        "permissions": {"admin": True},
    }
    return GitHub(repository=repository | changes)


def complete(github: GitHub | None = None) -> GitHub:
    """The repository (default: a fresh one) after a set-up that ends with exit code 0."""
    github = github or fresh()
    github.variables |= {
        "TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]',
        "TRAINYARD_STORE": "file:///mnt/storage/store",
        "TRAINYARD_WATCH": "on",
    }
    limited = {"protected_branches": False, "custom_branch_policies": True}
    for name in ENVIRONMENTS:
        github.environments[name] = {"protection_rules": [], "deployment_branch_policy": dict(limited)}
        wanted = [("v*", "tag")] if name == "release" else [("main", "branch")]
        wanted += [("trainyard-lineage-*", "tag")] if name in ("training", "eks") else []
        github.policies[name] = [{"id": 100, "name": pattern, "type": kind} for pattern, kind in wanted]
    github.files = {name: shipped(name).replace("# schedule:", "schedule:") for name in POLLS}
    github.runners = [github.runner()]
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

    def ask(method: str, path: str, body: Any = None) -> ApiAnswer:
        return ApiAnswer(*github.reply(method, f"/{path}", json.loads(json.dumps(body))))

    repository, wanted = get_repository(ask, host, REPOSITORY), wanted or WantedSetup()

    def set_secret(change: SecretChange) -> None:
        place = f"environments/{change.environment}" if change.environment else "actions"
        path = f"{repository.base}/{place}/secrets/{change.name}"
        answer = ask("PUT", path, {"encrypted_value": "sealed"})
        if answer.status >= 300:
            raise ServiceError(f"gh secret set {change.name}: {answer.message}")

    policy = ChangePolicy(dry_run, yes, [name for _, name in wanted.secrets], set_secret)
    return Done(list(Setup(ask, repository, wanted, policy).steps()))
