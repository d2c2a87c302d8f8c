"""A proxy with a user and a password: both reach the proxy, and neither is ever printed."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from tests.answering import answering

from trainyard.errors import ConfigError, ServiceError, TrainyardError
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_access import Access, Credentials

PASSWORDS = ["word", "p@ss/w:rd", "ü 100%", ""]


@contextmanager
def proxy_that_wants(pair: str) -> Iterator[tuple[str, list[str]]]:
    """A proxy on loopback that answers requests itself, with 407 unless user and password are right."""
    asked: list[str] = []
    right = f"Basic {base64.b64encode(pair.encode()).decode()}"

    def answer(
        method: str, path: str, _body: object, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str]]:
        asked.append(f"{method} {path}")
        if headers.get("Proxy-Authorization") != right:
            return 407, {"message": "Proxy Authentication Required"}
        return 200 if method == "GET" else 502, {"kind": "Version"}

    with answering(answer) as url:
        yield url.removeprefix("http://"), asked


@pytest.mark.parametrize("password", PASSWORDS)
def test_user_and_password_of_a_proxy_reach_it(password: str) -> None:
    with proxy_that_wants(f"me:{password}") as (place, asked):
        proxy = f"http://me:{quote(password, safe='')}@{place}"
        access = Access(server="http://cluster.invalid", credentials=Credentials(), proxy=proxy)
        assert Api(access).get("/version") == {"kind": "Version"}
        assert asked == ["GET http://cluster.invalid/version"]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_refusal_by_the_proxy_names_no_password(scheme: str) -> None:
    with proxy_that_wants("me:another") as (place, _):
        proxy = f"http://me:hunter2@{place}"
        access = Access(server=f"{scheme}://cluster.invalid", credentials=Credentials(), proxy=proxy)
        with pytest.raises(ServiceError) as caught:
            Api(access).get("/version")
        assert "407" in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_tunnel_is_asked_for_with_user_and_password() -> None:
    with proxy_that_wants("me:word") as (place, asked):
        access = Access(
            server="https://cluster.invalid", credentials=Credentials(), proxy=f"http://me:word@{place}"
        )
        with pytest.raises(ServiceError, match="502"):
            Api(access).get("/version")
        assert set(asked) == {"CONNECT cluster.invalid:443"}


@pytest.mark.parametrize("proxy", ["ftp://me:hunter2@host:1", "http://me:hunter2@host:99999999"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(proxy: str) -> None:
    with pytest.raises(TrainyardError) as caught:
        Api(Access(server="http://cluster.invalid", credentials=Credentials(), proxy=proxy)).get("/version")
    assert isinstance(caught.value, ConfigError | ServiceError)
    assert "hunter2" not in str(caught.value)
