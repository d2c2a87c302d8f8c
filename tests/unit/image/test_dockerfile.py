"""Reading a Dockerfile, the tables of image lint, and files that only look like secrets."""

import base64
import datetime
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.answering import answering
from tests.cases import each_case
from write_image_facts import add_builds, add_containers, add_toolkits

from trainyard.commands.image_lint import find_uv
from trainyard.errors import ConfigError, ServiceError
from trainyard.gateways.images.image_layers import FoundFile, LayerFiles
from trainyard.gateways.package_resolver import published_digests
from trainyard.image.context.copied_files import locks_of
from trainyard.image.context.dockerfile import Dockerfile, expand, pairs_of, parse_dockerfile
from trainyard.image.release.published_files import judge_layers, parse_allowed
from trainyard.image.version_facts import rows


def final_base(parsed: Dockerfile) -> str:
    return parsed.ancestors(len(parsed.stages) - 1)[0].image


def test_continued_lines_comments_and_here_documents() -> None:
    text = (
        "# syntax=docker/dockerfile:1\n"
        "ARG V=1\n"
        "FROM a:${V} AS Build\n"
        "RUN one && \\\n"
        "  # a comment in between\n"
        "  two\n"
        "\n"
        "RUN <<EOF\n"
        "FROM is text here\n"
        "EOF\n"
        "COPY <<'X' /x\nUSER root\nX\n"
        "FROM build\n"
        "user 1000\n"
    )
    parsed = parse_dockerfile(text, "D")
    names = [(i.name, i.line, i.stage) for i in parsed.instructions]
    assert names == [
        ("ARG", 2, -1),
        ("FROM", 3, 0),
        ("RUN", 4, 0),
        ("RUN", 8, 0),
        ("COPY", 11, 0),
        ("FROM", 14, 1),
        ("USER", 15, 1),
    ]
    assert [s.image for s in parsed.stages] == ["a:1", "build"]
    assert [s.image for s in parsed.bases] == ["a:1"]
    assert final_base(parsed) == "a:1"
    user = parsed.last("USER")
    assert user is not None
    assert user.text == "1000"
    here_string = parse_dockerfile("FROM a\nRUN cat <<<X\nUSER 1\n", "D")
    assert [i.name for i in here_string.instructions] == ["FROM", "RUN", "USER"]


def test_variables_are_filled_in() -> None:
    one = {"A": "1"}
    for text, values, expected in (
        *(("$A", one, "1"), ("${A}", one, "1"), ("${A:-2}", {}, "2"), ("${A:-2}", one, "1")),
        *(("${A:+x}", one, "x"), ("${A:+x}", {}, ""), ("$B/x", one, "$B/x")),
    ):
        assert expand(text, values) == expected


PINNED = "uv@sha256:" + "a" * 64


@each_case(
    ("line", "expected"),
    [
        ("COPY --from=uv:1 /uv /bin/", ["uv:1"]),
        ("COPY --chown=1 --from=uv:$V /uv /bin/", ["uv:2"]),
        ("COPY --from=$UNKNOWN /uv /bin/", ["$UNKNOWN"]),
        ("ADD --from=uv /uv /bin/", ["uv"]),
        ("RUN --mount=type=cache,target=/c --mount=type=bind,from=uv:1,target=/u cp /u/uv /", ["uv:1"]),
        ("ONBUILD COPY --from=uv:1 /uv /bin/", ["uv:1"]),
        (f"COPY --from={PINNED} /uv /bin/", []),
        ("COPY --from=0 /uv /bin/", []),
        ("COPY --from=Tools /uv /bin/", []),
        ("RUN --mount=from=tools,target=/u cp /u/uv /", []),
        ("RUN echo --mount=from=uv:1", []),
        ("COPY x --from=uv:1", []),
        ("COPY --from=last /uv /bin/", ["last"]),
    ],
)
def test_an_image_that_is_only_read_from_is_a_base_too(line: str, expected: list[str]) -> None:
    base = "x@sha256:" + "b" * 64
    parsed = parse_dockerfile(f"ARG V=2\nFROM {base} AS tools\nFROM {base} AS last\n{line}\n", "D")
    assert [stage.image for stage in parsed.unpinned] == expected
    assert len(parsed.bases) == 2 + len(expected) + (PINNED in line)


def test_both_forms_of_env() -> None:
    for line, expected in (
        ("ENV A=1 B=2", {"A": "1", "B": "2"}),
        ('ENV A="x y" B=2', {"A": "x y", "B": "2"}),
        ("ENV A some words", {"A": "some words"}),
        ("ENV A\tsome words", {"A": "some words"}),
    ):
        assert pairs_of(line.removeprefix("ENV ")) == expected


def test_what_is_no_dockerfile_is_refused_with_its_line() -> None:
    for text, says in (
        ("", "no FROM"),
        ("RUN x\n", "no FROM"),
        ("FROM a\nINSTALL x\n", "D:2: 'INSTALL'"),
        ("FROM a b c\n", "D:1: FROM takes"),
        ("{}\n", "D:1: '{}'"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_dockerfile(text, "D")
        assert says in str(caught.value)


def test_an_argument_without_a_default_keeps_that_of_an_earlier_one_and_may_have_spaces() -> None:
    parsed = parse_dockerfile('ARG V=1\nARG A="7.0 8.0+PTX" B=2\nFROM a\nARG V\nARG W\n', "D")
    assert parsed.arguments == {"V": "1", "A": "7.0 8.0+PTX", "B": "2", "W": ""}


def test_the_locks_of_an_image_are_those_that_it_copies_and_installs() -> None:
    text = (
        "FROM a\n"
        "COPY requirements-uv.txt requirements-training.txt requirements-dev.txt ./\n"
        "COPY requirements-verl.txt x/requirements-other.txt /\n"
        "RUN cat requirements-run.txt requirements-dev.txt && pip install -r requirements-uv.txt\n"
        "RUN sh scripts/install_environment.sh training && uv pip sync -q /requirements-verl.txt\n"
        "RUN pip install -r requirements-here.txt -r /requirements-other.txt\n"
    )
    assert locks_of(parse_dockerfile(text, "D")) == ("requirements-training.txt", "requirements-verl.txt")


def test_the_locks_of_our_own_images_are_found() -> None:
    images = {"fsdp": ["training"], "verl": ["verl"], "megatron": ["training", "megatron"]}
    for kind, own in images.items():
        text = (Path(__file__).resolve().parents[3] / "docker" / kind / "Dockerfile").read_text()
        assert locks_of(parse_dockerfile(text, "D")) == tuple(f"requirements-{one}.txt" for one in own)


def test_a_base_without_a_value_stays_as_written() -> None:
    for declares in ("", "ARG BASE\nARG X\n", "ARG BASE=\nARG X=${Z}\n"):
        for line, filled in (
            ("FROM $BASE", "a:1"),
            ("FROM ${BASE}", "a:1"),
            ("FROM r.io/a:${X}-b", "r.io/a:2-b"),
        ):
            assert "$" in final_base(parse_dockerfile(f"{declares}{line}\n", "D"))
            given = parse_dockerfile(f"{declares}{line}\n", "D", {"BASE": "a:1", "X": "2"})
            assert final_base(given) == filled or not declares


TODAY = datetime.date(2027, 1, 5)
RELEASE = """\
| PyTorch version | Python | C++ | Stable CUDA | Experimental CUDA | Stable ROCm |
| --- | --- | --- | --- | --- | --- |
| 2.98 | >=3.10, <=(3.15, 3.15t experimental) | C++20 | CUDA 12.6, CUDA 13.0 | CUDA 13.2 | ROCm 7.2 |
"""
MATRIX = """\
| 27.02 | trtllm | Python 3.12.3  | 2.97.0a0+b4e4.nv27.1 | 10.1 | 1.2 | 13.1.0.036 | 590.44.01 |
| 27.02 | s:27.02-vllm-python-py3 | Python 3.12.3  | 0.24.0+092c.nv27.2 | 13.8.1.009 | 615.43.02 |
| 27.01 | s:27.01-vllm-python-py3 | Python 3.12.3  | 0.24.0+092c.nv27.1| 13.8.0.035 | 610.43.02 |
"""


def test_rows_that_a_source_has_and_a_table_lacks_are_added_once() -> None:
    torch = add_builds('- torch: "2.98"\n  pypi_cuda: "13.0"\n', RELEASE)
    assert torch == '- torch: "2.98"\n  cuda: ["12.6", "13.0", "13.2"]\n  pypi_cuda: "13.0"\n'
    containers = add_containers("rows:\n- image: ubuntu\n", MATRIX, TODAY)
    first = (
        '- image: nvcr.io/nvidia/pytorch\n  tag: "27.01"\n  torch: "2.97"\n  cuda: "13.8"\n  python: "3.12"\n'
    )
    assert first in containers
    assert 'tag: "27.02"\n  cuda: "13.8"\n' in containers
    cuda = add_toolkits("rows:\n", MATRIX, TODAY)
    assert '- toolkit: "13.8"\n  release: "13.8.1"\n  bundled_driver: "615.43.02"\n' in cuda
    again = (
        add_builds(torch, RELEASE),
        add_containers(containers, MATRIX, TODAY),
        add_toolkits(cuda, MATRIX, TODAY),
    )
    assert again == (torch, containers, cuda)


def test_a_source_that_has_no_matrix_any_more_is_named() -> None:
    with pytest.raises(ServiceError, match=r"RELEASE\.md has no matrix"):
        add_builds("", "<html>")
    with pytest.raises(ServiceError, match=r"compatibility\.md has no matrix"):
        add_containers("", "<html>", TODAY)


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
def test_what_was_published_unchanged_is_no_secret(read: LayerFiles, ok: bool | None, says: str) -> None:
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
