"""Read from a kubeconfig's context how to reach a cluster, and with which identity.

    parsed kubeconfig --context--> Access: server, trust, client certificate, a source of tokens

A source of tokens is used once, and again when the API server rejects its token. Sources are a token, a
file that is rotated, a program that prints one (`exec`), and EKS by a cluster's name, whose tokens are signed
here (`eks`). No token is logged.
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, PermissionRefusedError
from trainyard.gateways.aws_session import credential_variables
from trainyard.gateways.kubernetes.eks import EksCluster, eks_token
from trainyard.gateways.process import run_program

EXEC_SECONDS = 60
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TokenSource = Callable[[], str]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Credentials:
    """The credentials of a request."""

    token: TokenSource | None = None
    certificate: bytes = b""
    """A client's certificate with its key, PEM."""
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Access:
    """Everything that a connection needs."""

    server: str
    """https://host:port, perhaps with a path."""
    credentials: Credentials
    authority: bytes = b""
    """PEM; empty uses the system's authorities."""
    verify: bool = True
    server_name: str = ""
    """The name in the server's certificate, if it differs from that of `server`."""
    proxy: str = ""
    context: str = ""
    namespace: str = ""
    """The context's default namespace."""
    impersonated: tuple[tuple[str, str], ...] = ()
    """The headers for `as` and `as-groups`."""


def read_access(document: Any, *, path: Path, context: str = "") -> Access:
    """Return the access that `context` of a kubeconfig gives; the default is the current context.

    Files that it names are relative to the folder of `path`. Raises ConfigError.
    """
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a kubeconfig")
    name = context or str(document.get("current-context") or "")
    chosen = _entry(document, "contexts", "context", name=name, path=path)
    cluster = _entry(document, "clusters", "cluster", name=str(chosen.get("cluster", "")), path=path)
    user_name = str(chosen.get("user") or "")
    user = _entry(document, "users", "user", name=user_name, path=path) if user_name else {}
    server = str(cluster.get("server") or "")
    if not re.match(r"https?://[^/\s]", server):
        raise ConfigError(f"{path}: the cluster of context {name} has no address (server: https://…)")
    return Access(
        server=server.rstrip("/"),
        credentials=Credentials(
            _token_source(user, cluster=cluster, path=path),
            _content(user, "client-certificate", path),
            _content(user, "client-key", path),
        ),
        authority=_content(cluster, "certificate-authority", path),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
        context=name,
        namespace=str(chosen.get("namespace") or ""),
        impersonated=_impersonation_headers(user),
    )


def pod_access(environment: Mapping[str, str] = os.environ) -> Access | None:
    """Return the access of the pod that this process runs in; None outside one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = _POD / "token"
    if not host or not token.is_file():
        return None
    address = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{address}:{port}",
        credentials=Credentials(lambda: _read(token).decode().strip()),
        authority=_read(_POD / "ca.crt"),
        context="in this pod",
        namespace=_read(_POD / "namespace").decode().strip(),
    )


def eks_access(cluster: EksCluster) -> Access:
    """Return the access to an EKS cluster with the AWS credentials of this process."""
    return Access(
        server=cluster.endpoint,
        credentials=Credentials(lambda: eks_token(cluster.name, region=cluster.region)),
        authority=_decode_base64(cluster.authority, f"the certificate of {cluster.name}"),
        context=f"{cluster.name} in {cluster.region}",
    )


def _entry(document: Json, group: str, kind: str, *, name: str, path: Path) -> Json:
    entries = [e for e in _list_at(document, group) if isinstance(e, dict)]
    for entry in entries:
        if entry.get("name") == name and isinstance(entry.get(kind), dict):
            found: Json = entry[kind]
            return found
    known = ", ".join(str(e.get("name")) for e in entries) or "none"
    wanted = name or "that is current"
    raise ConfigError(f"{path}: no {kind} {wanted}; known: {known}. Name a context with --context")


def _list_at(entry: Json, key: str) -> list[Any]:
    """Return the list at `key`; an empty one if there is nothing, or something else."""
    found = entry.get(key)
    return found if isinstance(found, list) else []


def _token_source(user: Json, *, cluster: Json, path: Path) -> TokenSource | None:
    if user.get("tokenFile"):
        file = path.parent / str(user["tokenFile"])
        return lambda: _read(file).decode().strip()
    if user.get("token"):
        token = str(user["token"])
        return lambda: token
    if isinstance(user.get("exec"), dict):
        return _program_source(user["exec"], cluster=cluster, path=path)
    if user.get("auth-provider"):
        raise ConfigError(
            f"{path}: Kubernetes 1.26 removed auth-provider; write the kubeconfig again, for example "
            "with aws eks update-kubeconfig"
        )
    return None


def _program_source(plugin: Json, *, cluster: Json, path: Path) -> TokenSource:
    """Return a function that runs the program that a kubeconfig names."""
    command, arguments = str(plugin.get("command") or ""), [str(a) for a in _list_at(plugin, "args")]
    own = {
        str(e.get("name")): str(e.get("value", "")) for e in _list_at(plugin, "env") if isinstance(e, dict)
    }
    version = plugin.get("apiVersion") or "client.authentication.k8s.io/v1"
    program = str(path.parent / command) if "/" in command and not command.startswith("/") else command

    def ask() -> str:
        informed = {"cluster": {"server": cluster.get("server")}} if plugin.get("provideClusterInfo") else {}
        spec = {"interactive": False, **informed}
        information = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
        environment = {**os.environ, **credential_variables(), **own, "KUBERNETES_EXEC_INFO": information}
        done = run_program([program, *arguments], seconds=EXEC_SECONDS, environment=environment)
        if not done.ok:
            message = done.stderr.strip()[-300:] or f"exit code {done.exit_code}"
            hint = "; --cluster and --region reach a cluster of EKS without it" if "eks" in arguments else ""
            raise PermissionRefusedError(f"{path}: {command} gave no credentials: {message}{hint}")
        return _token_in(done.stdout, command, path)

    return ask


def _token_in(answer: str, command: str, path: Path) -> str:
    try:
        return str(json.loads(answer)["status"]["token"])
    except (ValueError, KeyError, TypeError):
        raise PermissionRefusedError(
            f"{path}: what {command} printed has no status.token; run it yourself to see"
        ) from None


def _impersonation_headers(user: Json) -> tuple[tuple[str, str], ...]:
    groups = (("Impersonate-Group", str(group)) for group in _list_at(user, "as-groups"))
    return ((("Impersonate-User", str(user["as"])),) if user.get("as") else ()) + tuple(groups)


def _content(entry: Json, name: str, path: Path) -> bytes:
    """Return the content of `NAME-data` in base64, or of the file that `NAME` names."""
    if entry.get(f"{name}-data"):
        return _decode_base64(str(entry[f"{name}-data"]), f"{path}: {name}-data")
    return _read(path.parent / str(entry[name])) if entry.get(name) else b""


def _decode_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{what} is not base64") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; the kubeconfig names it") from None
