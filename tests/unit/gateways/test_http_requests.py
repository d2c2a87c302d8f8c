"""One request: what is followed, what is sent along, and what counts as no answer."""

import pytest
from tests.answering import QuietHandler, serving

from trainyard.errors import ServiceTroubleError
from trainyard.gateways.bounded_calls import retry_pause
from trainyard.gateways.http_requests import is_loopback, send_request


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
