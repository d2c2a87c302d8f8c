"""Commands in containers over a WebSocket: their output, their exit codes, and every way to be refused."""

import threading
from typing import Any

import pytest
from tests.unit.gateways.kubernetes.exec_server import exec_server, frame

from trainyard.errors import (
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    ServiceTroubleError,
)
from trainyard.gateways.kubernetes import pod_exec
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_access import Access, Credentials
from trainyard.gateways.kubernetes.pod_exec import Exec
from trainyard.jobs.state.pod_facts import Place

pytestmark = pytest.mark.process

PLACE = Place("team", "llama-0", "pytorch")


def ran(access: Access, *command: str, stdin: bytes = b"") -> tuple[bytes, bytes, int | None]:
    found = {Exec.STDOUT: b"", Exec.STDERR: b""}
    with Exec(Api(access), PLACE, command, stdin=stdin) as running:
        for channel, piece in running.streams():
            found[channel] += piece
        return found[Exec.STDOUT], found[Exec.STDERR], running.exit_code


def test_output_errors_and_exit_code_arrive_as_they_are() -> None:
    with exec_server() as server:
        assert ran(server.access(), "sh", "-c", "echo out; echo err >&2; exit 7") == (b"out\n", b"err\n", 7)
        assert ran(server.access(), "sh", "-c", "kill -9 $$")[2] == 137
        many = ran(server.access(), "head", "-c", "3000000", "/dev/zero")
        assert many == (bytes(3_000_000), b"", 0)
        asked = server.asked[0]
    assert asked["path"] == "/api/v1/namespaces/team/pods/llama-0/exec"
    assert (asked["container"], asked["command"][0], "stdin" in asked) == (["pytorch"], "sh", False)


def test_what_is_sent_arrives_on_stdin() -> None:
    sent = bytes(range(256)) * 500
    with exec_server() as server:
        assert ran(server.access(), "head", "-c", str(len(sent)), stdin=sent) == (sent, b"", 0)


def test_a_token_that_has_run_out_is_renewed_once() -> None:
    tokens = iter(["old", "new"])
    with exec_server(refuses=[401]) as server:
        access = Access(
            server=server.server, credentials=Credentials(token=lambda: next(tokens)), context="x"
        )
        assert ran(access, "true") == (b"", b"", 0)
        assert server.tokens == ["Bearer old", "Bearer new"]


REFUSED = "pods/exec in team, which needs the verbs get and create: refused by"
FAILED = frame(b'\x03{"status": "Failure", "message": "no pod"}')


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ({"refuses": [401] * 2}, CredentialsRefusedError, "401 Unauthorized"),
        ({"refuses": [403] * 2}, PermissionRefusedError, REFUSED),
        (
            {"refuses": [404] * 2},
            ServiceError,
            r"be run in team/llama-0/pytorch \(404\): refused by the test",
        ),
        ({"refuses": [500] * 2}, ServiceTroubleError, "500"),
        ({"accept": "wrong"}, ServiceError, "does not answer Kubernetes' WebSocket"),
        ({"raw": [b""]}, ServiceTroubleError, "broke off"),
        ({"raw": [frame(b"\x01half")[:3]]}, ServiceTroubleError, "broke off"),
        ({"raw": [bytes([0x88, 0])]}, ServiceTroubleError, "closed before the command ended"),
        ({"raw": [bytes([0xF2, 0])]}, ServiceTroubleError, "does not follow RFC 6455"),
        ({"raw": [frame(b"\x03nonsense") + bytes([0x88, 0])]}, ServiceError, "cannot be run"),
        ({"raw": [FAILED + bytes([0x88, 0])]}, ServiceError, "no pod"),
    ],
)
def test_every_refusal_and_broken_answer_is_told(answers: Any, error: type[Exception], words: str) -> None:
    with exec_server(**answers) as server, pytest.raises(error, match=words):
        ran(server.access(), "true")


def test_a_command_that_is_not_there_and_a_server_that_is_not_are_told() -> None:
    with exec_server() as server, pytest.raises(ServiceError, match="not found"):
        ran(server.access(), "no-such-command")
    with pytest.raises(ServiceTroubleError, match="could not be reached"):
        ran(Access(server="http://127.0.0.1:1", credentials=Credentials(), context="x"), "true")


def test_a_proxy_is_asked_for_a_tunnel() -> None:
    with exec_server() as server:
        access = server.access(proxy=f"http://me:word@{server.server.partition('//')[2]}")
        with pytest.raises(ServiceTroubleError, match="could not be reached"):
            ran(access, "true")  # this server answers CONNECT with 404


def test_a_silent_server_is_asked_with_pings_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_exec, "_PING_SECONDS", 0.1)
    monkeypatch.setattr(pod_exec, "_SILENT_SECONDS", 0.5)
    with exec_server() as server, pytest.raises(ServiceTroubleError, match="has been silent"):
        ran(server.access(), "sleep", "5")


def test_leaving_early_breaks_it_off() -> None:
    before = threading.active_count()
    with exec_server() as server, Exec(Api(server.access()), PLACE, ["yes"]) as running:
        assert next(iter(running.streams()))[0] == Exec.STDOUT
    assert threading.active_count() < before + 10
    assert str(Place("a", "b")) == "a/b"
