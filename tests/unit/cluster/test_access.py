"""Kubeconfigs: every way to authenticate, the base of relative paths, and files that cannot be used."""

import base64
import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.cluster.recorded import Recorded

from trainyard.errors import ConfigError, PermissionRefusedError
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_access import pod_access, read_access
from trainyard.gateways.kubernetes.cluster_connection import access_by_kubeconfig
from trainyard.run.untrusted_files import read_yaml

CONFIG = Path("/folder/config")


def document(user: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://cluster.example/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "other", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "one",
    }


def test_the_current_context_or_the_one_that_is_named() -> None:
    access = read_access(document({"token": "t"}), path=CONFIG)
    assert (access.server, access.context, access.namespace) == ("https://cluster.example", "one", "team")
    assert read_access(document({"token": "t"}), path=CONFIG, context="other").namespace == ""


@each_case(
    ("broken", "said"),
    [
        (None, "not a kubeconfig"),
        ({}, "Name a context with --context"),
        ({"current-context": "x"}, "no context x"),
        ({**document({}), "contexts": None}, "no context one"),
        ({**document({}), "clusters": [{"name": "c", "cluster": {}}]}, "has no address"),
        ({**document({}), "contexts": 5}, "no context one; known: none"),
        ({**document({}), "clusters": 5}, "no cluster c"),
        ({**document({}), "users": 5}, "no user u"),
        (document({"auth-provider": {"name": "gcp"}}), "auth-provider"),
        (document({}, **{"certificate-authority-data": "?"}), "not base64"),
        (document({}, **{"certificate-authority": "missing.crt"}), "missing.crt"),
    ],
)
def test_what_cannot_be_used_is_said(broken: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_access(broken, path=CONFIG)


@pytest.mark.parametrize(
    ("user", "header"), [({"token": "good"}, "Bearer good"), ({"tokenFile": "token"}, "Bearer good")]
)
def test_a_request_says_who_it_comes_from(
    user: dict[str, str], header: str, recorded: Recorded, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("good\n")
    api = Api(read_access(document(user, server=recorded.url), path=tmp_path / "config"))
    recorded.tokens = {header.removeprefix("Bearer ")}
    assert api.get("/version")


def program(folder: Path, text: str) -> None:
    path = folder / "credentials"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_program_gives_the_token_and_is_asked_again(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, 'echo "{\\"status\\": {\\"token\\": \\"$(cat token)$SUFFIX\\"}}"')
    (tmp_path / "token").write_text("go")
    plugin = {"command": "./credentials", "env": [{"name": "SUFFIX", "value": "od"}]}
    plugin["command"] = str(tmp_path / "credentials")
    access = read_access(document({"exec": plugin}, server=recorded.url), path=tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    api = Api(access)
    assert api.get("/version")
    (tmp_path / "token").write_text("renew")
    recorded.tokens = {"renewod"}
    assert api.get("/version")


@pytest.mark.parametrize("text", ["echo no", "echo '{}'", "exit 3", "echo broken >&2; exit 1"])
def test_a_program_without_a_token_is_named(text: str, tmp_path: Path) -> None:
    program(tmp_path, text)
    plugin = {"command": str(tmp_path / "credentials")}
    access = read_access(document({"exec": plugin}), path=tmp_path / "config")
    assert access.credentials.token is not None
    with pytest.raises(PermissionRefusedError, match="credentials"):
        access.credentials.token()


def test_a_missing_aws_cli_is_named_with_the_options_that_do_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["eks", "get-token", "--cluster-name", "prod"]
    access = read_access(document({"exec": {"command": "aws", "args": arguments}}), path=CONFIG)
    assert access.credentials.token is not None
    with pytest.raises(PermissionRefusedError, match=r"not found.*--cluster and --region"):
        access.credentials.token()


def test_impersonation_is_kept() -> None:
    access = read_access(document({"token": "t", "as": "lead", "as-groups": ["a", "b"]}), path=CONFIG)
    groups = (("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    assert access.impersonated == (("Impersonate-User", "lead"), *groups)


def test_a_client_certificate_is_loaded_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=me"]
    subprocess.run(
        [*line, "-keyout", tmp_path / "key", "-out", tmp_path / "crt"], check=True, capture_output=True
    )
    user = {"client-certificate": "crt", "client-key": "key"}
    authority = base64.b64encode((tmp_path / "crt").read_bytes()).decode()
    fits = document(user, **{"certificate-authority-data": authority})
    Api(read_access(fits, path=tmp_path / "config"))
    (tmp_path / "key").write_text("no key")
    with pytest.raises(ConfigError, match="certificates of context one"):
        Api(read_access(fits, path=tmp_path / "config"))
    (tmp_path / "crt").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"cannot be used \(.*PEM.*\); they must be PEM"):
        Api(read_access(fits, path=tmp_path / "config"))


def test_the_first_kubeconfig_that_is_there_is_taken(tmp_path: Path) -> None:
    there = tmp_path / "b"
    there.write_text(json.dumps(document({"token": "t"})))
    environment = {"KUBECONFIG": f"{tmp_path}/a:{there}"}

    def read(path: Path) -> Any:
        return json.loads(path.read_text())

    assert access_by_kubeconfig(None, "", read=read, environment=environment).context == "one"
    with pytest.raises(ConfigError, match="no such kubeconfig"):
        access_by_kubeconfig(tmp_path / "a", "", read=read, environment=environment)


@each_case("wrong", [5, True, "text", {"a": 1}])
@each_case("key", ["args", "env"])
def test_an_odd_value_where_a_kubeconfig_has_a_list_is_no_bug(key: str, wrong: Any) -> None:
    user = {"exec": {"command": "true", key: wrong}, "as": "me", "as-groups": wrong}
    assert read_access(document(user), path=CONFIG).impersonated == (("Impersonate-User", "me"),)


@pytest.mark.parametrize("content", [b"a: [", b"a\0b", b"\xff", b"", b"- a", b"contexts: 5"])
def test_a_kubeconfig_that_cannot_be_read_is_wrong_usage(content: bytes, tmp_path: Path) -> None:
    """Exit code 1 would mean that a job has failed or a cluster is not ready; neither is known here."""
    path = tmp_path / "config"
    path.write_bytes(content)
    for named in (path, tmp_path, Path("/dev/null")):
        with pytest.raises(ConfigError, match=str(named)):
            access_by_kubeconfig(named, "", read=read_yaml)
        with pytest.raises(ConfigError, match=str(named)):
            access_by_kubeconfig(None, "", read=read_yaml, environment={"KUBECONFIG": str(named)})


def test_outside_a_pod_there_is_no_access_of_a_pod() -> None:
    assert pod_access({}) is None
    assert pod_access({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None
