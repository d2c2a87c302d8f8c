"""GitHub's OIDC endpoint and AWS's STS on one loopback port, as a job of GitHub Actions sees them.

The token is a real JSON web token (RS256), with the claims of a job. STS checks its audience and
subject, and its credentials live for some seconds. `faults` decides the answers to the next calls of either.
"""

import base64
import functools
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.answering import QuietHandler

ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
SUBJECT = "repo:me/lab:environment:training"
REQUEST_TOKEN = "the-request-token-of-this-job"
CLAIMS = {"sub": SUBJECT, "repository": "me/lab", "environment": "training", "ref": "refs/heads/main"}
CLAIMS |= {"repository_id": "22", "repository_owner_id": "11"}
BROKEN = ("stall", "reset", "cut", "500", "503", "throttle", "noise", "empty")
"""Faults of either call after which another attempt helps."""
REFUSED_TOKENS = {"expired request token": 401, "forbidden": 403, "no such job": 404}
REFUSED_ROLES = {
    "AccessDenied": (403, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity"),
    "no provider": (
        400,
        "InvalidIdentityToken",
        "No OpenIDConnect provider found in your account for https://x",
    ),
    "wrong audience": (400, "InvalidIdentityToken", "Incorrect token audience"),
    "bad policy": (400, "MalformedPolicyDocument", "The policy is not in the valid JSON format"),
    "large policy": (400, "PackedPolicyTooLarge", "The policy is too large"),
    "region": (403, "RegionDisabledException", "STS is not activated in this region"),
}
"""A refusal of STS that another attempt does not change -> status, error code and message."""
PASSING = {
    "provider away": (400, "IDPCommunicationError", "The IDP could not be reached"),
    "expired token": (400, "ExpiredTokenException", "Token expired"),
    "verification key": (
        400,
        "InvalidIdentityToken",
        "Couldn't retrieve verification key from your identity provider",
    ),
}
"""Errors of STS that do not refuse this role -> status, error code and message."""


class GitHubIdentity(ThreadingHTTPServer):
    """The two services. `calls`, `policies` and `sessions` record the requests."""

    daemon_threads = True

    def __init__(self, *, life: float, skew: float, role: str, keys: tuple[str, str] | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.role, self.keys = role, keys
        self.life, self.skew = life, skew
        self.stalled = threading.Event()
        self.faults: dict[str, list[str]] = {"oidc": [], "sts": []}
        """The next faults of each; `always:FAULT` stays."""
        self.calls: list[str] = []
        self.policies: list[str] = []
        self.sessions: list[str] = []
        self.issued: dict[str, float] = {}
        """Session token -> when it expires."""
        self.claims = dict(CLAIMS)
        self.trusted, self.audience = {SUBJECT}, "sts.amazonaws.com"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a step that has the role."""
        return {
            "TRAINYARD_AWS_ROLE": self.role,
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.url}/token?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": REQUEST_TOKEN,
            "AWS_ENDPOINT_URL_STS": self.url,
            "GITHUB_RUN_ID": "4711",
            **more,
        }

    def next_fault(self, service: str) -> str:
        self.calls.append(service)
        waiting = self.faults[service]
        if waiting and waiting[0].startswith("always:"):
            return waiting[0].removeprefix("always:")
        return waiting.pop(0) if waiting else ""

    def now(self) -> float:
        """The time of the services; the machine's may differ."""
        return time.time() + self.skew

    def token(self, audience: str) -> str:
        now = int(time.time())
        claims = {**self.claims, "iss": self.url, "aud": audience, "iat": now, "nbf": now, "exp": now + 300}
        head = {"alg": "RS256", "typ": "JWT", "kid": "k1"}
        text = b".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        signature = signing_key().sign(text, padding.PKCS1v15(), hashes.SHA256())
        return (text + b"." + _base64(signature)).decode()

    def key_set(self) -> dict[str, Any]:
        """The public key, as an OIDC provider publishes it."""
        numbers = signing_key().public_key().public_numbers()
        n, e = (
            _base64(value.to_bytes((value.bit_length() + 7) // 8, "big")).decode()
            for value in (numbers.n, numbers.e)
        )
        return {"keys": [{"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", "n": n, "e": e}]}

    def credentials(self) -> tuple[str, str, str, str]:
        """Issue key, secret and session token; return them, and when they expire in STS's format."""
        token = f"session-{len(self.issued)}"
        expires = self.now() + self.life
        self.issued[token] = expires
        end = datetime.fromtimestamp(expires, UTC).isoformat()
        return (*self.keys, "", end) if self.keys else ("ASIAEXAMPLE", "secret", token, end)


@functools.cache
def signing_key() -> rsa.RSAPrivateKey:
    """The key of every provider in this process."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@contextmanager
def github_identity(
    *, life: float = 3600.0, skew: float = 0.0, role: str = ROLE, keys: tuple[str, str] | None = None
) -> Iterator[GitHubIdentity]:
    """Run the two services until the end of the block.

    `keys` are issued instead of a session, for a store that knows no sessions.
    """
    signing_key()  # before a client waits for an answer
    server = GitHubIdentity(life=life, skew=skew, role=role, keys=keys)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.stalled.set()
        server.shutdown()
        server.server_close()


class _Handler(QuietHandler):
    server: GitHubIdentity
    protocol_version = "HTTP/1.0"

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.server.now() if timestamp is None else timestamp)

    def serve(self) -> None:
        (self._issue_token if self.command == "GET" else self._assume_role)()

    def _issue_token(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if self.path.startswith("/.well-known/openid-configuration"):
            keys = f"{self.server.url}/.well-known/jwks.json"
            self._answer(200, json.dumps({"issuer": self.server.url, "jwks_uri": keys}))
        elif self.path.startswith("/.well-known/jwks.json"):
            self._answer(200, json.dumps(self.server.key_set()))
        else:
            fault = self.server.next_fault("oidc")
            if self._broken(fault):
                return
            if fault in REFUSED_TOKENS or self.headers["Authorization"] != f"Bearer {REQUEST_TOKEN}":
                self._answer(REFUSED_TOKENS.get(fault, 401), '{"message": "refused"}')
                return
            assert query["api-version"] == ["2.0"]
            self._answer(200, json.dumps({"value": self.server.token(query["audience"][0])}))

    def _assume_role(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in urllib.parse.parse_qs(body).items()}
        fault = self.server.next_fault("sts")
        if self._broken(fault):
            return
        refusal = {**REFUSED_ROLES, **PASSING}.get(fault) or self._refusal(form)
        if refusal:
            self._answer(refusal[0], _error_document(*refusal[1:]))
            return
        assert "Authorization" not in self.headers, "the call needs no credentials"
        self.server.policies.append(form.get("Policy", ""))
        self.server.sessions.append(form["RoleSessionName"])
        key, secret, token, expires = self.server.credentials()
        self._answer(
            200,
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            "<AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>"
            f"<SessionToken>{token}</SessionToken><Expiration>{expires}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
        )

    def _refusal(self, form: dict[str, str]) -> tuple[int, str, str] | None:
        assert form["Action"] == "AssumeRoleWithWebIdentity"
        part = form["WebIdentityToken"].split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        if claims["aud"] != self.server.audience:
            return REFUSED_ROLES["wrong audience"]
        if claims["sub"] not in self.server.trusted or form["RoleArn"] != self.server.role:
            return REFUSED_ROLES["AccessDenied"]
        return None

    def _broken(self, fault: str) -> bool:
        """Answer with a fault after which another attempt helps; return whether there was one."""
        if fault not in BROKEN:
            return False
        if fault == "stall":
            self.server.stalled.wait(60)
            self.close_connection = True
        elif fault == "reset":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n<half")
            self.close_connection = True
        elif fault in ("500", "503"):
            self._answer(int(fault), "sorry")
        elif fault == "throttle":
            status = 429 if self.command == "GET" else 400
            self._answer(status, _error_document("Throttling", "Rate exceeded"))
        else:
            self._answer(200, "\x00 <<<" if fault == "noise" else "{}" if self.command == "GET" else "<a/>")
        return True

    def _answer(self, status: int, content: str) -> None:
        kind = "text/xml" if content.startswith("<") else "application/json"
        self.send_whole(status, content.encode(), {"Content-Type": kind})


def _error_document(code: str, message: str) -> str:
    return (
        '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
        f"<Code>{code}</Code><Message>{message}</Message></Error><RequestId>r-1</RequestId></ErrorResponse>"
    )


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
