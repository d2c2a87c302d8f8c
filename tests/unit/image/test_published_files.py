"""Files that look like secrets: those that a package was published with are none of the user's."""

import base64
import hashlib
from collections.abc import Iterator, Mapping

import pytest
from tests.answering import answering

from trainyard.commands.image_lint import find_uv
from trainyard.errors import ConfigError
from trainyard.gateways.images.image_layers import FoundFile, LayerFiles
from trainyard.gateways.package_resolver import published_digests
from trainyard.image.release.published_files import judge_layers, parse_allowed
from trainyard.image.version_facts import rows

SITE = "usr/lib/python3.12/site-packages"
PUBLISHED = "a" * 64


def found(path: str, sha256: str = PUBLISHED) -> FoundFile:
    return FoundFile("layer", path, "a token", sha256)


def layers(
    *files: FoundFile, name: str = "x-1.0", record: str = "x/a.py", of_a_url: bool = False
) -> LayerFiles:
    folder = f"{SITE}/{name}.dist-info"
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"").digest()).decode().rstrip("=")
    urls = {folder} if of_a_url else set()
    return LayerFiles(list(files), {folder: f"{record},sha256={digest},0\n{name}.dist-info/RECORD,,\n"}, urls)


def index(name: str, version: str, python: str) -> Mapping[str, str] | str:
    assert python == "3.12"
    return {"x": {"x/a.py": PUBLISHED}, "own": {}}.get(name, "the index could not be read")


@pytest.mark.parametrize(
    ("read", "ok", "says"),
    [
        (layers(), True, "no layer holds what looks like a secret"),
        (layers(found(f"{SITE}/x/a.py")), True, "as x 1.0 was published"),
        (layers(found(f"{SITE}/x/a.py", "b" * 64)), False, "x 1.0 was not published with"),
        (layers(found(f"{SITE}/x/a.py"), of_a_url=True), False, f"{SITE}/x/a.py"),
        (layers(found(f"{SITE}/x/b.py")), False, f"{SITE}/x/b.py"),
        (layers(found(f"{SITE}/own/a.py"), name="own-1", record="own/a.py"), False, "own 1, which the index"),
        (layers(found(f"{SITE}/y/a.py"), name="y-1", record="y/a.py"), None, "not checked: "),
        (layers(found("app/.env"), found(f"{SITE}/x/a.py")), False, "app/.env"),
        (layers(*(found(f"app/{number}") for number in range(9))), False, "and 4 more"),
    ],
)
def test_what_was_published_and_not_changed_is_no_secret(
    read: LayerFiles, ok: bool | None, says: str
) -> None:
    answer = judge_layers(read, index, {})
    assert (answer.ok, says in answer.says) == (ok, True), answer.says


def test_keys_of_pythons_own_tests_are_known_by_their_digest() -> None:
    row = rows("published_files")[0]
    path = f"opt/lib/python3.12/test/certdata/{row['key']}"
    assert judge_layers(LayerFiles([found(path, row["sha256"][0])]), index, {}).ok
    assert not judge_layers(LayerFiles([found(path, "b" * 64)]), index, {}).ok
    assert not judge_layers(LayerFiles([found(f"app/{row['key']}", row["sha256"][0])]), index, {}).ok


def test_a_file_is_allowed_with_a_reason() -> None:
    allowed = parse_allowed(["/app/test/*=keys of a test server"])
    answer = judge_layers(layers(found("app/test/a.pem")), index, allowed)
    assert (answer.ok, "keys of a test server" in answer.says) == (True, True)
    assert not judge_layers(layers(found("app/a.pem")), index, allowed).ok
    for word in ("app/a.pem", "app/a.pem=", "=why"):
        with pytest.raises(ConfigError, match="PATH=REASON"):
            parse_allowed([word])


def answer_of_index(_method: str, path: str, *_: object) -> tuple[int, bytes, dict[str, str]]:
    """An index with one wheel and one source, and names that it refuses with their status."""
    name = path.strip("/").rpartition("/")[2]
    file = {"wheel": "wheel-1.0-py3-none-any.whl", "source": "source-1.0.tar.gz"}.get(name)
    body = f'<a href="{file}">{file}</a>'.encode() if file else b""
    return 200 if file else int(name.removeprefix("answers-")), body, {"Content-Type": "text/html"}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with answering(answer_of_index) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{address}/simple")
        monkeypatch.setenv("UV_NO_CACHE", "1")
        monkeypatch.delenv("UV_OFFLINE", raising=False)
        yield


def test_a_version_that_an_index_lacks_is_told_from_an_index_that_cannot_be_read(served: None) -> None:
    """Starts uv, whose words tell them apart."""
    uv = find_uv()
    if not uv:
        pytest.skip("uv is not installed")
    answers = {
        name: published_digests(uv, name, "2.0" if name == "wheel" else "1.0", "3.12")
        for name in ("wheel", "source", "answers-401", "answers-403", "answers-404")
    }
    unread = dict.fromkeys(("answers-401", "answers-403"), "the index could not be read")
    source = {"source": "the index has no wheel for this Python"}
    assert answers == {"wheel": {}, "answers-404": {}, **source, **unread}
