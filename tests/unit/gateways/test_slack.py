"""Slack and single requests, with a local HTTP server that answers, refuses, stalls and asks to wait."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.answering import QuietHandler, Slack, answering_slack, serving

from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.gateways import slack
from trainyard.gateways.bounded_calls import retry_pause
from trainyard.gateways.http_requests import is_loopback, send_request

SECRET_PATH = "/services/T000/B000/verysecret"
TOKEN = "xoxb-verysecret"
BLOCKS = [{"type": "section", "text": {"type": "mrkdwn", "text": "*Training 7 proven*"}}]


@pytest.fixture
def server() -> Iterator[Slack]:
    with answering_slack() as fake:
        yield fake


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def webhook(server: Slack) -> dict[str, str]:
    return {"SLACK_WEBHOOK_URL": server.url + SECRET_PATH}


def bot(server: Slack) -> dict[str, str]:
    return {"SLACK_BOT_TOKEN": TOKEN, "SLACK_API_URL": server.url + "/api", "SLACK_CHANNEL": "#training"}


def test_nothing_can_be_edited_without_a_token_or_what_a_webhook_posted(server: Slack) -> None:
    assert not slack.edit(slack.PostedMessage("C0123", "1700.0001"), "t", BLOCKS, environment=webhook(server))
    assert not slack.edit(slack.PostedMessage(), "t", BLOCKS, environment=bot(server))
    assert server.requests == []
    server.answers = [(200, {}, '{"ok": false, "error": "message_not_found"}')]
    with pytest.raises(ServiceError, match="for C0123: message_not_found"):
        slack.edit(slack.PostedMessage("C0123", "1700.0001"), "t", BLOCKS, environment=bot(server))


def test_a_token_is_preferred_to_a_webhook_if_a_channel_is_known(server: Slack) -> None:
    both = bot(server) | webhook(server)
    slack.post("t", BLOCKS, environment=both)
    slack.post("t", BLOCKS, environment={k: v for k, v in both.items() if k != "SLACK_CHANNEL"})
    assert [path for path, _, _ in server.requests] == ["/api/chat.postMessage", SECRET_PATH]


def test_the_channel_may_come_from_the_configuration(server: Slack) -> None:
    environment = {k: v for k, v in bot(server).items() if k != "SLACK_CHANNEL"}
    assert slack.post("t", BLOCKS, channel="#from-config", environment=environment)
    assert server.requests[0][2]["channel"] == "#from-config"
    with pytest.raises(ServiceError, match=r"no channel: set SLACK_CHANNEL"):
        slack.post("t", BLOCKS, environment=environment)


def test_without_webhook_and_token_nothing_is_sent() -> None:
    assert slack.post("t", BLOCKS, environment={}) is None


@pytest.mark.slow
@pytest.mark.parametrize("credentials", [webhook, bot])
def test_a_rate_limit_and_a_server_error_are_waited_out(server: Slack, credentials: Any) -> None:
    server.answers = [(429, {"Retry-After": "1"}, ""), (503, {}, "oops")]
    began = time.monotonic()
    assert slack.post("t", BLOCKS, environment=credentials(server))
    assert time.monotonic() - began >= 1, "as long as Slack asks"
    assert len(server.requests) == 3


@pytest.mark.slow
def test_a_server_that_stays_broken_is_given_up(server: Slack) -> None:
    server.answers = [(500, {}, "no\nidea")] * 20
    with pytest.raises(ServiceError, match="Slack answered 500: no idea"):
        slack.post("t", BLOCKS, environment=webhook(server))
    assert len(server.requests) == 3


def test_a_refusal_is_not_retried(server: Slack) -> None:
    server.answers = [(403, {}, "invalid_token")]
    with pytest.raises(ServiceError, match="Slack answered 403: invalid_token"):
        slack.post("t", BLOCKS, environment=webhook(server))
    server.answers = [(200, {}, '{"ok": false, "error": "channel_not_found"}')]
    with pytest.raises(ServiceError, match="Slack refused the message for #training: channel_not_found"):
        slack.post("t", BLOCKS, environment=bot(server))
    server.answers = [(200, {}, "<html>proxy</html>")]
    with pytest.raises(ServiceError, match="refused the message"):
        slack.post("t", BLOCKS, environment=bot(server))
    assert len(server.requests) == 3


@pytest.mark.slow
@pytest.mark.parametrize("credentials", [webhook, bot])
def test_a_stalled_call_is_abandoned_and_not_retried(
    server: Slack, credentials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack, "CALL_SECONDS", 1)
    server.stall = 30
    began = time.monotonic()
    with pytest.raises(ServiceError, match="no answer within 1 seconds"):
        slack.post("t", BLOCKS, environment=credentials(server))
    assert time.monotonic() - began < 120
    assert len(server.requests) == 1


def test_a_message_has_its_own_time_limit(server: Slack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slack, "TOTAL_SECONDS", 0.5)
    server.answers = [(429, {"Retry-After": "3600"}, "rate_limited")]
    with pytest.raises(ServiceError, match="did not answer within"):
        slack.post("t", BLOCKS, environment=webhook(server))
    server.answers, server.stall = [], 3
    with pytest.raises(ServiceError, match="did not answer within"):
        slack.post("t", BLOCKS, environment=webhook(server))


def test_a_refused_connection_is_named_without_the_address(
    closed_port: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack, "_RETRIES", 1)
    with pytest.raises(ServiceError, match="could not be reached: Connection refused") as caught:
        slack.post("t", BLOCKS, environment={"SLACK_WEBHOOK_URL": closed_port + SECRET_PATH})
    assert "verysecret" not in str(caught.value) + "".join(capfd.readouterr())


def test_an_invalid_address_is_refused_without_being_shown() -> None:
    token = {"SLACK_BOT_TOKEN": TOKEN, "SLACK_CHANNEL": "#training"}
    for variable, more in (("SLACK_WEBHOOK_URL", {}), ("SLACK_API_URL", token)):
        for address in ("hooks.slack.com/verysecret", "file:///verysecret", "http://", "https://[x"):
            with pytest.raises(ServiceError) as caught:
                slack.post("t", BLOCKS, environment={variable: address, **more})
            assert "verysecret" not in str(caught.value)


class Handler(QuietHandler):
    """Redirects /to/ADDRESS, cuts the body of /cut, answers anything else with 200 and the login it got."""

    def serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = (self.headers.get("Authorization") or "none").encode()
        if self.path.startswith("/to/"):
            self.send_whole(307, body, {"Location": self.path.removeprefix("/to/")})
        else:
            self.send_whole(200, body, {"Content-Length": "100"} if self.path == "/cut" else None)
            self.close_connection = True


def test_reads_are_redirected_without_the_login_and_changes_are_not() -> None:
    with serving(Handler) as there, serving(Handler) as here:
        answers = {}
        for method in ("GET", "POST", "DELETE"):
            for target in (there, "ftp://127.0.0.1/x"):
                answer = send_request(
                    method, f"{here}/to/{target}", seconds=5, headers={}, authorization="Bearer secret"
                )
                answers[method, target] = (answer.status, answer.content)
    moved = (307, b"Bearer secret")
    followed = {("GET", there): (200, b"none")}
    assert answers == dict.fromkeys(answers, moved) | followed


def test_what_is_no_complete_answer_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # not for this machine
    with serving(Handler) as server:
        for address in (f"{server}/cut", "foo", "file:///etc/hosts", "http://[::1"):
            with pytest.raises(ServiceTroubleError):
                send_request("GET", address, seconds=5, headers={})


def test_the_pause_of_any_attempt_is_bounded() -> None:
    assert all(0 < retry_pause(attempt) <= 10 for attempt in (1, 4, 1_100))


def test_only_this_machine_is_spoken_to_without_tls() -> None:
    for port in ("", ":5000"):
        for host in ("127.0.0.1", "127.0.0.2", "localhost", "[::1]"):
            assert is_loopback(host + port), host
        for host in ("127.example.org", "localhost.example", "registry.example", "10.0.0.1"):
            assert not is_loopback(host + port), host
