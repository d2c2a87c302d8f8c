"""Watches through every way in which they can break, and a proxy whose password is never printed."""

import base64
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from tests.answering import answering
from tests.unit.gateways.kubernetes.scripted import (
    FAULT,
    GONE,
    Answer,
    Script,
    bookmark,
    event,
    listed,
    serving,
)

from trainyard.errors import (
    ConfigError,
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    TrainyardError,
)
from trainyard.gateways import bounded_calls
from trainyard.gateways.kubernetes import list_watch
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_access import Access, Credentials
from trainyard.gateways.kubernetes.list_watch import Report, Watch

QUIET = Answer(silent=20.0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.01)


class Seen:
    """The reports of a watch, as words."""

    def __init__(self, script: Script, source: Callable[[], str] | None = None) -> None:
        self.reports: queue.Queue[Report] = queue.Queue()
        self.script = script
        self.watch = Watch(
            Api(script.access(source)),
            "/api/v1/pods",
            self.reports.put,
            source="pods",
            keep=name_of,
            labelSelector="a=b",
        )

    def words(self, count: int) -> list[str]:
        found = []
        for _ in range(count):
            report = self.reports.get(timeout=10)
            found.append(f"{report.news.upper()} {' '.join(report.objects)}".strip())
        return found


def name_of(raw: Any) -> str:
    return str(raw["metadata"]["name"])


@pytest.fixture
def watched() -> Iterator[Callable[..., Seen]]:
    ends: list[Callable[[], object]] = []

    def start(script: Script, source: Callable[[], str] | None = None) -> Seen:
        held = serving(script)
        held.__enter__()
        ends.append(lambda: held.__exit__(None, None, None))
        seen = Seen(script, source)
        ends.append(seen.watch.end)
        seen.watch.start()
        return seen

    yield start
    for end in reversed(ends):
        end()


def test_a_list_then_what_changes(watched: Any) -> None:
    events = [event("ADDED", "b", "11"), event("MODIFIED", "a", "12"), event("DELETED", "b", "13")]
    seen = watched(Script([listed("a")], [Answer(events=events), QUIET]))
    assert seen.words(4) == ["LISTED a", "CHANGED b", "CHANGED a", "DELETED b"]
    assert [which for which, _ in seen.script.asked][:2] == ["list", "watch"]
    assert seen.script.asked[1][1]["labelSelector"] == "a=b"


BREAKS: dict[str, Answer] = {
    "ended": Answer(events=[event("MODIFIED", "a", "12")]),
    "cut": Answer(events=[event("MODIFIED", "a", "12")], broken=True),
    "cut in a line": Answer(events=[event("MODIFIED", "a", "12")], rest=b'{"type": "MODI', broken=True),
    "ended in a line": Answer(events=[event("MODIFIED", "a", "12")], rest=b'{"type": "MODI'),
    "error": Answer(events=[event("MODIFIED", "a", "12"), FAULT]),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_watch_that_breaks_goes_on_from_the_last_version(how: str, watched: Any) -> None:
    after = Answer(events=[event("MODIFIED", "z", "13")])
    seen = watched(Script([listed("a")], [BREAKS[how], after, QUIET]))
    words = [word for word in seen.words(3 if how == "ended" else 5) if word not in ("BROKEN", "BACK")]
    assert words == ["LISTED a", "CHANGED a", "CHANGED z"]
    versions = [query.get("resourceVersion") for which, query in seen.script.asked if which == "watch"]
    assert versions[0] == "10"
    assert versions[1] in ("12", "10" if how != "ended" else "12")
    assert [which for which, _ in seen.script.asked].count("list") == 1


def test_bookmarks_move_the_version_and_are_not_reported(watched: Any) -> None:
    after = Answer(events=[event("ADDED", "b", "100")])
    seen = watched(Script([listed("a")], [Answer(events=[bookmark("99")]), after, QUIET]))
    assert seen.words(2) == ["LISTED a", "CHANGED b"]
    assert [q["resourceVersion"] for which, q in seen.script.asked if which == "watch"][:2] == ["10", "99"]


@pytest.mark.parametrize("gone", [Answer(events=[GONE]), Answer(status=410, body={"message": "gone"})])
def test_a_version_that_is_too_old_is_listed_again(gone: Answer, watched: Any) -> None:
    seen = watched(Script([listed("a"), listed("b", version="20")], [gone, QUIET]))
    assert seen.words(2) == ["LISTED a", "LISTED b"]
    time.sleep(0.1)
    assert [q["resourceVersion"] for which, q in seen.script.asked if which == "watch"] == ["10", "20"]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("where", ["list", "watch"])
def test_an_api_server_that_is_away_is_waited_for(status: int, where: str, watched: Any) -> None:
    fault = Answer(status=status, body={"message": "away"})
    good = Answer(events=[event("ADDED", "b", "11")])
    lists = [*[fault] * 5, listed("a")] if where == "list" else [listed("a")]
    watches = [*[fault] * 5, good, QUIET] if where == "watch" else [good, QUIET]
    seen = watched(Script(lists, watches))
    words = seen.words(4 if where == "watch" else 3)
    assert [word for word in words if word not in ("BROKEN", "BACK")] == ["LISTED a", "CHANGED b"]
    assert words.count("BROKEN") == 1


@pytest.mark.parametrize("status", [403, 404, 400])
def test_what_may_not_be_seen_at_all_is_refused_at_once(status: int, watched: Any) -> None:
    seen = watched(Script([Answer(status=status, body={"message": "no"})]))
    report = seen.reports.get(timeout=10)
    assert report.news == "refused"
    assert (status != 403) or isinstance(report.error, PermissionRefusedError)
    time.sleep(0.2)
    assert len(seen.script.asked) == 1


@pytest.mark.parametrize("status", [403, 404])
def test_what_was_seen_before_is_not_refused_by_a_server_that_starts(status: int, watched: Any) -> None:
    refused = Answer(status=status, body={"message": "rbac is not there yet"})
    seen = watched(Script([listed("a"), refused, listed("b")], [Answer(events=[GONE]), QUIET]))
    assert seen.words(3) == ["LISTED a", "BROKEN", "LISTED b"]


def test_a_token_that_ran_out_is_renewed_in_the_middle(watched: Any) -> None:
    tokens, valid = iter(["old", "new", "new"]), {"old"}
    before = Answer(events=[event("ADDED", "b", "11")], silent=0.3)
    script = Script([listed("a")], [before, Answer(events=[event("ADDED", "c", "12")]), QUIET])
    script.token = lambda header: header.removeprefix("Bearer ") in valid
    seen = watched(script, lambda: next(tokens))
    assert seen.words(2) == ["LISTED a", "CHANGED b"]
    valid.clear()
    valid.add("new")
    assert seen.words(1) == ["CHANGED c"]


def test_credentials_that_are_refused_for_a_while_are_tried_again(watched: Any) -> None:
    valid: set[str] = set()
    script = Script([listed("a")], [QUIET])
    script.token = lambda header: header.removeprefix("Bearer ") in valid
    seen = watched(script, lambda: "token")
    report = seen.reports.get(timeout=10)
    assert isinstance(report.error, CredentialsRefusedError)
    valid.add("token")
    assert seen.words(1) == ["LISTED a"]


def test_a_connection_that_died_silently_is_noticed(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_watch, "_SILENCE", 0.3)
    after = Answer(events=[event("ADDED", "b", "11")])
    seen = watched(Script([listed("a")], [Answer(silent=20), after, QUIET]))
    assert [word for word in seen.words(4) if word not in ("BROKEN", "BACK")] == ["LISTED a", "CHANGED b"]


def test_a_watch_ends_at_once_when_it_is_told_to(watched: Any) -> None:
    seen = watched(Script([listed("a")], [QUIET]))
    assert seen.words(1) == ["LISTED a"]
    time.sleep(0.1)
    started = time.monotonic()
    seen.watch.end()
    assert time.monotonic() - started < 30
    with pytest.raises(queue.Empty):
        seen.reports.get(timeout=0.2)


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
